"""01/ring_all_reduce: write a ring all-reduce, as a reduce-scatter and an all-gather."""

from __future__ import annotations

import random

from dtlab.checks.comparison import same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Seen
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.parts import Part
from dtlab.units.unit01.calls import AllReduce, draw_groups
from dtlab.units.unit01.judges import (
    DIRECTION,
    calls_of,
    chunks_pattern,
    first_mistake,
    rule_of_result,
    rule_of_subgroups,
)
from dtlab.units.unit01.reduce_scatter import BYTES, RANKS, ring_rules, sends_as_a_ring


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 5 ranks, with sizes divisible by N or not, and with fewer than N elements."""
    draw = random.Random(seed)
    trials = [Trial(RANKS, [AllReduce(seed, BYTES // 4)])]
    for ranks in range(1, 6):
        divides = ranks * draw.randint(2, 4)
        uneven = divides + draw.randint(1, max(1, ranks - 1))
        few = draw.randint(1, max(1, ranks - 1))
        trials.append(Trial(ranks, [AllReduce(seed, size) for size in (divides, uneven, few)]))
    groups = draw_groups(draw, world_size=5, size=3)
    return [*trials, Trial(5, [AllReduce(seed, 7, groups)])]


def _pattern(seen: Seen) -> str:
    """Advice if the results follow a known pattern, or if only the bytes are those of a ring."""
    mistake = first_mistake(seen)
    if chunks_pattern(seen) or not sends_as_a_ring(seen, halves=2) or "unchanged" in mistake:
        return chunks_pattern(seen)
    if " only, those of" in mistake:
        return (
            "What arrives is added to itself: receive into a separate buffer, "
            "torch.empty_like(chunk), and add that to your chunk."
        )
    if mistake.endswith(" twice."):
        return (
            "In the first N-1 rounds each rank adds its chunk to what arrives; in the last N-1, "
            "the finished chunk that arrives replaces yours: copy_(), not +=."
        )
    if " only." in mistake and all(map(_holds_no_sum, seen)):
        return (
            "No chunk of the result holds a sum. In the first N-1 rounds, add what arrives to "
            "your chunk, in place: chunk += buffer. chunk = chunk + buffer makes a new tensor, "
            "and copy_() replaces the values. If your code does so already, look at the numbers "
            "of the chunks in the last N-1 rounds: first send the chunk that you completed last."
        )
    if any(map(_has_only_first_half, seen)):
        return (
            "The tensor holds what it had after the first N-1 rounds. In the last N-1, write the "
            "chunk that arrives into it: chunks[i].copy_(buffer). chunks[i] = buffer changes only "
            "your list of chunks."
        )
    if " hold" in mistake or " should be " in mistake:
        return (
            f"You send as many bytes as a ring, so look at the numbers of the chunks. {DIRECTION} "
            "Print which chunk you send and which one you receive in each round, and compare them "
            "with the drawing in the text."
        )
    return ""


def _holds_no_sum(run: Observation) -> bool:
    """Whether each chunk of rank 0's results is that of one rank."""
    ranks = range(run.trial.world_size)
    for call, results in zip(calls_of(run), run.results, strict=False):
        parts = [call.input(rank).tensor_split(len(ranks)) for rank in ranks]
        for number, chunk in enumerate(results[0].result.tensor_split(len(ranks))):
            if not any(same(chunk, part[number]) for part in parts):
                return False
    return bool(run.results)


def _has_only_first_half(run: Observation) -> bool:
    """Whether rank 0 of three or more still has only the sums of the ring's first half.

    Then it has all summands in one chunk, and in the next one N-1, N-2 and so on, up to its own.
    """
    if run.trial.world_size < 3 or not run.results:
        return False
    call, ranks = calls_of(run)[0], range(run.trial.world_size)
    parts = [call.input(rank).tensor_split(len(ranks)) for rank in ranks]
    got = run.results[0][0].result.tensor_split(len(ranks))
    return any(
        all(
            same(
                got[(first + number * step) % len(ranks)],
                sum(parts[-other * step][(first + number * step) % len(ranks)]
                    for other in ranks[: len(ranks) - number]),
            )
            for number in ranks
        )
        for first in ranks
        for step in (1, -1)
    )  # fmt: skip


PART = Part(
    name="01/ring_all_reduce",
    level=2,
    title="The ring all-reduce",
    minutes=35,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule_of_result(
                3,
                "the sum is right and in place on 1, 2, 3, 4 and 5 ranks, even if N does not "
                "divide the size, and with fewer elements than ranks",
                _pattern,
            ),
            rule_of_subgroups(2),
            *ring_rules(halves=2, points=3),
        ),
    ),
    reference="dtlab.simple.ring_all_reduce",
    short_path="1 to 5",
)
