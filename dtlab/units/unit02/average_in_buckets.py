"""02/average_in_buckets: all-reduce gradients in buckets, those of the last layers first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice, pairwise, product
from typing import Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Seen, fault, rule
from dtlab.checks.functions.groups import draw_groups
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.unseen import FOREIGN
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit02.training import LOST_BY, Arguments, Step, Training, amounts, train

__all__ = ["PART", "Counted", "closed_before", "draw_plan", "packed", "wrong_number"]

# Sizes of buckets, and models and limits for which mistakes give other sizes ---------------------


def packed(sizes: Sequence[int], bucket_bytes: int, first: int = 0, later: int = 0) -> list[int]:
    """The sizes of the buckets, in bytes, that tensors of these sizes fill in this order.

    `first` and `later` simulate mistakes: the value with which the count of bytes begins, in the
    first bucket and in the others, if it is not 0.
    """
    buckets, filling, counted = list[int](), 0, first
    for size in sizes:
        filling, counted = filling + size, counted + size
        if counted >= bucket_bytes:
            buckets.append(filling)
            filling, counted = 0, later
    return [*buckets, filling] if filling else buckets


def closed_before(sizes: Sequence[int], bucket_bytes: int) -> int:
    """The number of buckets if no bucket may hold more than `bucket_bytes`."""
    count, filling = 0, bucket_bytes + 1
    for size in sizes:
        filling += size
        if filling > bucket_bytes:
            count, filling = count + 1, size
    return count


def _numbers_of_buckets(sizes: Sequence[int], bucket_bytes: int) -> set[int]:
    """The numbers of buckets if tensors are packed from the first or from the last one.

    Both are accepted here, because another criterion, "order", judges the direction.
    """
    return {len(packed(order, bucket_bytes)) for order in (sizes, sizes[::-1])}


def _exact_limits(sizes: Sequence[int]) -> list[int]:
    """Limits that the first bucket, or a later one, reaches exactly or misses by one byte.

    With them, a count that begins one byte too high or too low yields another number of buckets.
    """
    limits: list[int] = []
    runs = {sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)}
    for mistake, by in product(("first", "later"), (-1, 1)):
        telling = (
            limit
            for limit in (run + (by > 0) for run in sorted(runs))
            if len(packed(sizes, limit, **{mistake: by})) not in _numbers_of_buckets(sizes, limit)
        )
        limits += islice(telling, 1)
    return limits


def draw_plan(draw: random.Random) -> tuple[Net, int, list[int]]:
    """Draws a net of one frozen and five other layers, a bucket limit, and four exact limits.

    The limit exposes two mistakes. Packing from the first layer gives the same number of
    buckets, but of other sizes. Closing a bucket before it reaches the limit gives another number
    of buckets. For the exact limits see `_exact_limits`.
    """
    while True:
        widths = tuple(draw.sample(range(8, 33), 7))
        net = Net("frozen", widths, "a frozen and five other layers")
        trained = [pair for place, pair in enumerate(pairwise(widths)) if place != 1]
        sizes = [4 * size for a, b in trained for size in (a * b, b)]
        backwards, cap = sizes[::-1], 4 * draw.randint(150, 700)
        right, forwards = packed(backwards, cap), packed(sizes, cap)
        exact = _exact_limits(backwards)
        if (
            len(right) == len(forwards) in (3, 4)
            and not set(accumulate(forwards[:-1])) & set(accumulate(backwards))
            and closed_before(backwards, cap) != len(right)
            and len(packed(backwards, 4 * cap)) < len(right)
            and len(exact) == 4
        ):
            return net, cap, exact


# The part ----------------------------------------------------------------------------------------

_ALL = 1 << 20  # bytes: more than any of these models has
_DTYPES = "torch.cat converts two dtypes into one: a bucket must hold gradients of one dtype."
_NUMBER_OF_A_DTYPE = "number of a dtype"


@dataclass(frozen=True)
class Counted(Training):
    """Runs some steps; `counted` names the criteria that count their all-reduces."""

    counted: tuple[str, ...] = ()

    def shows(self, criterion: str) -> bool:
        return criterion in self.counted or super().shows(criterion)


class InBuckets(Counted):
    """Calls `fn(module, bucket_bytes)` after backward, when every `.grad` is ready."""

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        return train(
            given, lambda module, **group: lambda: fn(module, given.bucket_bytes, **group)
        )

    def wrong_step(self, step: Step) -> Iterator[Fault]:
        if self.topic == "dtypes":
            yield from _wrong_dtypes(step)
        elif self.counted:
            yield from wrong_number(step)
            yield from _wrong_bytes(step)


def wrong_number(step: Step) -> Iterator[Fault]:
    """Yields a fault unless there is one all-reduce per bucket and nothing else."""
    sizes, limit, count = step.case.sizes, step.case.bucket_bytes, len(step.all_reduces)
    if step.others:
        yield "all_reduces", f"the rank calls {step.others}. A bucket takes one all-reduce."
    elif count not in _numbers_of_buckets(sizes, limit):
        sent = [event.bytes for event in step.all_reduces]
        yield (
            "all_reduces",
            f"{_counted(sent, packed(sizes, limit))} Fill a bucket with one gradient after "
            "another, from the last parameter on, and close it with the gradient that reaches "
            "`bucket_bytes` or more. The gradients left at the end form a bucket too.",
        )


def _counted(sent: Sequence[int], goal: Sequence[int], dtype: str = "") -> str:
    """A text like "1 all-reduce of float64, for 3 buckets", with their sizes in bytes."""
    sizes = "; ".join(
        f"{what}: {', '.join(map(str, values)) or 'none'}"
        for what, values in (("bytes sent", sent), ("bytes of the buckets", goal))
    )
    numbers = f"{counted(len(sent), 'all-reduce')}{dtype}, for {counted(len(goal), 'bucket')}"
    return f"{numbers} ({sizes})."


def _wrong_bytes(step: Step) -> Iterator[Fault]:
    """Yields a fault unless a rank sends exactly its gradients, from the last parameter on."""
    if step.sent() != sum(step.case.sizes):
        sent, needed = amounts(step.sent(), sum(step.case.sizes))
        if {event.extra.get("dtype", "float32") for event in step.all_reduces} - {"float32"}:
            advice = "Buckets hold the gradients' own dtype, float32."
        else:
            advice = "A bucket is as large as its gradients, and each gradient is in one bucket."
        yield "bytes", f"the all-reduces have {sent}, and the gradients have {needed}. {advice}"
    buckets = [event.bytes for event in step.all_reduces]
    if not set(accumulate(buckets)) <= set(accumulate(step.case.sizes)):
        yield (
            "order",
            f"the all-reduces have {', '.join(map(str, buckets))} bytes. These are not sums of "
            "gradients taken from the last parameter on. Backward reaches the last layers first: "
            "begin with them.",
        )


def _wrong_dtypes(step: Step) -> Iterator[Fault]:
    """Yields a fault if a gradient is sent in another dtype, or if a bucket mixes dtypes."""
    for dtype in ("float32", "float64"):
        sizes = [size for size, name in step.case.gradients if name.endswith(dtype)]
        sent = [event.bytes for event in step.all_reduces if event.extra.get("dtype") == dtype]
        if sum(sent) != sum(sizes):
            actual, needed = amounts(sum(sent), sum(sizes))
            yield (
                "dtypes",
                f"{actual} are sent as {dtype}, and the gradients of that dtype have {needed}. "
                f"{_DTYPES}",
            )
        elif len(sent) not in _numbers_of_buckets(sizes, step.case.bucket_bytes):
            goal = packed(sizes, step.case.bucket_bytes)
            advice = (
                "`bucket_bytes` counts bytes: an element of float64 has 8 bytes. Count the bytes "
                "of each dtype separately."
                if step.case.bucket_bytes < _ALL
                else "A gradient of another dtype must not close a bucket: only `bucket_bytes` "
                "does, and the end."
            )
            yield _NUMBER_OF_A_DTYPE, f"{_counted(sent, goal, f' of {dtype}')} {advice}"


def _trials(seed: int) -> list[Trial]:
    """Trials on four ranks with seven limits, on 1 to 3 ranks, with two dtypes, with groups."""
    draw = random.Random(seed)
    net, cap, exact = draw_plan(draw)
    limited = partial(InBuckets, seed, net, counted=("all_reduces", "order", "bytes"))
    limits = [limited(bucket_bytes=cap)]
    limits += [limited(steps=1, bucket_bytes=n) for n in (*exact, 4, _ALL)]
    alike = Net("chain", (draw.randint(4, 9),) * 5, "four layers of one shape")
    few = [InBuckets(seed, alike, bucket_bytes=draw.randint(40, 400)) for _ in range(3)]
    mixed = Net("mixed", net.sizes[:5], "a layer of float64")
    bias = 8 * mixed.sizes[2]  # bytes of the float64 layer's bias, which just fills one bucket
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        Trial(4, limits),
        *(Trial(ranks, [case]) for ranks, case in enumerate(few, 1)),
        Trial(3, [InBuckets(seed, mixed, "dtypes", 2, (), n, _DTYPES) for n in (_ALL, bias)]),
        Trial(5, [InBuckets(seed, alike, "subgroups", groups=groups, bucket_bytes=200)]),
    ]


def _wrong_number_of_a_dtype(seen: Seen) -> str:
    """A message if the number of buckets is wrong for mixed dtypes, but right for one dtype."""
    return "" if fault(seen, "all_reduces") else fault(seen, _NUMBER_OF_A_DTYPE)


PART = Part(
    name="02/average_in_buckets",
    level=2,
    title="Average in buckets",
    minutes=20,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule(
                "gradients",
                2,
                "every gradient is the mean, on 1 to 4 ranks, in every step",
                lost_by=LOST_BY,
            ),
            rule("all_reduces", 2, "one all-reduce for each bucket", FOREIGN),
            rule("order", 1, "the last parameters come first", "bytes", FOREIGN),
            rule("bytes", 1, "buckets have as many bytes as gradients", FOREIGN),
            rule(
                "dtypes",
                1,
                "each dtype has separate buckets",
                "gradients",
                "bytes",
                FOREIGN,
                also=_wrong_number_of_a_dtype,
                finish=True,
            ),
            rule("subgroups", 1, "right on groups of some of the ranks too", "gradients", FOREIGN),
        ),
    ),
    reference="dtlab.simple.average_in_buckets",
    short_path="1 to 4",
)
