"""Figures of a sequence or a field that is split over ranks.

            keys 0 1 2 3
queries 0        0                   attention_rounds: the round of ring attention in which each
        1        1 0                 block of queries meets each block of keys
        2        2 1 0
        3        3 2 1 0

┌──────┬──────┐
│ ▒▒▒▒▒│▒     │                      tile_halos: a rank's tile, and the halo that it gets
│ ▒    │▒     │
├──────┼──────┤                      field_frames: a field step by step, with its tiles
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.patches import Rectangle

from dtlab.show.drawing.style import (
    COLOURS,
    GRID,
    INK,
    LANE,
    MUTED,
    PALETTE,
    Figure,
    blend,
    centred,
    edge,
    is_dark,
)
from dtlab.show.words import number_words

__all__ = ["attention_rounds", "field_frames", "tile_halos"]

_ROUNDS: Final = (COLOURS["forward"], "#8CCBEF", "#B7DDF5", "#DCEEFA")  # early rounds are darker
_MOST_RANKS: Final = 8
_BOX: Final = 3.2  # inches of the square of queries and keys


# Ring attention: which block of queries meets which block of keys, and when ----------------------


def attention_rounds(
    ranks: int = 4, *, zigzag: bool = False, causal: bool = True, title: str | None = None
) -> Figure:
    """Draw in which round of ring attention each block of queries meets each block of keys.

    Each rank's tokens are one run, or two in zig-zag order. A cell is a run of queries against a
    run of keys; its number is the round, and under a causal mask the cells above the diagonal are
    empty. The bars at the right are the work of each rank in each round: the slowest rank sets
    the time of a round, and the sum of these times is below.
    Raises: ValueError for fewer than 2 ranks, or more than 8.
    """
    if not 2 <= ranks <= _MOST_RANKS:
        raise ValueError(f"attention_rounds: give 2 to {_MOST_RANKS} ranks, not {ranks}.")
    owners = [*range(ranks), *reversed(range(ranks))] if zigzag else list(range(ranks))
    runs = len(owners)
    work = np.zeros((ranks, ranks))  # rank, round: the share of the whole square
    figure = Figure(9.4, 4.55)
    order = "zig-zag order" if zigzag else "contiguous order"
    heading = title or f"Ring attention on {ranks} ranks, {order}"
    below = "in each cell: the round in which queries and keys meet"
    below += "; a token sees earlier tokens only" if causal else ""
    figure.heading(heading, below)
    axes = figure.sheet(0, 0, 9.4, 4.55)
    axes.set(xlim=(0, 9.4), ylim=(0, 4.55))
    side, left, top = _BOX / runs, 0.95, 3.55
    axes.text(left + _BOX / 2, top + 0.33, "keys and values of rank", **centred(8, MUTED))
    axes.text(0.22, top - _BOX / 2, "queries of rank", rotation=90, **centred(8, MUTED))
    for row, owner in enumerate(owners):
        middle = top - (row + 0.5) * side
        axes.text(left - 0.17, middle, str(owner), **centred(8.5, INK))
        axes.text(left + (row + 0.5) * side, top + 0.13, str(owner), **centred(8.5, INK))
        for column, source in enumerate(owners):
            corner = left + column * side, top - (row + 1) * side
            seen = not causal or column <= row
            step = (owner - source) % ranks
            fill = _shade(step, ranks) if seen else LANE
            axes.add_patch(
                Rectangle(
                    corner,
                    side,
                    side,
                    facecolor=fill,
                    edgecolor=GRID,
                    linewidth=0.8,
                    gid="seen" if seen else "unseen",
                )
            )
            if seen:
                half = causal and column == row
                work[owner, step] += (0.5 if half else 1) / runs**2
                colour = "white" if is_dark(fill) else INK
                axes.text(corner[0] + side / 2, middle, str(step), **centred(8.5, colour))
    slowest = work.max(axis=0)
    _draw_work(figure, work, slowest)
    share = work.sum() / ranks / slowest.sum()
    words = f"The ranks work {share:.0%} of the time"
    words += "." if share > 0.999 else "; in each round they wait for the slowest."
    axes.text(4.75, 0.2, words, fontsize=8.5, color=INK, va="center")
    told = "; ".join(
        f"rank {rank}: {', '.join(f'{100 * part:.0f}' for part in row)}"
        for rank, row in enumerate(100 * work / work.sum() / 100)
    )
    figure.alt_text = f"{heading} ({below}). Percent of all work by round, {told}. {words}"
    return figure


def _shade(step: int, ranks: int) -> str:
    return blend(COLOURS["backward"], "#FFFFFF", 0.15 + 0.7 * step / max(1, ranks - 1))


def _draw_work(figure: Figure, work: npt.NDArray[np.float64], slowest: Any) -> None:
    """Draw a bar for each rank and round, and the time that the round takes."""
    ranks = len(work)
    axes = figure.sheet(4.75, 0.45, 4.5, 3.35)
    axes.set(xlim=(0, 4.5), ylim=(0, 3.35))
    axes.text(2.25, 3.2, "work of each rank, round by round", **centred(8, MUTED))
    across, pitch = 4.0 / slowest.sum(), 2.75 / ranks
    for rank in range(ranks):
        low = 2.9 - (rank + 1) * pitch
        axes.text(0.12, low + 0.4 * pitch, str(rank), **centred(8.5, INK))
        left = 0.35
        for step in range(ranks):
            wide, whole = work[rank, step] * across, slowest[step] * across
            axes.add_patch(
                Rectangle(
                    (left, low),
                    whole,
                    0.8 * pitch,
                    facecolor=COLOURS["idle"],
                    hatch="////",
                    edgecolor="white",
                    linewidth=0,
                    gid="waits",
                )
            )
            fill = _shade(step, ranks)
            axes.add_patch(
                Rectangle(
                    (left, low),
                    wide,
                    0.8 * pitch,
                    facecolor=fill,
                    edgecolor=edge(fill),
                    linewidth=0.5,
                    gid="works",
                )
            )
            left += whole
    axes.annotate(
        "time",
        (4.35, 0.06),
        (0.35, 0.06),
        va="center",
        fontsize=8,
        color=MUTED,
        arrowprops={"arrowstyle": "-|>", "color": MUTED, "lw": 0.8},
    )


# Domain parallelism: tiles and halos ------------------------------------------------------------


def tile_halos(
    rows: int = 2,
    columns: int = 3,
    cells: int = 6,
    width: int = 1,
    *,
    rank: int = 0,
    boundary: str = "zero",
    title: str | None = None,
) -> Figure:
    """Draw a field in rows x columns tiles of cells x cells, and the halo that one rank gets.

    Cells of the halo have the colour of the rank that sends them; what lies outside of the field
    is hatched, or comes from the opposite edge with boundary="periodic".
    Raises: ValueError for a rank that does not exist, or a halo wider than a tile.
    """
    if not 0 <= rank < rows * columns or not 0 < width <= cells:
        raise ValueError(
            f"tile_halos: rank {rank} of {rows * columns}, halo {width} on tiles of {cells}; "
            "give a rank of the mesh, and a halo of at most a tile."
        )
    row, column = divmod(rank, columns)
    tall, wide = rows * cells, columns * cells
    side = min(3.6 / (tall + 2 * width), 6.2 / (wide + 2 * width))
    figure = Figure(9.4, 1.2 + side * (tall + 2 * width))
    heading = title or f"{rows} x {columns} tiles, and the halo of rank {rank}"
    axes = figure.sheet(0.15, 0.2, 9.1, side * (tall + 2 * width))
    axes.set(xlim=(-width * side, 9.1 - width * side))
    axes.set(ylim=((tall + width) * side, -width * side))
    for number in range(rows * columns):
        y, x = divmod(number, columns)
        fill = blend(_colour(number), "#FFFFFF", 0.72)
        corner = x * cells * side, y * cells * side
        axes.add_patch(
            Rectangle(
                corner, cells * side, cells * side, facecolor=fill, edgecolor=INK, linewidth=0.8
            )
        )
        middle = corner[0] + cells * side / 2, corner[1] + cells * side / 2
        axes.text(*middle, f"rank {number}", **centred(9, INK))
    senders: dict[int, int] = {}
    for y in range(row * cells - width, (row + 1) * cells + width):
        for x in range(column * cells - width, (column + 1) * cells + width):
            inside = row * cells <= y < (row + 1) * cells
            if inside and column * cells <= x < (column + 1) * cells:
                continue
            outside = not (0 <= y < tall and 0 <= x < wide)
            source = (y % tall) // cells * columns + (x % wide) // cells
            empty = outside and boundary == "zero"
            fill = "none" if empty else _colour(source)
            axes.add_patch(
                Rectangle(
                    (x * side, y * side),
                    side,
                    side,
                    facecolor=fill,
                    hatch="////" if empty else "",
                    edgecolor=MUTED,
                    linewidth=0.4,
                    gid="zero" if empty else "halo",
                )
            )
            if not empty:
                senders[source] = senders.get(source, 0) + 1
    axes.add_patch(
        Rectangle(
            (column * cells * side, row * cells * side),
            cells * side,
            cells * side,
            facecolor="none",
            edgecolor=INK,
            linewidth=2.2,
        )
    )
    told = [f"{count} cells from rank {source}" for source, count in sorted(senders.items())]
    below = f"a halo of width {width}: {sum(senders.values())} cells of other ranks for "
    below += f"{cells * cells} own cells"
    figure.heading(heading, below)
    for line, words in enumerate(told):
        axes.text(wide * side + 0.6, line * 0.26, words, fontsize=8.5, color=INK, va="center")
    figure.alt_text = f"{heading} ({below}). Its halo: {', '.join(told)}."
    return figure


def _colour(rank: int) -> str:
    return PALETTE[rank % 6] if rank % 6 != 5 else COLOURS["compute"]


# A field, such as the depth of water, as it evolves ---------------------------------------------


def field_frames(
    frames: Sequence[npt.ArrayLike],
    names: Sequence[str],
    *,
    mesh: tuple[int, int] = (1, 1),
    title: str = "A field",
    unit: str = "",
) -> Figure:
    """Draw fields [H, W] beside each other in one scale of colours, with the edges of the tiles.

    `mesh` is the number of tiles along rows and columns. All frames share one scale, so that they
    can be compared.
    Raises: ValueError if there is not one name for each frame.
    """
    arrays = [np.asarray(frame, dtype=float) for frame in frames]
    if not arrays or len(arrays) != len(names):
        raise ValueError(f"field_frames: {len(arrays)} frames, but {len(names)} names.")
    low, high = min(a.min() for a in arrays), max(a.max() for a in arrays)
    across = 8.2 / len(arrays)
    tall = min(3.2, across * arrays[0].shape[0] / arrays[0].shape[1])
    figure = Figure(9.4, tall + 1.15)
    below = f"colours from {number_words(low)} to {number_words(high)} {unit}".rstrip()
    if mesh != (1, 1):
        below += f"; lines are the edges of {mesh[0]} x {mesh[1]} tiles"
    figure.heading(title, below)
    picture: Any = None
    for number, (array, name) in enumerate(zip(arrays, names, strict=True)):
        axes = figure.sheet(0.15 + number * across, 0.15, across - 0.15, tall)
        axes.set_title(name, fontsize=8.5, color=MUTED, pad=3)
        picture = axes.imshow(array, cmap="cividis", vmin=low, vmax=high, interpolation="nearest")
        for part in range(1, mesh[0]):
            axes.axhline(part * array.shape[0] / mesh[0] - 0.5, color="white", lw=0.8)
        for part in range(1, mesh[1]):
            axes.axvline(part * array.shape[1] / mesh[1] - 0.5, color="white", lw=0.8)
    scale = figure.add_axes((8.55 / 9.4, 0.2 / (tall + 1.15), 0.14 / 9.4, tall / (tall + 1.3)))
    bar = figure.colorbar(picture, cax=scale)
    bar.ax.tick_params(labelsize=7.5, colors=MUTED)
    told = [
        "{}: from {} to {}, mean {}".format(name, *map(number_words, (a.min(), a.max(), a.mean())))
        for name, a in zip(names, arrays, strict=True)
    ]
    figure.alt_text = f"{title} ({below}). {'; '.join(told)}."
    return figure
