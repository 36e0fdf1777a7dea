"""Table of what each rank holds before and after a collective.

Rank r contributes the numbers 1, 2, 3, ... times 10**r. The digits of any element then show where
it comes from: the position of a digit is the rank, and the digit is the index of its element.

    rank 0    1    2         all_reduce        111  222
    rank 1   10   20        ------------>      111  222
    rank 2  100  200                           111  222
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import FancyArrowPatch, Rectangle

from dtlab.show.drawing.style import INK, MUTED, PALETTE, Figure, blend, centred, edge
from dtlab.show.words import list_words

__all__ = ["collective_table", "contributors"]

Point = tuple[float, float]
Rows = Sequence[Any]  # per rank: a sequence of numbers, a tensor, or None

_NAME, _MIDDLE, _RIGHT, _TOP, _BOTTOM = 0.8, 1.55, 0.25, 0.72, 0.5  # inches
_HEIGHT, _GAP, _BAND = 0.36, 0.16, 0.075  # inches: cell height, gap between ranks, strip height
_BETWEEN: Final = 0.85  # inches between "before" and "after" if one is below the other
_PAGE: Final = 9.8  # inches; a notebook would shrink wider figures
_MOST_RANKS: Final = 8
_BLANK: Final = "#EFEFEB"


def collective_table(name: str, before: Rows, after: Rows, *, title: str | None = None) -> Figure:
    """Draw what each rank holds before and after the collective `name`, element by element.

    `before` and `after` have one entry per rank: its numbers (a list or a 1-D tensor), or None if
    it holds nothing. The numbers are labelled data: rank r contributes small multiples of 10**r,
    so a digit at that position of a result shows that r has contributed. Each rank has a separate
    colour and strip.
    Raises `ValueError` for other than 1 to 8 ranks, and for numbers that are not labelled data.
    """
    num_ranks = len(before)
    if not 1 <= num_ranks <= _MOST_RANKS or len(after) != num_ranks:
        raise ValueError(
            f"collective_table draws 1 to {_MOST_RANKS} ranks, as many before as after; "
            f"before has {num_ranks}, after {len(after)}"
        )
    sides = _numbers(before), _numbers(after)
    plan = _plan(sides)
    width, height = plan.size
    heading = title or f"{name} among {num_ranks} rank{'s' * (num_ranks > 1)}"
    figure = Figure(width, height, alt_text=_alt_text(heading, *sides))
    figure.heading(heading)
    axes = figure.sheet(0, 0, width, height)
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    for rows, (left, top), side in zip(sides, plan.corners, ("before", "after"), strict=True):
        _Table(axes, num_ranks, plan.cell, top).draw(rows, left, side)
    _draw_arrow(axes, *plan.arrow, name)
    _draw_key(axes, num_ranks)
    return figure


class _Plan(NamedTuple):
    """The layout in inches: the upper left corners of both sides, and both ends of the arrow."""

    size: Point
    cell: float
    corners: tuple[Point, Point]
    arrow: tuple[Point, Point]


def _plan(sides: tuple[list[list[int]], list[list[int]]]) -> _Plan:
    """Lay out before and after side by side, or one below the other if that is too wide."""
    num_ranks = len(sides[0])
    columns = [max(1, *(len(row) for row in rows)) for rows in sides]
    digits = max(len(str(number)) for rows in sides for row in [*rows, [0]] for number in row)
    cell, tall = max(0.46, 0.2 + 0.105 * digits), num_ranks * (_HEIGHT + _GAP) - _GAP
    width = 2 * _NAME + sum(columns) * cell + _MIDDLE + _RIGHT
    height = _TOP + tall + _BOTTOM
    if width <= _PAGE:
        second, middle = _NAME + columns[0] * cell + _MIDDLE, _BOTTOM + tall / 2
        size = max(width, 1.2 + 0.98 * num_ranks), height
        corners = (_NAME, height - _TOP), (second + _NAME, height - _TOP)
        return _Plan(size, cell, corners, ((second - 1.35, middle), (second + 0.1, middle)))
    fitting = (_PAGE - _NAME - _RIGHT) / max(columns)
    cell = max(min(cell, fitting), 0.1 + 0.085 * digits)
    height += tall + _BETWEEN
    corners = (_NAME, height - _TOP), (_NAME, _BOTTOM + tall)
    across, middle = _NAME + columns[0] * cell / 2, _BOTTOM + tall + _BETWEEN / 2
    size = _NAME + max(columns) * cell + _RIGHT, height
    return _Plan(size, cell, corners, ((across, middle + 0.32), (across, middle - 0.32)))


def _numbers(rows: Rows) -> list[list[int]]:
    """Convert the rows to whole numbers."""
    return [_row(rank, [] if row is None else row, len(rows)) for rank, row in enumerate(rows)]


def _row(rank: int, row: Any, num_ranks: int) -> list[int]:
    values = row.tolist() if hasattr(row, "tolist") else list(row)
    numbers = [round(value) for value in values]
    for value, number in zip(values, numbers, strict=True):
        if value != number or not 0 <= number < 10**num_ranks:
            raise ValueError(
                f"collective_table: rank {rank} holds {value!r}. Among {num_ranks} ranks, give "
                f"whole numbers from 0 to {10**num_ranks - 1}, whose digits show the source rank: "
                f"let rank r contribute small multiples of 10**r."
            )
    return numbers


def contributors(number: int) -> list[int]:
    """Return the ranks whose digit in a labelled number is not 0: for 1010, ranks 1 and 3."""
    return [rank for rank, digit in enumerate(reversed(str(number))) if digit != "0"]


@dataclass(frozen=True)
class _Table:
    """The axes for one side: the width of a cell and the upper end of row 0, in inches."""

    axes: Axes
    num_ranks: int
    cell: float
    top: float

    def draw(self, rows: Sequence[Sequence[int]], left: float, side: str) -> None:
        """Draw all ranks, one below the other."""
        self.axes.text(left, self.top + 0.16, side, fontsize=8, color=MUTED, va="center")
        for rank, row in enumerate(rows):
            bottom = self.top - _HEIGHT - rank * (_HEIGHT + _GAP)
            name = self.axes.text(left - 0.14, bottom + _HEIGHT / 2, f"rank {rank}")
            name.set(fontsize=9, color=INK, ha="right", va="center")
            if not row:
                self._draw_nothing(left, bottom)
            for place, number in enumerate(row):
                gid = f"{side} rank {rank} element {place}"
                self._draw_element(left + place * self.cell, bottom, number, gid)

    def _draw_nothing(self, left: float, bottom: float) -> None:
        self.axes.text(left + 0.06, bottom + _HEIGHT / 2, "nothing", fontsize=8, color=MUTED,
                       va="center", style="italic")  # fmt: skip

    def _draw_element(self, left: float, bottom: float, number: int, gid: str) -> None:
        """Draw a number, tinted if it comes from one rank, and below it a strip for each rank."""
        whose = contributors(number)
        tint = blend(PALETTE[whose[0]], "#FFFFFF", 0.72) if len(whose) == 1 else "#FFFFFF"
        box = Rectangle((left + 0.02, bottom), self.cell - 0.04, _HEIGHT, linewidth=0.8,
                        facecolor=tint, edgecolor=MUTED, gid=gid)  # fmt: skip
        self.axes.add_artist(box)
        middle = bottom + _BAND + (_HEIGHT - _BAND) / 2
        ink = INK if number else MUTED
        self.axes.text(left + self.cell / 2, middle, str(number), **centred(9, ink))
        _draw_strips(self.axes, (left + 0.05, bottom + 0.03), self.cell - 0.1, whose,
                     self.num_ranks, f"{gid} strips")  # fmt: skip


def _draw_strips(
    axes: Axes, corner: tuple[float, float], width: float, whose: Sequence[int], num_ranks: int,
    gid: str,
) -> None:  # fmt: skip
    """Draw a strip for each rank, rank 0 on the right as in the digits; contributors coloured."""
    each = width / num_ranks
    boxes, colours = [], []
    for rank in range(num_ranks):
        left, right = (corner[0] + (num_ranks - 1 - rank + s) * each for s in (0.08, 0.92))
        low, high = corner[1], corner[1] + _BAND
        boxes.append([(left, low), (right, low), (right, high), (left, high)])
        colours.append(PALETTE[rank] if rank in whose else _BLANK)
    axes.add_collection(PolyCollection(boxes, facecolors=colours, linewidths=0, gid=gid),
                        autolim=False)  # fmt: skip


def _draw_arrow(axes: Axes, start: Point, end: Point, name: str) -> None:
    """Draw the arrow from before to after, with the collective's name above it or next to it."""
    arrow = FancyArrowPatch(start, end, arrowstyle="-|>", linewidth=2,
                            mutation_scale=14, color=MUTED, shrinkA=0, shrinkB=0)  # fmt: skip
    axes.add_artist(arrow)
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    level = start[1] == end[1]
    words = axes.text(*((x, y + 0.16) if level else (x + 0.16, y)), name)
    words.set(**centred(9, INK, "bold") | {"ha": "center" if level else "left"})


def _draw_key(axes: Axes, num_ranks: int) -> None:
    """Draw the key of the ranks' colours."""
    axes.text(0.15, 0.22, "from", fontsize=8, color=MUTED, va="center")
    for rank in range(num_ranks):
        left, colour = 0.6 + rank * 0.8, PALETTE[rank]
        axes.add_artist(Rectangle((left, 0.16), 0.2, 0.12, facecolor=colour, linewidth=0.5,
                                 edgecolor=edge(colour)))  # fmt: skip
        axes.text(left + 0.26, 0.22, f"rank {rank}", fontsize=8, color=MUTED, va="center")


def _alt_text(heading: str, before: list[list[int]], after: list[list[int]]) -> str:
    """Describe what every rank holds, and from which ranks it comes."""
    return f"{heading}. Before: {_side_in_words(before)}. After: {_side_in_words(after)}."


def _side_in_words(rows: list[list[int]]) -> str:
    if len(rows) > 1 and rows.count(rows[0]) == len(rows):
        return f"every rank holds {_row_in_words(rows[0])}"
    return "; ".join(f"rank {rank} holds {_row_in_words(row)}" for rank, row in enumerate(rows))


def _row_in_words(row: list[int]) -> str:
    """List the numbers and the ranks that they come from."""
    if not any(row):
        return "zeros" if row else "nothing"
    whose = sorted({rank for number in row for rank in contributors(number)})
    ranks = f"rank{'s' * (len(whose) > 1)} {list_words([str(rank) for rank in whose])}"
    return f"{list_words([str(number) for number in row])} from {ranks}"
