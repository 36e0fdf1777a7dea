"""01/mend_2: a collective that some leave out."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Rule
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.waits import judge_waits
from dtlab.grading.scripts.mends import Mend
from dtlab.units.unit01.diagnose_cases import Batches
from dtlab.units.unit01.diagnose_traffic import (
    BYTES,
    ELEMENTS,
    PROGRAMS,
    Runs,
    all_reduce_factor,
    check_mended,
    judge_traffic,
    only,
    too_much_on_the_wire,
)


def _batch_trials(draw: random.Random, seed: int) -> Runs:
    def bad(*places: tuple[int, int], steps: int = 3) -> Case:
        return Batches(seed, draw.randint(2, 5), steps, frozenset(places))

    everybody = [(rank, draw.randrange(3)) for rank in range(3)]
    all_at_once = [(rank, 1) for rank in range(3)]
    return [
        (1, [bad(), bad(steps=1), bad((0, draw.randrange(3)))]),
        (2, [bad(), bad((1, 2)), bad((0, 0), (1, 2))]),
        (3, [bad((draw.randrange(3), 0)), bad(*everybody), bad(*all_at_once)]),
        (4, [Batches(seed, ELEMENTS, 3, frozenset({(2, draw.randrange(3))}))]),
    ]


def _a_gradient_for_each_step(one: Observation, rank: int) -> float:
    return 3 * all_reduce_factor(one.trial.world_size) * BYTES


_STEP = "A step needs one all-reduce of the gradient, with a number beside it."

PART = Part(
    "01/mend_2",
    3,
    "A batch that one rank leaves out",
    14,
    2,
    Mend(
        PROGRAMS + "train",
        Trial(4, [Batches(0, 3, 4, frozenset({(2, 1), (0, 2)}))]),
        judge_waits,
        check_mended(
            _batch_trials,
            "the weights are right on 1 to 4 ranks, wherever the bad batches are",
            Rule(
                "traffic",
                1,
                judge_traffic(
                    "a step sends little more than one gradient",
                    only(("all_reduce",), 6, _STEP),
                    too_much_on_the_wire(_a_gradient_for_each_step, _STEP),
                ),
            ),
        ),
    ),
)
