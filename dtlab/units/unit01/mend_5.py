"""01/mend_5: a slice that is not in one piece."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.criteria import Fault, Noted
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.values import labelled, total, wrong_sum
from dtlab.grading.parts import Part
from dtlab.grading.questions.quantities import short, whole
from dtlab.grading.words import amount
from dtlab.units.unit01.mending import (
    Returning,
    all_reduced,
    are_tensors,
    compared,
    mend,
    same,
    traffic,
)

if TYPE_CHECKING:
    import torch

_CLASSES = 300  # of the table in which traffic is measured: few enough for a sum per class


@dataclass(frozen=True)
class Columns(Returning):
    """`sum_columns(table)`, in place, of a table with so many classes and three columns."""

    seed: int
    classes: int

    def __str__(self) -> str:
        return f"{self.classes} classes"

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor]:
        """The table of a rank."""
        return (labelled(self.seed, 3 * self.classes, rank).abs().view(self.classes, 3),)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Sequence[Any]) -> Any:
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
                parts = {other: each[:, column] for other, each in tables.items()}
                wrong = wrong_sum(table[:, column], parts, list(tables))
                if wrong:
                    yield "result", f"rank {rank}, column {column}: {wrong}"
            if not same(table[:, 2], tables[rank][:, 2]):
                words = "column 2 has changed. It is this rank's own, and stays."
                yield "result", f"rank {rank}: {words}"
            if not are_tensors([samples], 1) or not same(samples.view(-1), wanted.view(-1)):
                words = "the samples of all ranks are to be returned, as before."
                yield "result", f"rank {rank}: {words}"


# The diagnosis: which elements the all-reduce really sums ---------------------------------------

_FORM = 'Write {"bytes": number, "summed": {(row, column), ...}}.'


def _misjudged(one: Observation, diagnosis: Mapping[str, Any]) -> str:
    """What is wrong with {"bytes": of the all-reduce at fault, "summed": {(row, column)}}."""
    (case,) = one.trial.cases
    assert isinstance(case, Columns)
    assert one.trace is not None
    sizes = sorted({event.bytes for event in one.trace.events if event.name == "all_reduce"})
    size = whole(diagnosis["bytes"])
    if size is None:
        return f"{short(diagnosis['bytes'])} is no number of bytes. {_FORM}"
    if size not in sizes:
        return (
            f"the trace has no all_reduce of {size} bytes. How many elements does each of them "
            "have, and how many bytes has one?"
        )
    if size != sizes[-1]:
        return f"the all_reduce of {amount(sizes[0])} sums the samples, and does that right."
    try:
        said = {(int(row), int(column)) for row, column in diagnosis["summed"]}
    except (TypeError, ValueError):
        return f"the elements are {diagnosis['summed']!r}. {_FORM}"
    tables = case.tables(one.trial.world_size)
    summed = (one.results[0][0]["table"] == total(tables, list(tables))).nonzero().tolist()
    found = {(row, column) for row, column in summed}
    if said == found:
        return ""
    words = f"you name {len(said)} elements, and {len(found)} hold the sum."
    if len(said) == len(found):
        words = "it is so many elements, but others."
    return (
        f"{words} The all-reduce begins where the slice begins, and goes on through memory, where "
        "a row follows the other."
    )


judge_columns = compared(("bytes", "summed"), _FORM, "these elements hold the sum", _misjudged)


# The mended program -----------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    small = [Trial(ranks, [Columns(seed, draw.randint(2, 9))]) for ranks in (1, 3)]
    return [*small, Trial(4, [Columns(seed, _CLASSES)])]


PART = Part(
    "01/mend_5",
    3,
    "A table that is summed in the wrong places",
    12,
    2,
    mend(
        "sum_columns",
        Trial(2, [Columns(0, 5)]),
        judge_columns,
        _trials,
        "both columns hold the sum and the third stays, on 1, 3 and 4 ranks",
        "two columns are summed, and no more",
        traffic(
            ("all_reduce", "send", "recv"),
            16,
            lambda ranks, rank: all_reduced(ranks, 8 * _CLASSES + 4),
            "Two columns are to be summed, in one all-reduce or two, and the number of samples.",
        ),
    ),
)
