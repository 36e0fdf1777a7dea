"""Placement of labels beside upright lines in a chart. Arithmetic only.

All lengths are inches from the lower left corner of the chart.

    │ 1 MB       a label stands right or left of its line, in one of a few rows: where it lies
    │            across no other line, no curve and no other label
    │    ┆
         ┆       a line ends before it comes to where the labels of the other end begin
         ┆ 2 MB
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Obstacles", "Place", "Upright", "places"]

Path = npt.NDArray[np.float64]  # of a curve: its points, across and upwards, from left to right

_CHARACTER: Final = 0.068  # inches across of a character of 8 points, about
_HEIGHT: Final = 0.14
_BESIDE: Final = 0.05  # from the line to its label
_ROWS: Final = 4
_CLEAR: Final = 0.24  # from the end of the chart that a line leaves to the labels there
_OUTSIDE: Final = 100


class Upright(NamedTuple):
    """A line that stands upright at `x`, what is written beside it, and at which end."""

    x: float
    words: str
    end: Literal["top", "bottom"]

    def reach(self, height: float) -> tuple[float, float]:
        """The lower and the upper end of the line in a chart of this height."""
        return (_CLEAR, height) if self.end == "top" else (0.0, height - _CLEAR)


class Place(NamedTuple):
    """The left and the lower end of a label."""

    left: float
    bottom: float


@dataclass(frozen=True)
class Obstacles:
    """What a label had better not lie on, in a chart of this size."""

    width: float
    height: float
    curves: Sequence[Path]

    def hit(self, place: Place, across: float, x: float, others: Sequence[Upright]) -> int:
        """How many lines and curves the label of the line at `x` lies on; very many outside.

        A line between that one and its label counts too: the label would seem to be its own.
        """
        left, right = place.left, place.left + across
        outside = _OUTSIDE * (left < 0 or right > self.width)
        lines = sum(
            min(left, x) <= each.x <= max(right, x) and self._beside(place, each)
            for each in others
        )
        return outside + lines + sum(_crosses(path, place, across) for path in self.curves)

    def _beside(self, place: Place, upright: Upright) -> bool:
        low, high = upright.reach(self.height)
        return place.bottom < high and place.bottom + _HEIGHT > low


def places(uprights: Sequence[Upright], obstacles: Obstacles) -> list[Place]:
    """A place for the label of each line: the first one that is free, else the least bad one."""
    taken: list[tuple[Place, float]] = []
    for upright in uprights:
        across = _CHARACTER * len(upright.words)
        others = [each for each in uprights if each is not upright]
        candidates = _candidates(upright, across, obstacles.height)
        hits = [
            obstacles.hit(place, across, upright.x, others)
            + sum(_overlap(place, across, *other) for other in taken)
            for place in candidates
        ]
        taken.append((candidates[hits.index(min(hits))], across))
    return [place for place, _ in taken]


def _candidates(upright: Upright, across: float, height: float) -> list[Place]:
    """Right and left of the line, row by row from its end on; the first are the best."""
    down = upright.end == "top"
    rows = [0.06 + row * (_HEIGHT + 0.04) for row in range(_ROWS)]
    bottoms = [height - row - _HEIGHT for row in rows] if down else rows
    sides = upright.x + _BESIDE, upright.x - _BESIDE - across
    return [Place(left, bottom) for bottom in bottoms for left in sides]


def _overlap(one: Place, across: float, other: Place, other_across: float) -> bool:
    beside = one.left > other.left + other_across or other.left > one.left + across
    return not beside and abs(one.bottom - other.bottom) < _HEIGHT


def _crosses(path: Path, place: Place, across: float) -> bool:
    """Whether a curve runs through a label."""
    xs = np.linspace(place.left, place.left + across, 9)
    xs = xs[(xs >= path[0, 0]) & (xs <= path[0, -1])]
    ys = np.interp(xs, *path)
    return bool(((ys > place.bottom - 0.03) & (ys < place.bottom + _HEIGHT + 0.03)).any())
