"""01/fix_5: fix an all-reduce of a slice that is not contiguous in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import Fault, Noted
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.values import labelled, total, wrong_sum
from dtlab.checks.parts import Part
from dtlab.checks.questions.quantities import short, whole
from dtlab.checks.words import amount
from dtlab.predict.units import counted
from dtlab.units.unit01.fixes import (
    Returning,
    all_reduced,
    are_tensors,
    compared,
    fix_program,
    traffic,
)

if TYPE_CHECKING:
    import torch

_NOT_CONTIGUOUS = (
    " An all-reduce of a slice that is not contiguous has summed elements that follow one another "
    "in memory, not those of the slice."
)
_UNCHANGED = (
    " The table is unchanged: a sum in a copy is not in the table until you write it back."
)
_CLASSES = 300  # rows of the table in the trial that measures traffic


@dataclass(frozen=True)
class Columns(Returning):
    """A call of `sum_columns(table)`, in place, with `classes` rows and three columns."""

    seed: int
    classes: int

    def __str__(self) -> str:
        return f"{self.classes} classes"

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor]:
        """The table of a rank."""
        return (labelled(self.seed, 3 * self.classes, rank).abs().view(self.classes, 3),)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Sequence[Any]) -> Any:
        from dtlab.ranks.record.layouts import unchecked_layouts

        with unchecked_layouts():
            return Returning.on_rank(fn, given) | {"table": given[0]}

    def tables(self, ranks: int) -> dict[int, torch.Tensor]:
        """The table of each rank."""
        return {rank: self.given(rank, ranks)[0] for rank in range(ranks)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        tables = self.tables(len(results))
        wanted = total(tables, list(tables))[:, 1].sum()
        for rank, noted in enumerate(results):
            table, samples = noted["table"], noted["returned"]
            for column in (0, 1):
                parts = {other: values[:, column] for other, values in tables.items()}
                wrong = wrong_sum(table[:, column], parts, list(tables))
                if wrong:
                    why = _NOT_CONTIGUOUS * self._in_memory_order(table, tables, rank)
                    why = _UNCHANGED if same(table, tables[rank], dtype=True) else why
                    yield "result", f"rank {rank}, column {column}: {wrong}{why}"
            if not same(table[:, 2], tables[rank][:, 2], dtype=True):
                message = "column 2 has changed. Each rank must keep its own column 2."
                yield "result", f"rank {rank}: {message}"
            is_tensor = are_tensors([samples], 1)
            if not is_tensor or not same(samples.view(-1), wanted.view(-1), dtype=True):
                message = "return the number of samples of all ranks, as before."
                if is_tensor and (samples == len(results) * wanted).all():
                    message += " You sum them once more, after column 1 holds the sum."
                yield "result", f"rank {rank}: {message}"

    def _in_memory_order(
        self, table: torch.Tensor, tables: Mapping[int, torch.Tensor], rank: int
    ) -> bool:
        """Whether all-reduces of both columns, or of each, have begun where the slice begins."""
        count = self.classes
        for slices in ([(0, 2 * count)], [(0, count), (1, count)]):
            rows = {other: each.flatten().clone() for other, each in tables.items()}
            for start, length in slices:
                part = slice(start, start + length)
                summed = total({other: row[part] for other, row in rows.items()}, list(rows))
                for row in rows.values():
                    row[part] = summed
            if same(table.flatten(), rows[rank], dtype=True):
                return True
        return False


# The diagnosis: which elements the all-reduce really sums ---------------------------------------

_FORM = 'Write {"bytes": number, "summed": {(row, column), ...}}.'


def _misjudged(run: Observation, diagnosis: Mapping[str, Any]) -> str:
    """A message about {"bytes": of the wrong all-reduce, "summed": {(row, column)}}, or empty."""
    (case,) = run.trial.cases
    assert isinstance(case, Columns)
    assert run.trace is not None
    sizes = sorted({event.bytes for event in run.trace.events if event.name == "all_reduce"})
    size = whole(diagnosis["bytes"])
    if size is None:
        return f"{short(diagnosis['bytes'])} is not a number of bytes. {_FORM}"
    if size not in sizes:
        return (
            f"with {case.classes} classes, the trace has no all_reduce of {size} bytes. How many "
            "elements does each all_reduce have, and how many bytes does an element take?"
        )
    if size != sizes[-1]:
        return f"the all_reduce of {amount(sizes[0])} sums the samples, and is correct."
    try:
        answer = {(int(row), int(column)) for row, column in diagnosis["summed"]}
    except (TypeError, ValueError):
        return f"the elements are {diagnosis['summed']!r}. {_FORM}"
    tables = case.tables(run.trial.world_size)
    elements = (run.results[0][0]["table"] == total(tables, list(tables))).nonzero().tolist()
    summed = {(row, column) for row, column in elements}
    if answer == summed:
        return ""
    message = f"you name {counted(len(answer), 'element')}, and {len(summed)} hold the sum."
    if len(answer) == len(summed):
        message = "the number of elements is right, but not all of these elements hold the sum."
    return (
        f"{message} The all-reduce begins where the slice begins, and continues through memory, "
        "in which one row follows another."
    )


judge_columns = compared(("bytes", "summed"), _FORM, "these elements hold the sum", _misjudged)


# The fixed program ------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    small = [Trial(ranks, [Columns(seed, draw.randint(2, 9))]) for ranks in (1, 3)]
    return [*small, Trial(4, [Columns(seed, _CLASSES)])]


PART = Part(
    "01/fix_5",
    3,
    "A table of counts",
    12,
    2,
    fix_program(
        "sum_columns",
        Trial(2, [Columns(0, 5)]),
        judge_columns,
        _trials,
        "two columns hold the sum and the third is unchanged, on 1, 3 and 4 ranks",
        "two columns are summed, and no more",
        traffic(
            ("all_reduce", "send", "recv"),
            16,
            lambda ranks, rank: all_reduced(ranks, 8 * _CLASSES + 4),
            "Sum only two columns, in one all-reduce or two, and the number of samples.",
        ),
    ),
)
