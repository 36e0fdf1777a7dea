"""01/fix_4: fix an exchange of rows in which both neighbours may be the same rank."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import Fault, Noted
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.values import labelled
from dtlab.checks.parts import Part
from dtlab.checks.questions.quantities import short, whole
from dtlab.predict.units import counted
from dtlab.units.unit01.fixes import (
    BYTES,
    ELEMENTS,
    Returning,
    compared,
    fix_program,
    name_of,
    strangers,
    traffic,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Strips(Returning):
    """A call of `with_neighbours(strip)`; every rank has `height` rows of a periodic field."""

    seed: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{counted(self.height, 'row')} on each rank"

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor]:
        return (labelled(self.seed, self.height * self.width, rank).view(self.height, self.width),)

    def field(self, ranks: int) -> list[torch.Tensor]:
        """The rows of all ranks."""
        return [row for rank in range(ranks) for row in self.given(rank, ranks)[0]]

    def advice(self, trouble: str) -> str:
        """Advice on neighbours of which one is the rank itself."""
        if "itself" not in trouble:
            return ""
        return "The field is periodic: the rows above and below are those of rank ± 1, modulo N."

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        field, rows = self.field(len(results)), self.height + 2
        for rank, noted in enumerate(results):
            got = noted["returned"]
            if isinstance(got, str | list) or got.shape != (rows, self.width):
                yield "result", f"rank {rank}: return one tensor, with {counted(rows, 'row')}."
                return
            for place in range(rows):
                wanted = (rank * self.height + place - 1) % len(field)
                if not same(got[place], field[wanted], dtype=True):
                    name = name_of(got[place], field, "row {} of the field")
                    message = f"rank {rank}: place {place} holds {name}, not row {wanted}."
                    yield "result", message


# The diagnosis: on how many ranks, and which rows are on top ------------------------------------

_FORM = 'Write {"ranks": number, "top": {rank: row of the field, ...}}.'


def _misjudged(run: Observation, diagnosis: Mapping[str, Any]) -> str:
    """A message about {"ranks": number, "top": {rank: row}}; empty if it is right."""
    (case,) = run.trial.cases
    assert isinstance(case, Strips)
    ranks = run.trial.world_size
    if whole(diagnosis["ranks"]) != ranks:
        number = short(diagnosis["ranks"])
        return f"the number is not {number}. Run it on 2 to 6 ranks, and compare with the field."
    if not isinstance(diagnosis["top"], Mapping):
        return f"top is {diagnosis['top']!r}. {_FORM}"
    field = case.field(ranks)
    for rank in range(ranks):
        answer = diagnosis["top"].get(rank)
        row = whole(answer)
        if answer is None:
            return f"the row of rank {rank} is missing. {_FORM}"
        if row is None:
            return f"{short(answer)} is not the number of a row, for rank {rank}. {_FORM}"
        got = run.results[0][rank]["returned"][0]
        if not (0 <= row < len(field) and same(got, field[row], dtype=True)):
            return f"rank {rank} does not have row {row} on top. Which row does it receive first?"
    return ""


judge_top = compared(("ranks", "top"), _FORM, "these rows are on top there", _misjudged)


# The fixed program ------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    sizes = ((3, draw.randint(2, 4), 2), (2, draw.randint(2, 4), 3), (4, 2, ELEMENTS // 2))
    return [Trial(ranks, [Strips(seed, height, width)]) for ranks, height, width in sizes]


PART = Part(
    "01/fix_4",
    3,
    "The rows of a field",
    12,
    2,
    fix_program(
        "with_neighbours",
        Trial(2, [Strips(0, 3, 4)]),
        judge_top,
        _trials,
        "every row is in its place, on 2, 3 and 4 ranks",
        "each rank sends one row to each neighbour",
        traffic(
            ("send", "recv"),
            4,
            lambda ranks, rank: BYTES,
            "Send each of the two neighbours one row, in one message.",
            strangers,
        ),
    ),
)
