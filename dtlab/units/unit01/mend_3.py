"""01/mend_3: groups in another order."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Rule
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.waits import judge_waits
from dtlab.grading.scripts.mends import Mend
from dtlab.units.unit01.diagnose_cases import Grid
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


def _grid_trials(draw: random.Random, seed: int) -> Runs:
    sizes = draw.randint(1, 9), draw.randint(1, 9)
    small: Runs = [(1, [Grid(seed, sizes[0], 1)]), (4, [Grid(seed, sizes[1], 2)])]
    return [*small, (6, [Grid(seed, ELEMENTS // 2, 3)])]


def _row_and_column(one: Observation, rank: int) -> float:
    return (all_reduce_factor(3) * BYTES) / 2 + all_reduce_factor(2) * BYTES


_GRID = "One all-reduce on the row and one on the column are what there is to do."

PART = Part(
    "01/mend_3",
    3,
    "Rows and columns",
    12,
    2,
    Mend(
        PROGRAMS + "sum_grid",
        Trial(6, [Grid(0, 3, 3)]),
        judge_waits,
        check_mended(
            _grid_trials,
            "both sums are right, on grids of 1, 4 and 6 ranks",
            Rule(
                "traffic",
                1,
                judge_traffic(
                    "one all-reduce on the row, one on the column",
                    only(("all_reduce",), 2, _GRID),
                    too_much_on_the_wire(_row_and_column, _GRID),
                ),
            ),
        ),
    ),
)
