"""The cases of a check by number: which one a message is about, and what ranks printed in it.

Cases are numbered from 1, through all trials of the check in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dtlab.checks.functions.trials import BEGIN, Case, Observation
from dtlab.checks.words import count_ranks

__all__ = ["Numbered", "case_of", "numbered", "printed_words"]

_BEGIN = re.compile(rf"{BEGIN}(\d+)\n")
_LINES, _WIDTH = 40, 200  # lines of one case, shared by its ranks; characters of a line


class Numbered(NamedTuple):
    """One case: its number in the check, its number in its trial, and the trial's observation."""

    number: int
    place: int
    one: Observation

    @property
    def words(self) -> str:
        """Describes the case: "5 ranks, 7 elements"."""
        return self.one.trial.words(self.place)

    @property
    def is_on_ranks(self) -> bool:
        """Whether the case concerns several ranks, or what happens on them, or has figures."""
        case = self.one.trial.cases[self.place]
        has_figures = type(case).figures is not Case.figures
        return self.one.trial.world_size > 1 or not case.alone or has_figures

    @property
    def printed(self) -> list[str]:
        """What each rank printed in this case."""
        return [_by_case(text).get(self.place, "") for text in self.one.printed]


def numbered(observations: Sequence[Observation]) -> list[Numbered]:
    """Returns all cases."""
    places = ((place, one) for one in observations for place in range(len(one.trial.cases)))
    return [Numbered(number, place, one) for number, (place, one) in enumerate(places, 1)]


def case_of(message: str, cases: Sequence[Numbered]) -> Numbered | None:
    """The case that a message of a lost criterion is about.

    Messages begin with the words of the case, or with its number of ranks. For a message that
    begins with neither, this is the first case: such a criterion is judged on the first trial.
    """

    def fit(case: Numbered) -> int:
        named = (case.words, count_ranks(case.one.trial.world_size))
        return max((len(words) for words in named if message.startswith(words)), default=0)

    longest = max(map(fit, cases), default=0)
    named = [case for case in cases if fit(case) == longest]
    wrong = (case for case in named if longest and case.one.is_wrong(case.place))
    return next(wrong, named[0] if named else None)


def printed_words(
    cases: Sequence[Numbered], first: Numbered | None = None, most: int = _LINES
) -> str:
    """Returns what ranks printed in one case, under a heading; empty if they printed nothing.

    This is the case `first` if there is one, else the first case in which a rank printed. At most
    about `most` lines are shown.
    """
    printed = [case for case in cases if any(case.printed)]
    if not printed:
        return ""
    shown = first if first in printed else printed[0]
    others = len(printed) - 1
    also = f" ({others} other case{'s' * (others > 1)} printed too)" if others else ""
    return "\n".join([f"Printed with {shown.words}{also}:", *_lines(shown.printed, most)])


def _by_case(text: str) -> dict[int, str]:
    """Splits what a rank printed into what it printed in each case."""
    _, *parts = _BEGIN.split(text)
    return {int(place): printed for place, printed in zip(parts[::2], parts[1::2], strict=True)}


def _lines(by_rank: Sequence[str], total: int) -> Iterator[str]:
    most = max(1, total // len(by_rank))
    for rank, text in enumerate(by_rank):
        lines = text.splitlines()
        for line in lines[:most]:
            yield f"rank {rank}: {line if len(line) <= _WIDTH else line[:_WIDTH] + ' ...'}"
        more = len(lines) - most
        if more > 0:
            yield f"rank {rank}: ... {more:,} more line{'s' * (more > 1)}"
