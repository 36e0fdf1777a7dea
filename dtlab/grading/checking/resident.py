"""Memory that an answer keeps allocated, as the kernel counts it.

rank r    use(fn, SMALL, ...)   imports what there is to import
          use(fn, LARGE, mark)  mark() at the beginning, then at each moment ──> supervisor counts
judge     growth since the last mark() <= what may be kept + SLACK

A count of tensors that is made in the rank itself can be falsified there.
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
SLACK = 4_000_000  # bytes; measured noise is below a tenth of that, and an error 8 MB or more
TOPIC = "resident"

Mark = Callable[[], None]


class Moment(NamedTuple):
    """When memory is counted, and what may have come since it was counted last.

    `kept` gives bytes, from the bytes of all parameters and the number of ranks.
    """

    criterion: str
    when: str
    kept: Callable[[float, int], float]
    advice: str


class ResidentCase(Faulty):
    """`fn` on layers that are large enough to be seen from outside."""

    topic = TOPIC

    elements = LAYERS * LARGE**2  # of all parameters

    @property
    @abstractmethod
    def moments(self) -> Sequence[Moment]:
        """In the order in which a rank comes to them."""

    def __str__(self) -> str:
        return f"{amount(4 * self.elements)} of weights"

    def shows(self, criterion: str) -> bool:
        """See `Faulty`."""
        return criterion in {moment.criterion for moment in self.moments}

    @property
    def guilty(self) -> str:
        """See `Faulty`."""
        return self.moments[0].criterion

    def given(self, rank: int, world_size: int) -> Any:
        """See `Case`."""
        return None

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """See `Faulty`; what the kernel counted is for `grown` to say."""
        yield from ()

    def grown(self, one: Observation) -> Iterator[Fault]:
        """What is kept too much, by rank and moment."""
        from dtlab.ranks.record.resident_memory import TIMES

        for rank, asked in enumerate(one.resident):
            counts = [count for count in asked if count is not None]
            if len(counts) < len(asked):
                return  # this system does not count
            if len(counts) != TIMES * (1 + len(self.moments)):
                yield self.guilty, f"rank {rank}: its memory was counted at other moments. {_ODD}"
                return
            least = [min(counts[at : at + TIMES]) for at in range(0, len(counts), TIMES)]
            for moment, (before, count) in zip(self.moments, pairwise(least), strict=True):
                kept = moment.kept(4 * self.elements, one.trial.world_size)
                if count - before > kept + SLACK:
                    yield (
                        moment.criterion,
                        (
                            f"rank {rank}: {moment.when}, the kernel counts "
                            f"{_change(count - before)}, and it should be {_change(kept)}. "
                            f"{moment.advice}"
                        ),
                    )


_ODD = "Only the check calls what counts it."


def _change(count: float) -> str:
    return f"{amount(abs(count))} {'more' if count >= 0 else 'less'} than before"


def grown_by(name: str, also: Callable[[Seen], str] = lambda _: "") -> Callable[[Seen], str]:
    """Says what the kernel has counted too much for a criterion; for `also` of `judge`."""

    def wrong(seen: Seen) -> str:
        for one in seen:
            case = one.trial.cases[0]
            if isinstance(case, ResidentCase) and one.error is None:
                for criterion, words in case.grown(one):
                    if criterion == name:
                        return f"{one.trial.words()}: {words}"
        return also(seen)

    return wrong


# Runs on ranks ----------------------------------------------------------------------------------


def use_twice(use: Callable[[Any, int, Mark], Any], fn: Callable[..., Any]) -> dict[str, Any]:
    """For `on_rank`: `use(fn, width, mark)` with a small width first, and then with a large one.

    `use` calls `mark()` at the beginning, and then at each moment.
    """
    from dtlab.ranks.record.resident_memory import count, give_back_at_once

    give_back_at_once()
    use(fn, SMALL, lambda: None)
    use(fn, LARGE, count)
    return {}


def layers_of(width: int) -> Any:
    """`LAYERS` linear layers without biases, one after the other: float32, all ones."""
    import torch
    from torch import nn

    layers = [nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
    for layer in layers:
        torch.nn.init.ones_(layer.weight)
    return nn.Sequential(*layers)
