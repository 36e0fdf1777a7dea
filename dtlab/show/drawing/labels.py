"""Placement of labels next to vertical lines in a chart. Arithmetic only.

All lengths are inches from the lower left corner of the chart.

    │ 1 MB       A label is placed right or left of its line, in one of a few rows, so that it
    │            covers no other line, no curve and no other label.
    │    ┆
         ┆       A line stops short of the rows for labels at the opposite end of the chart.
         ┆ 2 MB
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Obstacles", "Place", "Upright", "places"]

Path = npt.NDArray[np.float64]  # the points of a curve, x in row 0, y in row 1, left to right

_CHARACTER: Final = 0.068  # approximate width of a character of 8 points
_HEIGHT: Final = 0.14
_BESIDE: Final = 0.05  # from the line to its label
_ROWS: Final = 4
_CLEAR: Final = 0.24  # height at the opposite end that a line leaves free for other labels
_OUTSIDE: Final = 100


class Upright(NamedTuple):
    """A vertical line at `x`, its label, and the end at which the label is written."""

    x: float
    words: str
    end: Literal["top", "bottom"]

    def reach(self, height: float) -> tuple[float, float]:
        """Return the lower and the upper end of the line in a chart of this height."""
        return (_CLEAR, height) if self.end == "top" else (0.0, height - _CLEAR)


class Place(NamedTuple):
    """The lower left corner of a label."""

    left: float
    bottom: float


@dataclass(frozen=True)
class Obstacles:
    """Things that a label should not cover, in a chart of this size."""

    width: float
    height: float
    curves: Sequence[Path]

    def hit(self, place: Place, across: float, x: float, others: Sequence[Upright]) -> int:
        """Count the lines and curves that the label covers; a label outside counts as very many.

        `x` is the position of the label's own line. A line between that line and the label also
        counts, because the label would seem to belong to it.
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
    """Return a place for each line's label: the first free one, or the one with fewest hits."""
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
    """List places right and left of the line, row by row from its end; the best come first."""
    down = upright.end == "top"
    rows = [0.06 + row * (_HEIGHT + 0.04) for row in range(_ROWS)]
    bottoms = [height - row - _HEIGHT for row in rows] if down else rows
    sides = upright.x + _BESIDE, upright.x - _BESIDE - across
    return [Place(left, bottom) for bottom in bottoms for left in sides]


def _overlap(place: Place, across: float, other: Place, other_across: float) -> bool:
    beside = place.left > other.left + other_across or other.left > place.left + across
    return not beside and abs(place.bottom - other.bottom) < _HEIGHT


def _crosses(path: Path, place: Place, across: float) -> bool:
    """Return whether a curve runs through a label."""
    xs = np.linspace(place.left, place.left + across, 9)
    xs = xs[(xs >= path[0, 0]) & (xs <= path[0, -1])]
    ys = np.interp(xs, *path)
    return bool(((ys > place.bottom - 0.03) & (ys < place.bottom + _HEIGHT + 0.03)).any())
