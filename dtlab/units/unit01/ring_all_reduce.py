"""01/ring_all_reduce: write a ring all-reduce, as a reduce-scatter and an all-gather."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit01.calls import AllReduce, draw_groups
from dtlab.units.unit01.judges import chunks_pattern, judge_result, judge_subgroups
from dtlab.units.unit01.reduce_scatter import BYTES, RANKS, ring_rules


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


PART = Part(
    name="01/ring_all_reduce",
    level=2,
    title="The ring all-reduce",
    minutes=35,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "result",
                3,
                judge_result(
                    "the sum is right and in place on 1, 2, 3, 4 and 5 ranks, also if N does not "
                    "divide the size and with fewer elements than ranks",
                    chunks_pattern,
                ),
            ),
            Rule("subgroups", 2, judge_subgroups),
            *ring_rules(halves=2, points=3),
        ),
    ),
    reference="dtlab.collectives.ring_all_reduce",
)
