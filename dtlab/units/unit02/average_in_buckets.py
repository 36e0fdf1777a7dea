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
from dtlab.units.unit02.average_gradients import (
    Seen,
    advise_on_groups,
    amounts,
    cannot_count,
    judge_gradients,
    judge_topic,
    steps_in,
)
from dtlab.units.unit02.training import Arguments, Step, Training, begin, train

__all__ = ["PART", "draw_plan", "filled_from_the_front", "judge_number_of_buckets", "packed"]

# Which buckets gradients fill, and models and limits of which a check can tell mistakes apart ----


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


def numbers_of_buckets(sizes: Sequence[int], bucket_bytes: int) -> set[int]:
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
                if len(packed(sizes, limit, **{mistake: by}))
                not in numbers_of_buckets(sizes, limit)
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


# The part ----------------------------------------------------------------------------------------

_RANKS = 4  # of the trials in which all-reduces are counted
_ALL = 1 << 20  # bytes: more than any of these models has


class InBuckets(Training):
    """`fn(module, bucket_bytes)` is called when `.grad` is there."""

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        module, group = begin(given)
        after = lambda: fn(module, given.bucket_bytes, **group)  # noqa: E731
        return train(module, given, lambda: None, after)


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
    bias = 8 * mixed.sizes[2]  # bytes of the float64 layer's: it fills a bucket, if just so
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        *trials,
        Trial(3, [InBuckets(seed, mixed, topic="dtypes", bucket_bytes=n) for n in (_ALL, bias)]),
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
        if count not in numbers_of_buckets(sizes, step.case.bucket_bytes):
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
            f"{step.words(one)}: the all-reduces have {amounts(sent, there)[0]}, the gradients "
            f"{amounts(sent, there)[1]}. {advice}"
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


def filled_from_the_front(seen: Seen) -> bool:
    """Whether the sizes of all buckets are those of gradients taken from the first one on."""
    counted = steps_in(_counted(seen), "gradients")
    fit = {True: 0, False: 0}  # from the first one on, and from the last one
    for _, step in counted:
        sizes = [size for size, _ in step.case.sizes_of_gradients]
        borders = set(accumulate(event.bytes for event in step.all_reduces))
        for front in fit:
            fit[front] += borders <= set(accumulate(sizes if front else sizes[::-1]))
    return fit[True] == len(counted) > fit[False]


def _advise_on_dtypes(one: Observation) -> str:
    return "torch.cat of two dtypes makes one of them: a bucket holds gradients of one dtype."


def _wrong_amount(one: Observation, step: Step, dtype: str) -> str:
    """Says that other bytes travel as this dtype than gradients have; empty if none do."""
    there = sum(_sizes_of(step, dtype))
    sent = sum(event.bytes for event in step.all_reduces if event.extra.get("dtype") == dtype)
    if sent == there:
        return ""
    as_sent, as_there = amounts(sent, there)
    return (
        f"{as_sent} travel as {dtype}, and the gradients of that dtype have {as_there}. "
        f"{_advise_on_dtypes(one)}"
    )


def _wrong_number(step: Step, dtype: str) -> str:
    """Says that gradients of this dtype are in more or fewer buckets than the rule makes."""
    sizes, limit = _sizes_of(step, dtype), step.case.bucket_bytes
    count = sum(event.extra.get("dtype") == dtype for event in step.all_reduces)
    goal = len(packed(sizes, limit))
    if count in numbers_of_buckets(sizes, limit):
        return ""
    return (
        f"{count} all-reduce{'s' * (count != 1)} of {dtype}, for {goal} "
        f"bucket{'s' * (goal != 1)}. `bucket_bytes` counts bytes: an element of float64 has 8 of "
        "them, and each dtype has a count of its own."
    )


def _sizes_of(step: Step, dtype: str) -> list[int]:
    """Bytes of the gradients of this dtype, the last one first."""
    return [size for size, name in step.case.sizes_of_gradients[::-1] if name.endswith(dtype)]


def _judge_dtypes(seen: Seen) -> Verdict:
    """The gradients are right, none travels as another dtype, and each dtype fills its own."""
    if _judge_bytes(seen).status != "ok":
        return blocked("judged once the all-reduces have as many bytes as the gradients")
    verdict = judge_topic("dtypes", "", _advise_on_dtypes)(seen)
    if verdict.status != "ok":
        return verdict
    known = judge_number_of_buckets(seen).status == "ok"
    for one, step in steps_in(seen, "dtypes"):
        for dtype in ("float32", "float64"):
            wrong = _wrong_amount(one, step, dtype)
            wrong = wrong or (_wrong_number(step, dtype) if known else "")
            if wrong:
                return lost(f"{step.words(one)}: {wrong}")
    return ok("each dtype has buckets of its own")


PART = Part(
    name="02/average_in_buckets",
    level=2,
    title="Average in buckets",
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
    reference="dtlab.parallel.data.buckets.in_buckets",
)
