"""Memory that an answer keeps allocated, as the kernel counts it.

rank r    opening()             before the answer is unpickled, in graded ranks
          use(fn, SMALL, ...)   first use: all imports happen here
          use(fn, LARGE, mark)  mark() at the beginning, then at each moment ──> supervisor counts
judge     growth since the last mark() <= allowed growth + SLACK

A count of tensors in the rank itself could be falsified by the code that is judged. The code could
also have its memory counted at moments that suit it: so the judge compares the peaks between the
counts, which the kernel keeps, with what must and what may have been held there.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from dtlab.checks.functions.criteria import Fault, Faulty, Noted, Seen
from dtlab.checks.functions.trials import LONG, Observation
from dtlab.checks.words import amount

__all__ = ["Mark", "Moment", "ResidentCase", "grown_by", "layers_of", "opening", "use_twice"]

SMALL, LARGE = 8, 1024  # widths of the layers
LAYERS = 4
SLACK = 4_000_000  # bytes; measured noise is below a tenth of that, and a fault is 8 MB or more
IMPORTS = 8_000_000  # bytes for modules that an answer imports; measured are below 2 MB
_MAKING = 4  # times the bytes that are ready at the first `mark()`, while they are made
TOPIC = "resident"

Mark = Callable[[], None]
Size = Callable[[float, int], float]  # bytes, from those of all parameters and the world size


def _anything(size: float, ranks: int) -> float:
    return -size


class Moment(NamedTuple):
    """A moment at which memory is counted, and its allowed growth since the previous count.

    `kept` returns the allowed bytes, from the bytes of all parameters and the number of ranks.
    Between the two counts memory may grow by `peak`, and must grow by `passes` at some time, or it
    was counted at other moments. A growth below `least` is a fault too, whose criterion and advice
    are in `lacks`.
    """

    criterion: str
    when: str
    kept: Size
    advice: str
    peak: Size | None = None
    passes: Size = _anything
    least: Size | None = None
    lacks: tuple[str, str] = "", ""


class ResidentCase(Faulty):
    """A case that runs `fn` on layers large enough for the kernel's count to show them."""

    topic = TOPIC
    limit = LONG

    elements = LAYERS * LARGE**2  # of all parameters

    @property
    def ready(self) -> float:
        """Bytes that `use` holds before its first `mark()`: the parameters."""
        return 4 * self.elements

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

        graded, ranks = observation.trial.secret, observation.trial.world_size
        for rank, readings in enumerate(observation.resident):
            counts = [count for count in readings if count is not None]
            if len(counts) < len(readings):
                return  # this system cannot count resident memory
            if len(counts) != TIMES * (2 + graded + len(self.moments)):
                yield from self._odd(rank)
                return
            groups = [counts[at : at + TIMES] for at in range(0, len(counts), TIMES)]
            least: list[float] = [min(group) for group in groups]
            peaks = [_peak(group) for group in groups]
            start = 1 + graded  # the place of the first mark
            if graded:  # whose ranks have imported all that answers usually need
                # What an answer holds before its first use is no more than its imports: memory
                # that it frees later would hide as much.
                least[start] = min(least[start], least[0] + self.ready + IMPORTS)
                if _exceeds(peaks[start], least[1] + _MAKING * self.ready + 3 * IMPORTS):
                    yield from self._odd(rank)
            if _exceeds(getattr(counts[-1], "later", None), least[-1]):
                yield from self._odd(rank)
            pairs, parameters = pairwise(least[start:]), 4 * self.elements
            for moment, (before, count), peak in zip(
                self.moments, pairs, peaks[start + 1 :], strict=True
            ):
                allowed, grown = moment.kept(parameters, ranks), count - before
                if peak is not None and peak - before < moment.passes(parameters, ranks) - SLACK:
                    yield from self._odd(rank)
                if grown > allowed + SLACK:
                    text = f"{_change(grown)}, and it should be {_change(allowed)}"
                    yield moment.criterion, _counted(rank, moment.when, text, moment.advice)
                elif moment.least and grown < (due := moment.least(parameters, ranks)) - SLACK:
                    text = f"{_change(grown)}, and it should be {_change(due)}"
                    yield moment.lacks[0], _counted(rank, moment.when, text, moment.lacks[1])
                most = moment.peak(parameters, ranks) if moment.peak else math.inf
                if _exceeds(peak, before + most):
                    text = f"up to {_change((peak or 0) - before)}; {amount(most)} are enough"
                    yield moment.criterion, _counted(rank, moment.when, text, moment.advice)

    def _odd(self, rank: int) -> Iterator[Fault]:
        for criterion in dict.fromkeys(moment.criterion for moment in self.moments):
            yield criterion, f"rank {rank}: its memory was counted at other moments. {_ODD}"


_ODD = (
    "Only the check may call the function that counts it, and the answer may hold nothing large "
    "before and after it is used."
)


def _peak(group: Sequence[int]) -> int | None:
    """The most bytes that a rank has held since the counts before this group, if it is known."""
    peaks = [getattr(count, "peak", None) for count in group]
    return max((peak for peak in peaks if peak is not None), default=None)


def _exceeds(peak: int | None, most: float) -> bool:
    return peak is not None and peak > most + SLACK


def _counted(rank: int, when: str, text: str, advice: str) -> str:
    return f"rank {rank}: {when}, the kernel counts {text}. {advice}"


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


def opening(calls: Sequence[Callable[..., Any]]) -> None:
    """Counts a graded rank's memory before it opens the answer, if a case counts memory."""
    from dtlab.ranks.record.resident_memory import count, give_back_at_once

    if any(map(_counts_memory, calls)):
        give_back_at_once()
        count()


def _counts_memory(on_rank: Callable[..., Any]) -> bool:
    """Whether this is a method of a `ResidentCase`."""
    name = on_rank.__qualname__.partition(".")[0]
    owner = getattr(on_rank, "__self__", getattr(sys.modules[on_rank.__module__], name, None))
    return isinstance(owner, type) and issubclass(owner, ResidentCase)


def use_twice(
    use: Callable[[Any, int, Mark], Any],
    fn: Callable[..., Any],
    small: int = SMALL,
    large: int = LARGE,
) -> dict[str, Any]:
    """Calls `use(fn, width, mark)` first with a small and then with a large width; for `on_rank`.

    `use` must call `mark()` at the beginning, and then at each moment. If it returns a dict, that
    is what the rank returns: an answer that did nothing would need no memory.
    """
    from dtlab.ranks.record.resident_memory import count, give_back_at_once

    give_back_at_once()
    count()
    use(fn, small, lambda: None)
    result = use(fn, large, count)
    return result if isinstance(result, dict) else {}


def layers_of(width: int) -> Any:
    """Builds a sequence of `LAYERS` linear layers without biases: random float32.

    Equal numbers could be kept in a few bytes.
    """
    import torch
    from torch import nn

    draw = torch.Generator().manual_seed(width)
    layers = [nn.Linear(width, width, bias=False, device="meta") for _ in range(LAYERS)]
    for layer in layers:
        layer.weight = nn.Parameter(torch.empty(width, width).uniform_(-1, 1, generator=draw))
    return nn.Sequential(*layers)
