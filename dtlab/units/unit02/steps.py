"""The communication of each step of training, out of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtlab.grading.checking.marks import inside_marks
from dtlab.grading.checking.trials import Observation
from dtlab.units.unit02.training import Training

if TYPE_CHECKING:
    from dtlab.trace import Event

__all__ = ["Step", "steps_of", "trainings_of"]


@dataclass(frozen=True)
class Step:
    """What one rank did in one step of one case, in order.

    `layers` are the marks of a `Marked` model: the last one begins when all gradients are there
    but those of the first layer. `waits` are those for an operation, however short.
    """

    case: Training
    rank: int
    number: int
    communication: Sequence[Event]
    layers: Sequence[Event]
    waits: Sequence[Event]
    backward: Event | None

    @property
    def all_reduces(self) -> list[Event]:
        """In the order in which they began."""
        return [event for event in self.communication if event.name == "all_reduce"]

    @property
    def others(self) -> list[str]:
        """The names of all other communication."""
        return sorted({e.name for e in self.communication if e.name != "all_reduce"})

    def words(self, one: Observation) -> str:
        """Where this was: "4 ranks, a chain of layers, step 2, rank 0"."""
        case = one.trial.cases.index(self.case)
        return f"{one.trial.words(case)}, step {self.number + 1}, rank {self.rank}"


def trainings_of(one: Observation) -> list[Training]:
    """The cases of a trial that train."""
    return [case for case in one.trial.cases if isinstance(case, Training)]


def steps_of(one: Observation) -> Iterator[Step]:
    """Every step of every rank: what lies between one mark `step` and the end of it."""
    for rank in range(one.trial.world_size):
        numbered = [(case, number) for case in trainings_of(one) for number in range(case.steps)]
        steps = inside_marks(one.trace, rank, "step")
        for (case, number), inside in zip(numbered, steps, strict=False):
            yield Step(
                case,
                rank,
                number,
                [event for event in inside if event.kind == "comm"],
                [event for event in inside if event.name == "layer"],
                [event for event in inside if event.name == "wait"],
                next((event for event in inside if event.name == "backward"), None),
            )
