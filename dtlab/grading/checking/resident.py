"""Memory that an answer keeps allocated, as the kernel counts it.

rank r    use(fn, SMALL, ...)   first use: all imports happen here
          use(fn, LARGE, mark)  mark() at the beginning, then at each moment ──> supervisor counts
judge     growth since the last mark() <= allowed growth + SLACK

A count of tensors in the rank itself could be falsified by the code that is judged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from dtlab.grading.checking.criteria import Fault, Faulty, Noted, Seen
from dtlab.grading.checking.trials import Observation
from dtlab.grading.words import amount

__all__ = ["Mark", "Moment", "ResidentCase", "grown_by", "layers_of", "use_twice"]

SMALL, LARGE = 8, 1024  # widths of the layers
LAYERS = 4
SLACK = 4_000_000  # bytes; measured noise is below a tenth of that, and a fault is 8 MB or more
TOPIC = "resident"

Mark = Callable[[], None]


class Moment(NamedTuple):
    """A moment at which memory is counted, and its allowed growth since the previous count.

    `kept` returns the allowed bytes, from the bytes of all parameters and the number of ranks.
    """

    criterion: str
    when: str
    kept: Callable[[float, int], float]
    advice: str


class ResidentCase(Faulty):
    """A case that runs `fn` on layers large enough for the kernel's count to show them."""

    topic = TOPIC

    elements = LAYERS * LARGE**2  # of all parameters

    @property
    @abstractmethod
    def moments(self) -> Sequence[Moment]:
        """The moments, in the order in which a rank reaches them."""

    def __str__(self) -> str:
        return f"{amount(4 * self.elements)} of weights"

    def shows(self, criterion: str) -> bool:
        return criterion in {moment.criterion for moment in self.moments}

    @property
    def guilty(self) -> str:
        return self.moments[0].criterion

    def given(self, rank: int, world_size: int) -> Any:
        return None

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """See `Faulty`; yields nothing, since `grown` reports the kernel's counts."""
        yield from ()

    def grown(self, observation: Observation) -> Iterator[Fault]:
        """Yields a fault for each rank and moment with more memory than allowed."""
        from dtlab.ranks.record.resident_memory import TIMES

        for rank, readings in enumerate(observation.resident):
            counts = [count for count in readings if count is not None]
            if len(counts) < len(readings):
                return  # this system cannot count resident memory
            if len(counts) != TIMES * (1 + len(self.moments)):
                yield self.guilty, f"rank {rank}: its memory was counted at other moments. {_ODD}"
                return
            least = [min(counts[at : at + TIMES]) for at in range(0, len(counts), TIMES)]
            for moment, (before, count) in zip(self.moments, pairwise(least), strict=True):
                allowed = moment.kept(4 * self.elements, observation.trial.world_size)
                if count - before > allowed + SLACK:
                    yield (
                        moment.criterion,
                        (
                            f"rank {rank}: {moment.when}, the kernel counts "
                            f"{_change(count - before)}, and it should be {_change(allowed)}. "
                            f"{moment.advice}"
                        ),
                    )


_ODD = "Only the check may call the function that counts it."


def _change(count: float) -> str:
    return f"{amount(abs(count))} {'more' if count >= 0 else 'less'} than before"


def grown_by(name: str, also: Callable[[Seen], str] = lambda _: "") -> Callable[[Seen], str]:
    """Returns an argument `also` of `rule` that reports too much memory for the criterion `name`.

    If no rank has too much memory, it returns the message of the given `also`.
    """

    def wrong(seen: Seen) -> str:
        for observation in seen:
            case = observation.trial.cases[0]
            if isinstance(case, ResidentCase) and observation.error is None:
                for criterion, fault in case.grown(observation):
                    if criterion == name:
                        return f"{observation.trial.words()}: {fault}"
        return also(seen)

    return wrong


# Runs on ranks ----------------------------------------------------------------------------------


def use_twice(use: Callable[[Any, int, Mark], Any], fn: Callable[..., Any]) -> dict[str, Any]:
    """Calls `use(fn, width, mark)` first with a small and then with a large width; for `on_rank`.

    `use` must call `mark()` at the beginning, and then at each moment.
    """
    from dtlab.ranks.record.resident_memory import count, give_back_at_once

    give_back_at_once()
    use(fn, SMALL, lambda: None)
    use(fn, LARGE, count)
    return {}


def layers_of(width: int) -> Any:
    """Builds a sequence of `LAYERS` linear layers without biases: float32, all ones."""
    import torch
    from torch import nn

    layers = [nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
    for layer in layers:
        torch.nn.init.ones_(layer.weight)
    return nn.Sequential(*layers)
