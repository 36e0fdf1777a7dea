"""01/fix_3: fix all-reduces that ranks call on their groups in different orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import Fault, Faulty, Noted
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.values import labelled, total, wrong_sum
from dtlab.checks.parts import Part
from dtlab.checks.questions.waits import judge_waits
from dtlab.predict.units import counted
from dtlab.units.unit01.fixes import BYTES, ELEMENTS, all_reduced, fix_program, traffic

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Grid(Faulty):
    """A call of `sum_grid(outputs, gradients, per_row)`, in place.

    `outputs` has `size` elements, and `gradients` has twice as many.
    """

    seed: int
    size: int
    per_row: int
    topic: str = "result"

    def __str__(self) -> str:
        return f"{counted(self.per_row, 'rank')} in a row"

    def inputs(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and gradients of a rank."""
        return labelled(self.seed, self.size, rank), labelled(self.seed + 1, 2 * self.size, rank)

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return *self.inputs(rank), self.per_row

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        outputs, gradients, per_row = given
        fn(outputs, gradients, per_row)
        return {"outputs": outputs, "gradients": gradients}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        ranks = range(len(results))
        inputs = [self.inputs(rank) for rank in ranks]
        for rank, noted in enumerate(results):
            row = [other for other in ranks if other // self.per_row == rank // self.per_row]
            column = [other for other in ranks if other % self.per_row == rank % self.per_row]
            for which, (name, members) in enumerate((("outputs", row), ("gradients", column))):
                parts = {other: inputs[other][which] for other in ranks}
                wrong = wrong_sum(noted[name], parts, members)
                swapped = total(parts, column if members is row else row)
                if wrong and same(noted[name], swapped, dtype=True):
                    wrong += " Sum the outputs over the row, and the gradients over the column."
                if wrong:
                    yield "result", f"rank {rank}, {name}: {wrong}"


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    sizes = ((1, draw.randint(1, 9), 1), (4, draw.randint(1, 9), 2), (6, ELEMENTS // 2, 3))
    return [Trial(ranks, [Grid(seed, size, per_row)]) for ranks, size, per_row in sizes]


PART = Part(
    "01/fix_3",
    3,
    "Rows and columns",
    12,
    2,
    fix_program(
        "sum_grid",
        Trial(6, [Grid(0, 3, 3)]),
        judge_waits,
        _trials,
        "both sums are right, on grids of 1, 4 and 6 ranks",
        "one all-reduce on the row, one on the column",
        traffic(
            ("all_reduce",),
            2,
            lambda ranks, rank: all_reduced(3, BYTES / 2) + all_reduced(2, BYTES),
            "One all-reduce on the row and one on the column are enough.",
        ),
    ),
)
