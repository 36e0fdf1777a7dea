"""Collectives in which ranks meet from different lines: a hint after a wrong result.

    rank 0   line 12: all_reduce(first)     line 17: all_reduce(second)
    rank 1   line 17: all_reduce(second)    line 12: all_reduce(first)

If both tensors have the same size, no backend can see that `first` and `second` are added. But
many correct programs also call a collective in two branches, so different lines are no error: they
are worth a look once a result is known to be wrong.
"""

from __future__ import annotations

import linecache
import os
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from dtlab.errors import place_in_words
from dtlab.trace.analysis import Meetings
from dtlab.trace.columns import COLLECTIVE, Columns

__all__ = ["LineDifference", "differing_lines", "hint_of_lines"]

Place = tuple[str, int]
Step = tuple[str, int]  # the operation's name, and the number of its group


class LineDifference(NamedTuple):
    """Collectives that ranks called in different lines and that nevertheless matched.

    `places[rank]` is the file and the line. `tensor` describes what was sent ("16 float32").
    `swapped` says whether two of the ranks also call each other's line in this group, as they do
    if they take the same steps in another order. In a program with one branch per rank, as for the
    root of a broadcast, they do not.
    """

    operation: str
    tensor: str
    places: tuple[tuple[int, Place], ...]
    times: int
    swapped: bool

    def __str__(self) -> str:
        ranks: dict[Place, list[int]] = defaultdict(list)
        for rank, place in self.places:
            ranks[place].append(rank)
        often = f", {self.times} times" if self.times > 1 else ""
        lines = [f"{self.operation} of {self.tensor}{often}" if self.tensor else self.operation]
        for (file, line), some in ranks.items():
            who = f"rank{'s' * (len(some) > 1)} {', '.join(map(str, some))}"
            lines.append(f"  {who} in {_in_words(file, line)}")
        if self.swapped:
            lines.append("  Ranks among them call the other line too, at another time.")
        return "\n".join(lines)


def differing_lines(columns: Columns, matches: Meetings) -> list[LineDifference]:
    """The matched collectives whose lines differ between ranks, the most suspicious first."""
    rows = np.flatnonzero((columns.role == COLLECTIVE) & (matches.number >= 0))
    together: dict[int, list[int]] = defaultdict(list)
    places: dict[int, Place] = {}
    called: dict[tuple[Step, int], set[Place]] = defaultdict(set)
    for row in rows.tolist():
        extra = columns.extras[row]
        if extra.get("line"):
            place = places[row] = (str(extra["file"]), int(extra["line"]))
            together[int(matches.number[row])].append(row)
            called[_step(columns, row), int(columns.rank[row])].add(place)
    found: Counter[tuple[Step, str, tuple[tuple[int, Place], ...]]] = Counter()
    for some in together.values():
        if len({places[row] for row in some}) > 1:
            at = tuple(sorted((int(columns.rank[row]), places[row]) for row in some))
            found[_step(columns, some[0]), _tensor(columns, some[0]), at] += 1
    differences = [
        LineDifference(step[0], tensor, at, times, _swapped(step, at, called))
        for (step, tensor, at), times in found.items()
    ]
    return sorted(differences, key=lambda each: not each.swapped)


def hint_of_lines(differences: list[LineDifference], most: int = 3) -> str:
    """A text about at most `most` differences for a wrong result; empty if there are none."""
    if not differences:
        return ""
    shown = [f"  {each}".replace("\n", "\n  ") for each in differences[:most]]
    rest = len(differences) - most
    more = [f"  and {rest} more"] if rest > 0 else []
    return "\n".join((
        "A hint, which need not be the cause: ranks met in a collective from different lines. If "
        "these\nlines are not the same step, values of different steps were mixed.",
        *shown,
        *more,
    ))  # fmt: skip


def _step(columns: Columns, row: int) -> Step:
    return columns.names[columns.name[row]], int(columns.group[row])


def _tensor(columns: Columns, row: int) -> str:
    extra = columns.extras[row]
    return f"{extra['numel']} {extra['dtype']}" if "numel" in extra else ""


def _swapped(
    step: Step, at: tuple[tuple[int, Place], ...], called: dict[tuple[Step, int], set[Place]]
) -> bool:
    return any(
        place != other and other in called[step, rank] and place in called[step, another]
        for rank, place in at
        for another, other in at
    )


def _in_words(file: str, line: int) -> str:
    code = linecache.getline(file, line).strip() or None
    if os.path.exists(file) and not os.path.relpath(file).startswith(os.pardir):
        file = os.path.relpath(file)
    return place_in_words(file, line, code, None)
