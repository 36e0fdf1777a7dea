"""Level III of unit 01: find and mend five broken programs; choose algorithms for a network.

The programs are in `programs`, as the notebook shows them. Each part is a `mends.Mend`.
Inputs and results are in `diagnose_cases` and `diagnose_sums`, limits to what is sent in
`diagnose_traffic`; the choice of algorithms is in `choose`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.mends import Mend
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.checking.waits import judge_waits
from dtlab.grading.parts import Part
from dtlab.grading.unit01.choose import CHOOSE
from dtlab.grading.unit01.diagnose_cases import Batches, Blocks, Grid
from dtlab.grading.unit01.diagnose_sums import Columns, Rows, judge_columns, judge_rows
from dtlab.grading.unit01.diagnose_traffic import (
    all_reduce_factor,
    judge_mended,
    judge_traffic,
    not_one_row_each,
    only,
    sends_at_most,
    strangers,
    sums_at_most,
    too_much_on_the_wire,
)

__all__ = ["PARTS"]

Runs = list[tuple[int, Sequence[Case]]]  # how many ranks, and what they go through

_PROGRAMS = "dtlab.grading.unit01.programs."
_ELEMENTS = 1 << 16  # of float32, in the trials in which traffic is measured: 262 kB
_BYTES = 4 * _ELEMENTS


def _part(number: int, title: str, minutes: int, difficulty: int, check: Mend) -> Part:
    name = f"mend_{number}"
    return Part(f"01/{name}", 3, title, name, f"{name}-check", minutes, difficulty, check)


def _check(
    trials: Callable[[random.Random, int], Runs], right: str, traffic: Rule
) -> Check:
    """The rules that all five parts have; `trials(draw, seed)` gives world sizes with cases."""

    def made(seed: int) -> list[Trial]:
        return [Trial(ranks, cases) for ranks, cases in trials(random.Random(seed), seed)]

    return Check(made, (Rule("result", 3, judge_mended(right)), traffic))


# 1: all receive first ---------------------------------------------------------------------------


def _block_trials(draw: random.Random, seed: int) -> Runs:
    small: Runs = [(ranks, [Blocks(seed, draw.randint(1, 9))]) for ranks in (1, 3, 5)]
    return [*small, (4, [Blocks(seed, _ELEMENTS)])]


def _one_block_for_each_other(one: Observation, rank: int) -> float:
    return (one.trial.world_size - 1) * _BYTES


_RING = "A block goes to the next neighbour once in each of N-1 rounds."

MEND_1 = _part(
    1,
    "A ring that stands still",
    10,
    1,
    Mend(
        _PROGRAMS + "gather_blocks",
        Trial(5, [Blocks(0, 3)]),
        judge_waits,
        _check(
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

# 2: a collective that some leave out ------------------------------------------------------------


def _batch_trials(draw: random.Random, seed: int) -> Runs:
    def bad(*places: tuple[int, int], steps: int = 3) -> Case:
        return Batches(seed, draw.randint(2, 5), steps, frozenset(places))

    everybody = [(rank, draw.randrange(3)) for rank in range(3)]
    all_at_once = [(rank, 1) for rank in range(3)]
    return [
        (1, [bad(), bad(steps=1), bad((0, draw.randrange(3)))]),
        (2, [bad(), bad((1, 2)), bad((0, 0), (1, 2))]),
        (3, [bad((draw.randrange(3), 0)), bad(*everybody), bad(*all_at_once)]),
        (4, [Batches(seed, _ELEMENTS, 3, frozenset({(2, draw.randrange(3))}))]),
    ]


def _a_gradient_for_each_step(one: Observation, rank: int) -> float:
    return 3 * all_reduce_factor(one.trial.world_size) * _BYTES


_STEP = "A step needs one all-reduce of the gradient, with a number beside it."

MEND_2 = _part(
    2,
    "A batch that one rank leaves out",
    14,
    2,
    Mend(
        _PROGRAMS + "train",
        Trial(4, [Batches(0, 3, 4, frozenset({(2, 1), (0, 2)}))]),
        judge_waits,
        _check(
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

# 3: groups in another order ---------------------------------------------------------------------


def _grid_trials(draw: random.Random, seed: int) -> Runs:
    sizes = draw.randint(1, 9), draw.randint(1, 9)
    small: Runs = [(1, [Grid(seed, sizes[0], 1)]), (4, [Grid(seed, sizes[1], 2)])]
    return [*small, (6, [Grid(seed, _ELEMENTS // 2, 3)])]


def _row_and_column(one: Observation, rank: int) -> float:
    return (all_reduce_factor(3) * _BYTES) / 2 + all_reduce_factor(2) * _BYTES


_GRID = "One all-reduce on the row and one on the column are what there is to do."

MEND_3 = _part(
    3,
    "Rows and columns",
    12,
    2,
    Mend(
        _PROGRAMS + "sum_grid",
        Trial(6, [Grid(0, 3, 3)]),
        judge_waits,
        _check(
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

# 4: a buffer that is filled again ---------------------------------------------------------------


def _row_trials(draw: random.Random, seed: int) -> Runs:
    small: Runs = [(ranks, [Rows(seed, draw.randint(1, 9))]) for ranks in (1, 3)]
    return [*small, (4, [Rows(seed, _ELEMENTS)])]


def _rows_and_their_sum(one: Observation, rank: int) -> float:
    rows = one.trial.world_size - 1 if rank == 0 else 0
    return (rows + all_reduce_factor(one.trial.world_size)) * _BYTES


_SHARE = "Rank 0 sends each rank its row, in one message; the broadcast is for the scale."

MEND_4 = _part(
    4,
    "Rows that never arrive",
    12,
    2,
    Mend(
        _PROGRAMS + "share_out",
        Trial(5, [Rows(0, 4)]),
        judge_rows,
        _check(
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

# 5: a slice that is not in one piece ------------------------------------------------------------

_CLASSES = 300  # of the table in which traffic is measured: few enough for a sum per class


def _column_trials(draw: random.Random, seed: int) -> Runs:
    small: Runs = [(ranks, [Columns(seed, draw.randint(2, 9))]) for ranks in (1, 3)]
    return [*small, (4, [Columns(seed, _CLASSES)])]


def _two_columns_and_a_number(one: Observation) -> float:
    return all_reduce_factor(one.trial.world_size) * (8 * _CLASSES + 4)


_TABLE = "Two columns are to be summed, in one all-reduce or two, and the number of samples."

MEND_5 = _part(
    5,
    "A table that is summed in the wrong places",
    12,
    2,
    Mend(
        _PROGRAMS + "sum_columns",
        Trial(2, [Columns(0, 5)]),
        judge_columns,
        _check(
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

PARTS = (MEND_1, MEND_2, MEND_3, MEND_4, MEND_5, CHOOSE)
