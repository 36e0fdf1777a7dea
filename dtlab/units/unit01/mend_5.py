"""01/mend_5: a slice that is not in one piece."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Rule
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mends import Mend
from dtlab.units.unit01.diagnose_cases import Columns, judge_columns
from dtlab.units.unit01.diagnose_traffic import (
    PROGRAMS,
    Runs,
    all_reduce_factor,
    check_mended,
    judge_traffic,
    only,
    sums_at_most,
)

_CLASSES = 300  # of the table in which traffic is measured: few enough for a sum per class


def _column_trials(draw: random.Random, seed: int) -> Runs:
    small: Runs = [(ranks, [Columns(seed, draw.randint(2, 9))]) for ranks in (1, 3)]
    return [*small, (4, [Columns(seed, _CLASSES)])]


def _two_columns_and_a_number(one: Observation) -> float:
    return all_reduce_factor(one.trial.world_size) * (8 * _CLASSES + 4)


_TABLE = "Two columns are to be summed, in one all-reduce or two, and the number of samples."

PART = Part(
    "01/mend_5",
    3,
    "A table that is summed in the wrong places",
    12,
    2,
    Mend(
        PROGRAMS + "sum_columns",
        Trial(2, [Columns(0, 5)]),
        judge_columns,
        check_mended(
            _column_trials,
            "both columns hold the sum and the third stays, on 1, 3 and 4 ranks",
            Rule(
                "traffic",
                1,
                judge_traffic(
                    "two columns are summed, and no more",
                    only(("all_reduce", "send", "recv"), 16, _TABLE),
                    sums_at_most(_two_columns_and_a_number, _TABLE),
                ),
            ),
        ),
    ),
)
