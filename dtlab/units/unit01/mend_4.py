"""01/mend_4: repair a program that overwrites a send buffer before the send has completed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.criteria import Fault, Noted
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.values import labelled, wrong_sum
from dtlab.grading.parts import Part
from dtlab.grading.questions.quantities import short, whole
from dtlab.units.unit01.judges import messages
from dtlab.units.unit01.mending import (
    BYTES,
    ELEMENTS,
    Returning,
    all_reduced,
    are_tensors,
    compared,
    mend,
    name_of,
    same,
    traffic,
)

if TYPE_CHECKING:
    import torch

    from dtlab.trace import Trace


@dataclass(frozen=True)
class Rows(Returning):
    """A call of `share_out(images, scale)`, which returns (scaled row, sum of all scaled rows).

    Only rank 0 has the images and the scale.
    """

    seed: int
    size: int

    def __str__(self) -> str:
        return f"{self.size} numbers in a row"

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The images, int16 [ranks, size], and the scale [1]; both are zeros on other ranks."""
        import torch

        images = torch.zeros(world_size, self.size, dtype=torch.int16)
        if rank > 0:
            return images, torch.zeros(1)
        for row in range(world_size):
            images[row] = labelled(self.seed, self.size, row)
        return images, torch.tensor([float(random.Random(self.seed).randint(2, 9))])

    def scaled(self, world_size: int) -> list[torch.Tensor]:
        """The row that each rank should have."""
        images, scale = self.given(0, world_size)
        return [row.float() * scale for row in images]

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        rows = self.scaled(len(results))
        for rank, noted in enumerate(results):
            got = noted["returned"]
            if not are_tensors(got, 2):
                message = "return the scaled row and the sum, as mine, total."
                yield "result", f"rank {rank}: {message}"
                return
            if not same(got[0], rows[rank]):
                yield "result", f"rank {rank}: its row is {name_of(got[0], rows, 'row {}')}."
        for rank, noted in enumerate(results):
            wrong = wrong_sum(noted["returned"][1], dict(enumerate(rows)), range(len(rows)))
            if wrong:
                yield "result", f"rank {rank}, total: {wrong}"


# The diagnosis: which row each rank really receives ---------------------------------------------

_FORM = 'Write {"operation": "...", "rows": {rank: row of images, ...}}.'
_INNOCENT = {
    "recv": "A recv returns the data that was sent: look at the sends.",
    "broadcast": "The scale arrives correctly.",
    "all_reduce": "The all-reduce correctly sums the tensors that the ranks have.",
}


def _misjudged(run: Observation, diagnosis: Mapping[str, Any]) -> str:
    """What is wrong with {"operation": name, "rows": {rank: row}}; empty if it is right."""
    (case,) = run.trial.cases
    assert isinstance(case, Rows)
    assert run.trace is not None
    operation = str(diagnosis["operation"]).strip().casefold().rpartition(".")[2]
    operation = {"isend": "send", "irecv": "recv"}.get(operation, operation)
    if operation not in run.trace.ops():
        names = ", ".join(sorted(run.trace.ops()))
        return f"the trace has no operation {diagnosis['operation']!r}. It has: {names}."
    if operation != "send":
        return f"{operation} is not the cause. {_INNOCENT[operation]}"
    if not isinstance(diagnosis["rows"], Mapping):
        return f"the rows are {diagnosis['rows']!r}. {_FORM}"
    rows = case.scaled(run.trial.world_size)
    for rank in range(1, len(rows)):
        answer = diagnosis["rows"].get(rank)
        number = whole(answer)
        if answer is None:
            return f"the row of rank {rank} is missing. {_FORM}"
        if number is None:
            return f"{short(answer)} is not the number of a row, for rank {rank}. {_FORM}"
        got = run.results[0][rank]["returned"][0]
        if not (0 <= number < len(rows) and same(got, rows[number])):
            return (
                f"rank {rank} does not receive row {number}. What is in the buffer when its "
                "message is sent?"
            )
    return ""


judge_rows = compared(("operation", "rows"), _FORM, "these rows really arrive", _misjudged)


# The repaired program ---------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    small = [Trial(ranks, [Rows(seed, draw.randint(1, 9))]) for ranks in (1, 3)]
    return [*small, Trial(4, [Rows(seed, ELEMENTS)])]


def _not_one_row_each(trace: Trace) -> str:
    """A message unless rank 0 sends exactly one message to each rank, and other ranks none."""
    sent = messages(trace)
    for message in sent:
        if message.source > 0:
            pair = f"rank {message.source} sends rank {message.target}"
            return f"{pair} a message. Only rank 0 sends rows."
    for rank in range(1, trace.world_size):
        count = sum(message.target == rank for message in sent)
        if count != 1:
            return f"rank 0 sends {count} messages to rank {rank}: send its row in one message."
    return ""


PART = Part(
    "01/mend_4",
    3,
    "Rows that never arrive",
    12,
    2,
    mend(
        "share_out",
        Trial(5, [Rows(0, 4)]),
        judge_rows,
        _trials,
        "each rank has its row, and all have the sum, on 1, 3 and 4 ranks",
        "rank 0 sends each rank its row, once",
        traffic(
            ("send", "recv", "broadcast", "all_reduce"),
            5,
            lambda ranks, rank: all_reduced(ranks, BYTES) + (ranks - 1) * BYTES * (rank == 0),
            "Rank 0 sends each rank its row in one message, and broadcasts the scale.",
            _not_one_row_each,
        ),
    ),
)
