"""Figures of a sequence or a field that is split over ranks.

sequence_and_field: why one token needs all tokens, and one cell only its neighbours
length_bars: memory and messages of four ways to split attention

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

from dtlab.predict.context import (
    attention_bytes,
    megatron_sequence_elements,
    ring_attention_elements,
    ulysses_elements,
)
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
from dtlab.show.words import byte_words, number_words, short_words

__all__ = [
    "attention_rounds", "field_frames", "length_bars", "sequence_and_field", "tile_halos",
]  # fmt: skip

_ROUNDS: Final = (COLOURS["forward"], "#8CCBEF", "#B7DDF5", "#DCEEFA")  # early rounds are darker
_MOST_RANKS: Final = 8
_BOX: Final = 3.2  # inches of the square of queries and keys


# Why a sequence and a field need different messages ---------------------------------------------


def sequence_and_field() -> Figure:
    """Draw a sequence and a field on four ranks, and what rank 2 needs from the other ranks.

    Left, lines join a token of rank 2 to all tokens; right, the border of rank 2's tile has the
    colours of the ranks that send it.
    """
    figure = Figure(9.4, 3.7)
    heading = "One sample on four ranks: what does rank 2 need from others?"
    figure.heading(heading, "a colour per rank; strong colours are what rank 2 needs")
    axes = figure.sheet(0, 0, 9.4, 3.7)
    axes.set(xlim=(0, 9.4), ylim=(0, 3.7))

    def cell(x: float, y: float, size: float, rank: int, needed: bool) -> None:
        fill = _colour(rank) if needed else blend(_colour(rank), "#FFFFFF", 0.72)
        box = (x, y), size, size
        axes.add_patch(Rectangle(*box, facecolor=fill, edgecolor="white", linewidth=0.8))

    def outline(x: float, y: float, wide: float, tall: float) -> None:
        axes.add_patch(Rectangle((x, y), wide, tall, facecolor="none", edgecolor=INK, lw=1.8))

    left, side = 0.35, 0.36
    for token in range(12):
        rank = token // 3
        cell(left + token * side, 2.1, side, rank, rank != 2)
        cell(left + token * side, 1.05, side, rank, False)
        ends = [left + 7.5 * side, left + (token + 0.5) * side], [1.05 + side, 2.1]
        axes.plot(*ends, color=INK if rank != 2 else MUTED, lw=0.9, gid="needs")
    for rank in range(4):
        axes.text(left + (3 * rank + 1.5) * side, 2.56, f"rank {rank}", **centred(8.5, INK))
    outline(left + 6 * side, 1.05, 3 * side, side)
    strong: dict[str, Any] = {"fontsize": 10, "color": INK, "weight": "bold"}
    plain: dict[str, Any] = {"fontsize": 8.5, "color": INK}
    axes.text(left, 2.82, "A sequence of 12 tokens: attention", **strong)
    axes.text(left, 0.72, "The result of one token depends on all tokens.", **plain)
    axes.text(left, 0.45, "Rank 2 needs keys and values of all ranks.", **plain)

    corner, cells, size = 5.6, 5, 0.2
    for y in range(2 * cells):
        for x in range(2 * cells):
            rank = 2 * (y // cells) + x // cells
            needed = rank != 2 and cells - 1 <= y and x <= cells
            cell(corner + x * size, 2.62 - (y + 1) * size, size, rank, needed)
    outline(corner, 2.62 - 2 * cells * size, cells * size, cells * size)
    for rank, (x, y) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        beside = corner - 0.32 if x == 0 else corner + 2 * cells * size + 0.32
        middle = 2.62 - (y + 0.5) * cells * size
        axes.text(beside, middle, f"rank {rank}", **centred(8.5, INK))
    axes.text(corner - 0.6, 2.82, "A field of 10 x 10 cells: neighbours", **strong)
    axes.text(corner - 0.6, 0.34, "The result of one cell depends on its neighbours.", **plain)
    axes.text(corner - 0.6, 0.08, "Rank 2 needs a border of other tiles, the halo.", **plain)
    figure.alt_text = (
        f"{heading} Left, a sequence of 12 tokens: each rank has 3. The result of one token "
        "depends on all tokens, so rank 2 needs keys and values of all ranks. Right, a field in "
        "2 x 2 tiles: the result of one cell depends on its neighbours, so rank 2 needs one row "
        "from rank 0, one column from rank 3 and one corner cell from rank 1."
    )
    return figure


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
        f"rank {rank}: {', '.join(f'{100 * part:.3g}' for part in row)}"
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


# Four ways to split attention --------------------------------------------------------------------


def length_bars(
    tokens: int = 131072,
    ranks: int = 8,
    heads: int = 32,
    kv_heads: int = 8,
    head_size: int = 128,
    *,
    title: str | None = None,
) -> Figure:
    """Draw what four ways to split attention store and send, per rank and layer, in 16 bits.

    The ways are Megatron's sequence parallelism, Ulysses, ring attention, and gathered keys and
    values. Three columns of bars: the scores if a rank stores them (fused attention does not),
    the keys and values that it has at one time, and the bytes that it sends in forward.
    Raises: ValueError if `kv_heads` does not divide `heads`.
    """
    if heads % kv_heads:
        raise ValueError(f"length_bars: {kv_heads} KV heads do not divide {heads} heads.")
    hidden, kv_size = heads * head_size, kv_heads * head_size
    whole = 2 * 2 * tokens * kv_size  # bytes of all keys and values
    scores = {
        way: attention_bytes(tokens, heads, ranks=ranks, element_bytes=2, way=way)
        for way in ("heads", "ring")
    }
    around = 2 * ring_attention_elements(tokens, kv_size, ranks)
    megatron = 2 * megatron_sequence_elements(tokens, hidden, ranks)
    rows: dict[str, tuple[str, tuple[Any, ...]]] = {
        "Megatron": (
            "" if heads % ranks == 0 else f"{ranks} ranks cannot divide {heads} heads",
            (scores["heads"], whole / min(ranks, kv_heads), megatron),
        ),
        "Ulysses": (
            "" if kv_heads % ranks == 0 else f"{ranks} ranks cannot divide {kv_heads} KV heads",
            (scores["heads"], whole / ranks, 2 * ulysses_elements(tokens, hidden, ranks, kv_size)),
        ),
        "ring": ("", (scores["ring"], whole * min(ranks, 2) / ranks, around)),
        "gathered": ("", (scores["heads"], whole, around)),
    }
    columns = ("scores, if stored", "keys and values at one time", "sent in forward")
    figure = Figure(9.4, 3.05)
    group = "1 rank" if ranks == 1 else f"{ranks} ranks: {-(-tokens // ranks):,} tokens on each"
    heading = title or f"{tokens:,} tokens on {group}"
    below = f"per rank and layer, 16 bits; {heads} heads, {kv_heads} KV heads of size {head_size}"
    figure.heading(heading, below)
    axes = figure.sheet(0, 0, 9.4, 3.05)
    axes.set(xlim=(0, 9.4), ylim=(0, 3.05))
    told = []
    for column, name in enumerate(columns):
        axes.text(1.25 + 2.75 * column, 2.16, name, fontsize=8.5, color=MUTED)
    for row, (way, (reason, sizes)) in enumerate(rows.items()):
        low = 1.68 - 0.48 * row
        axes.text(0.15, low + 0.13, way, fontsize=9, color=INK, va="center")
        if reason:
            why = f"not possible: {reason}"
            axes.text(1.25, low + 0.13, why, fontsize=8.5, color=MUTED, va="center")
            told.append(f"{way}: {why}")
            continue
        for column, size in enumerate(sizes):
            longest = max(other[column] for no, other in rows.values() if not no)
            wide, left = 1.6 * size / (longest or 1), 1.25 + 2.75 * column
            fill = (COLOURS["forward"], PALETTE[0], COLOURS["communication"])[column]
            bar = Rectangle((left, low), wide, 0.26, facecolor=fill, edgecolor=edge(fill), gid=way)
            axes.add_patch(bar)
            words = short_words(byte_words(size))
            axes.text(left + wide + 0.07, low + 0.13, words, fontsize=8.5, color=INK, va="center")
        pairs = zip(columns, sizes, strict=True)
        told.append(f"{way}: " + ", ".join(f"{name} {byte_words(size)}" for name, size in pairs))
    figure.alt_text = f"{heading} ({below}). {'; '.join(told)}."
    return figure


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
    told = [
        f"{count} cell{'s' if count > 1 else ''} from rank {source}"
        for source, count in sorted(senders.items())
    ]
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
    like: Sequence[npt.ArrayLike] = (),
) -> Figure:
    """Draw fields [H, W] next to each other in one scale of colours, with the edges of the tiles.

    `mesh` is the number of tiles along rows and columns. All frames share one scale, so that they
    can be compared, and so do those of another figure if they are passed as `like`.
    Raises: ValueError if there is not one name for each frame.
    """
    arrays = [np.asarray(frame, dtype=float) for frame in frames]
    scaled = [*arrays, *(np.asarray(frame, dtype=float) for frame in like)]
    if not arrays or len(arrays) != len(names):
        raise ValueError(f"field_frames: {len(arrays)} frames, but {len(names)} names.")
    low, high = min(a.min() for a in scaled), max(a.max() for a in scaled)
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
