"""02/average_in_buckets: gradients travel together, those of the last layers first."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.nets import Net
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.unit02.judges import (
    Seen,
    advise_on_groups,
    cannot_count,
    judge_gradients,
    judge_topic,
    steps_in,
)
from dtlab.grading.unit02.training import Arguments, Training, begin, train
from dtlab.grading.words import amount

__all__ = ["AVERAGE_IN_BUCKETS", "draw_plan", "judge_number_of_buckets", "packed"]

_RANKS = 4  # of the trials in which all-reduces are counted
_ALL = 1 << 20  # bytes: more than any of these models has


class InBuckets(Training):
    """`fn(module, bucket_bytes)` is called when `.grad` is there."""

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        """See `Case`."""
        module, group = begin(given)
        after = lambda: fn(module, given.bucket_bytes, **group)  # noqa: E731
        return train(module, given, lambda: None, after)


def packed(sizes: Sequence[int], bucket_bytes: int, first: int = 0, later: int = 0) -> list[int]:
    """Bytes of the buckets that tensors of these sizes, in this order, fill.

    `first` and `later` are mistakes: what the count of bytes begins with, where it is not 0.
    """
    buckets, filling, counted = list[int](), 0, first
    for size in sizes:
        filling, counted = filling + size, counted + size
        if counted >= bucket_bytes:
            buckets.append(filling)
            filling, counted = 0, later
    return [*buckets, filling] if filling else buckets


def _closed_before(sizes: Sequence[int], bucket_bytes: int) -> int:
    """How many buckets there are where none may take more than `bucket_bytes`."""
    count, filling = 0, bucket_bytes + 1
    for size in sizes:
        filling += size
        if filling > bucket_bytes:
            count, filling = count + 1, size
    return count


def _counts(sizes: Sequence[int], bucket_bytes: int) -> set[int]:
    """How many buckets there are, filled from one end or the other: the end is not its matter."""
    return {len(packed(one, bucket_bytes)) for one in (sizes, sizes[::-1])}


def _exact_limits(sizes: Sequence[int]) -> list[int]:
    """Limits that the first bucket reaches exactly or misses by a byte, and a later one.

    With them, who counts from a byte too many or too few makes another number of buckets.
    """
    runs = {sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i + 1, len(sizes) + 1)}
    limits = []
    for mistake in ("first", "later"):
        for by, candidates in ((-1, sorted(runs)), (1, [run + 1 for run in sorted(runs)])):
            found = (
                limit
                for limit in candidates
                if len(packed(sizes, limit, **{mistake: by})) not in _counts(sizes, limit)
            )
            limits += [limit for limit in (next(found, None),) if limit is not None]
    return limits


def draw_plan(draw: random.Random) -> tuple[Net, int, list[int]]:
    """A frozen and five other layers, and limits of buckets that tell mistakes apart.

    With the first limit there are as many buckets counted from the first layer, of other sizes,
    and another number where a bucket is closed before it is full. The others are `_exact_limits`.
    """
    while True:
        widths = tuple(draw.sample(range(8, 33), 7))
        net = Net("frozen", widths, "a frozen and five other layers")
        trained = [pair for place, pair in enumerate(pairwise(widths)) if place != 1]
        sizes = [4 * size for a, b in trained for size in (a * b, b)]
        backwards, cap = sizes[::-1], 4 * draw.randint(150, 700)
        ours, forwards = packed(backwards, cap), packed(sizes, cap)
        exact = _exact_limits(backwards)
        if (
            len(ours) == len(forwards) in (3, 4)
            and not set(accumulate(forwards[:-1])) & set(accumulate(backwards))
            and _closed_before(backwards, cap) != len(ours)
            and len(packed(backwards, 4 * cap)) < len(ours)
            and len(exact) == 4
        ):
            return net, cap, exact


def _trials(seed: int) -> list[Trial]:
    """Counted on four ranks with seven limits; 1 to 3 ranks; two dtypes; groups."""
    draw = random.Random(seed)
    net, cap, exact = draw_plan(draw)
    counted = [InBuckets(seed, net, bucket_bytes=cap)]
    counted += [InBuckets(seed, net, "gradients", 1, (), n) for n in (*exact, 4, _ALL)]
    alike = Net("chain", (draw.randint(4, 9),) * 5, "four layers of one shape")
    trials = [Trial(_RANKS, counted)]
    for ranks in (1, 2, 3):
        trials.append(Trial(ranks, [InBuckets(seed, alike, bucket_bytes=draw.randint(40, 400))]))
    mixed = Net("mixed", net.sizes[:5], "a layer of float64")
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        *trials,
        Trial(3, [InBuckets(seed, mixed, topic="dtypes", bucket_bytes=_ALL)]),
        Trial(5, [InBuckets(seed, alike, topic="subgroups", groups=groups, bucket_bytes=200)]),
    ]


def _counted(seen: Seen) -> Seen:
    """The trials on as many ranks as are counted on."""
    return [one for one in seen if one.trial.world_size == _RANKS]


def judge_number_of_buckets(seen: Seen) -> Verdict:
    """As many all-reduces as there are buckets, and nothing else."""
    waiting = cannot_count(_counted(seen), "gradients")
    if waiting:
        return waiting
    for one, step in steps_in(_counted(seen), "gradients"):
        sizes = [size for size, _ in step.case.sizes_of_gradients][::-1]
        goal, count = len(packed(sizes, step.case.bucket_bytes)), len(step.all_reduces)
        if step.others:
            names = " and ".join(f"dist.{name}" for name in step.others)
            return lost(f"{step.words(one)}: {names} took part. A bucket takes one all-reduce.")
        if count not in _counts(sizes, step.case.bucket_bytes):
            return lost(
                f"{step.words(one)}: {count} all-reduce{'s' * (count != 1)}, for {goal} "
                f"bucket{'s' * (goal != 1)}. A bucket takes one gradient after another, from the "
                "last parameter on, and is closed by the one with which it has `bucket_bytes` or "
                "more; what is left at the end is a bucket too."
            )
    return ok("one all-reduce for each bucket")


def _judge_bytes(seen: Seen) -> Verdict:
    """All gradients, and nothing else."""
    waiting = cannot_count(_counted(seen), "gradients")
    if waiting:
        return waiting
    for one, step in steps_in(_counted(seen), "gradients"):
        sent = sum(event.bytes for event in step.all_reduces)
        there = sum(size for size, _ in step.case.sizes_of_gradients)
        if sent == there:
            continue
        dtypes = {event.extra.get("dtype", "float32") for event in step.all_reduces}
        advice = (
            "Buckets hold the gradients' own dtype, float32."
            if dtypes - {"float32"}
            else "A bucket is as large as what is in it, and each gradient is in one bucket."
        )
        return lost(
            f"{step.words(one)}: the all-reduces have {amount(sent)}, the gradients "
            f"{amount(there)}. {advice}"
        )
    return ok("as many bytes as the gradients have")


def _judge_order(seen: Seen) -> Verdict:
    """The sizes of the buckets are those of gradients taken from the last one on."""
    waiting = cannot_count(_counted(seen), "gradients")
    if waiting:
        return waiting
    if _judge_bytes(seen).status != "ok":
        return blocked("judged once the all-reduces have as many bytes as the gradients")
    for one, step in steps_in(_counted(seen), "gradients"):
        sizes = [size for size, _ in step.case.sizes_of_gradients][::-1]
        borders = list(accumulate(event.bytes for event in step.all_reduces))
        if not set(borders) <= set(accumulate(sizes)):
            return lost(
                f"{step.words(one)}: the all-reduces have "
                f"{', '.join(str(event.bytes) for event in step.all_reduces)} bytes, and "
                "gradients taken from the last parameter on do not add up to these. Backward "
                "comes to the last layers first: begin there."
            )
    return ok("the last parameters come first")


def _advise_on_dtypes(one: Observation) -> str:
    return "torch.cat of two dtypes makes one of them: a bucket holds gradients of one dtype."


def _judge_dtypes(seen: Seen) -> Verdict:
    """The gradients are right, and none travels as another dtype."""
    if _judge_bytes(seen).status != "ok":
        return blocked("judged once the all-reduces have as many bytes as the gradients")
    verdict = judge_topic("dtypes", "", _advise_on_dtypes)(seen)
    if verdict.status != "ok":
        return verdict
    for one, step in steps_in(seen, "dtypes"):
        sizes = step.case.sizes_of_gradients
        for dtype in ("float32", "float64"):
            there = sum(size for size, name in sizes if name.endswith(dtype))
            sent = sum(e.bytes for e in step.all_reduces if e.extra.get("dtype") == dtype)
            if sent != there:
                return lost(
                    f"{step.words(one)}: {amount(sent)} travel as {dtype}, and the gradients of "
                    f"that dtype have {amount(there)}. {_advise_on_dtypes(one)}"
                )
    return ok("each dtype has buckets of its own")


AVERAGE_IN_BUCKETS = Part(
    name="02/average_in_buckets",
    level=2,
    title="Average in buckets",
    symbol="average_in_buckets",
    grade_id="average_in_buckets-check",
    minutes=20,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "gradients",
                2,
                judge_gradients("every gradient is the mean, on 1 to 4 ranks, in every step"),
            ),
            Rule("all_reduces", 2, judge_number_of_buckets),
            Rule("order", 1, _judge_order),
            Rule("bytes", 1, _judge_bytes),
            Rule("dtypes", 1, _judge_dtypes),
            Rule(
                "subgroups",
                1,
                judge_topic(
                    "subgroups", "right on groups of some of the ranks too", advise_on_groups
                ),
            ),
        ),
    ),
    reference="dtlab.parallel.buckets.in_buckets",
)
