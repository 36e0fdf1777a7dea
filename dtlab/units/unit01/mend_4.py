"""01/mend_4: a buffer that is filled again."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Rule
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mends import Mend
from dtlab.units.unit01.diagnose_cases import Rows, judge_rows
from dtlab.units.unit01.diagnose_traffic import (
    BYTES,
    ELEMENTS,
    PROGRAMS,
    Runs,
    all_reduce_factor,
    check_mended,
    judge_traffic,
    not_one_row_each,
    only,
    too_much_on_the_wire,
)


def _row_trials(draw: random.Random, seed: int) -> Runs:
    small: Runs = [(ranks, [Rows(seed, draw.randint(1, 9))]) for ranks in (1, 3)]
    return [*small, (4, [Rows(seed, ELEMENTS)])]


def _rows_and_their_sum(one: Observation, rank: int) -> float:
    rows = one.trial.world_size - 1 if rank == 0 else 0
    return (rows + all_reduce_factor(one.trial.world_size)) * BYTES


_SHARE = "Rank 0 sends each rank its row, in one message; the broadcast is for the scale."

PART = Part(
    "01/mend_4",
    3,
    "Rows that never arrive",
    12,
    2,
    Mend(
        PROGRAMS + "share_out",
        Trial(5, [Rows(0, 4)]),
        judge_rows,
        check_mended(
            _row_trials,
            "each rank has its row, and all have the sum, on 1, 3 and 4 ranks",
            Rule(
                "traffic",
                1,
                judge_traffic(
                    "rank 0 sends each rank its row, once",
                    only(("send", "recv", "broadcast", "all_reduce"), 5, _SHARE),
                    not_one_row_each,
                    too_much_on_the_wire(_rows_and_their_sum, _SHARE),
                ),
            ),
        ),
    ),
)
