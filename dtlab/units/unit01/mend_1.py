"""01/mend_1: all receive first."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Rule
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.waits import judge_waits
from dtlab.grading.scripts.mends import Mend
from dtlab.units.unit01.diagnose_cases import Blocks
from dtlab.units.unit01.diagnose_traffic import (
    BYTES,
    ELEMENTS,
    PROGRAMS,
    Runs,
    check_mended,
    judge_traffic,
    only,
    sends_at_most,
    strangers,
    too_much_on_the_wire,
)


def _block_trials(draw: random.Random, seed: int) -> Runs:
    small: Runs = [(ranks, [Blocks(seed, draw.randint(1, 9))]) for ranks in (1, 3, 5)]
    return [*small, (4, [Blocks(seed, ELEMENTS)])]


def _one_block_for_each_other(one: Observation, rank: int) -> float:
    return (one.trial.world_size - 1) * BYTES


_RING = "A block goes to the next neighbour once in each of N-1 rounds."

PART = Part(
    "01/mend_1",
    3,
    "A ring that stands still",
    10,
    1,
    Mend(
        PROGRAMS + "gather_blocks",
        Trial(5, [Blocks(0, 3)]),
        judge_waits,
        check_mended(
            _block_trials,
            "all blocks are in their places, on 1 to 5 ranks",
            Rule(
                "traffic",
                1,
                judge_traffic(
                    "blocks travel round the ring, N-1 from each rank",
                    only(("send", "recv"), 6, _RING),
                    strangers,
                    sends_at_most(_one_block_for_each_other, _RING),
                    too_much_on_the_wire(_one_block_for_each_other, _RING),
                ),
            ),
        ),
    ),
)
