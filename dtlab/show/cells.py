"""What figures of collectives share: cells that show whose contribution a copy holds, and tags.

A copy of a chunk is a column of cells, rank 0's contribution on top; a cell is filled where that
contribution is in it. The more of them a copy holds, the darker it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from dtlab.show.style import COLOURS, INK, SHEET, blend, centred, edge

__all__ = ["ARROW", "EMPTY", "cells_of", "draw_cells", "draw_tag", "fill"]

ARROW: Final = COLOURS["communication"]
EMPTY: Final = "#EFEFEB"
_PALE, _FULL = "#B9DDCD", "#00573F"  # one hue, apart from those of the roles


def fill(count: int, num_ranks: int) -> str:
    """The colour of a copy that holds `count` of `num_ranks` contributions."""
    if count == 0:
        return EMPTY
    return blend(_PALE, _FULL, (count - 1) / (num_ranks - 1) if num_ranks > 1 else 1.0)


def cells_of(copy: frozenset[int], num_ranks: int) -> list[str]:
    """The colours of the cells of a copy that holds the contributions of these ranks."""
    full = fill(len(copy), num_ranks)
    return [full if rank in copy else EMPTY for rank in range(num_ranks)]


def draw_cells(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float],
    columns: Sequence[Sequence[str]], gid: str,
) -> None:  # fmt: skip
    """Columns of cells in these colours, from the top down, in a box with this lower left corner.

    One artist, by the name of `gid`: one patch per cell would take three times as long.
    """
    width, height = size[0] / len(columns), size[1] / len(columns[0])
    corners = []
    for across, column in enumerate(columns):
        left, right = (corner[0] + (across + share) * width for share in (0.07, 0.93))
        for down in range(len(column)):
            low, high = (corner[1] + size[1] - (down + share) * height for share in (0.96, 0.04))
            corners.append([(left, low), (right, low), (right, high), (left, high)])
    colours = [colour for column in columns for colour in column]
    cells = PolyCollection(corners, facecolors=colours, linewidths=0, gid=gid)
    axes.add_collection(cells, autolim=False)


def draw_tag(axes: Axes, place: tuple[float, float], label: str, size: float) -> None:
    """The number of a chunk on its way, in a small circle."""
    box = {"boxstyle": "circle,pad=0.2", "facecolor": SHEET, "edgecolor": edge(ARROW)}
    axes.text(*place, label, **centred(size, INK, weight="bold"), bbox={**box, "linewidth": 0.8})
