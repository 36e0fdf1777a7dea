"""The rounds of a collective as data for figures, and the figure of a binomial tree.

A ring of three ranks. For each chunk, the table lists the ranks whose contribution is in it:

    start            rank 0: 0   0   0     rank 1: 1   1   1     rank 2: 2   2   2
    reduce-scatter 1 rank 0: 0   02  0     rank 1: 1   1   01    rank 2: 12  2   2
    reduce-scatter 2 rank 0: 012 02  0     rank 1: 1   012 01    rank 2: 12  2   012
    all-gather 1     rank 0: 012 02  012   rank 1: 012 012 01    rank 2: 12  012 012
    all-gather 2     rank 0: 012 012 012   rank 1: 012 012 012   rank 2: 012 012 012

A tree of four ranks. The whole tensor is sent as one chunk:

    start       rank 0: 0      rank 1: 1      rank 2: 2      rank 3: 3
    reduce 1    rank 0: 01     rank 1: 1      rank 2: 23     rank 3: 3
    reduce 2    rank 0: 0123   rank 1: 1      rank 2: 23     rank 3: 3
    broadcast 1 rank 0: 0123   rank 1: 1      rank 2: 0123   rank 3: 3
    broadcast 2 rank 0: 0123   rank 1: 0123   rank 2: 0123   rank 3: 0123
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from dtlab.show.drawing.style import (
    COLOURS,
    INK,
    MUTED,
    SHEET,
    Figure,
    blend,
    centred,
    edge,
)
from dtlab.show.words import list_words

__all__ = [
    "ARROW",
    "EMPTY",
    "Move",
    "Round",
    "TreeOperation",
    "cells_of",
    "draw_cells",
    "draw_tag",
    "fill",
    "ring_rounds",
    "tree",
    "tree_rounds",
]

TreeOperation = Literal["all_reduce", "reduce", "broadcast"]

Held = tuple[tuple[frozenset[int], ...], ...]


@dataclass(frozen=True)
class Move:
    """One message of a round: `src` sends its copy of `chunk` to `dst`."""

    src: int
    dst: int
    chunk: int


@dataclass(frozen=True)
class Round:
    """One round: its messages, and what every rank holds once they have arrived.

    `held[rank][chunk]` is the set of ranks whose contribution is in that copy of the chunk.
    `number` counts from 1 within the phase; the start is round 0 of the phase "start".
    """

    phase: str
    number: int
    moves: tuple[Move, ...]
    held: Held

    @property
    def title(self) -> str:
        """The phase, and the number of this round within it."""
        return self.phase if self.phase == "start" else f"{self.phase} {self.number}"


def ring_rounds(num_ranks: int) -> list[Round]:
    """Return the start and the 2(N-1) rounds of a ring all-reduce among `num_ranks` ranks.

    In round s of reduce-scatter, rank r sends chunk r-s, and the receiver adds it to its own copy.
    The last sum that rank r computes is the complete chunk r. In round s of all-gather, rank r
    sends chunk r-s+1, and the receiver overwrites its copy. Raises `ValueError` for less than one
    rank.
    """
    if num_ranks < 1:
        raise ValueError(f"a ring needs at least one rank, not {num_ranks}")
    held: Held = tuple(
        tuple(frozenset({rank}) for _ in range(num_ranks)) for rank in range(num_ranks)
    )
    rounds = [Round("start", 0, (), held)]
    for phase, offset in (("reduce-scatter", 0), ("all-gather", 1)):
        for number in range(1, num_ranks):
            moves = tuple(
                Move(rank, (rank + 1) % num_ranks, (rank - number + offset) % num_ranks)
                for rank in range(num_ranks)
            )
            held = _after(held, moves, add=phase == "reduce-scatter")
            rounds.append(Round(phase, number, moves, held))
    return rounds


def tree_rounds(num_ranks: int, operation: TreeOperation = "all_reduce") -> list[Round]:
    """Return the start and the rounds of a binomial tree among `num_ranks` ranks with root 0.

    On the way up, for each distance 1, 2, 4, ..., the ranks at odd multiples of the distance send
    their sum to the rank one distance below, which adds it. On the way down, the same messages run
    in the opposite direction, the largest distance first. Raises `ValueError` for less than one
    rank or another operation.
    """
    if num_ranks < 1:
        raise ValueError(f"a tree needs at least one rank, not {num_ranks}")
    if operation not in get_args(TreeOperation):
        raise ValueError(
            f"a tree draws {', '.join(map(repr, get_args(TreeOperation)))}, not {operation!r}"
        )
    distances = [1 << bit for bit in range((num_ranks - 1).bit_length())]
    up = [
        tuple(Move(rank, rank - distance, 0) for rank in range(distance, num_ranks, 2 * distance))
        for distance in distances
    ]
    down = [tuple(Move(move.dst, move.src, 0) for move in moves) for moves in reversed(up)]
    root_alone = operation == "broadcast"
    held: Held = tuple(
        (frozenset[int]() if root_alone and rank else frozenset({rank}),)
        for rank in range(num_ranks)
    )
    rounds = [Round("start", 0, (), held)]
    for phase, all_moves in (("reduce", up), ("broadcast", down)):
        if operation in ("all_reduce", phase):
            for number, moves in enumerate(all_moves, 1):
                held = _after(held, moves, add=phase == "reduce")
                rounds.append(Round(phase, number, moves, held))
    return rounds


def _after(held: Held, moves: tuple[Move, ...], *, add: bool) -> Held:
    """Return what every rank holds after all `moves`, which are sent at the same time."""
    table = [list(row) for row in held]
    for move in moves:
        arrived = held[move.src][move.chunk]
        before = held[move.dst][move.chunk]
        table[move.dst][move.chunk] = arrived | before if add else arrived
    return tuple(tuple(row) for row in table)


# Cells and tags, shared by the figures of collectives --------------------------------------------
#
# A copy of a chunk is a column of cells, one for each rank, with rank 0 on top. A cell is filled
# if that rank's contribution is in the copy. A copy with more contributions is darker.

ARROW: Final = COLOURS["communication"]
EMPTY: Final = "#EFEFEB"
_PALE, _FULL = "#B9DDCD", "#00573F"  # one hue, different from the colours of the roles


def fill(count: int, num_ranks: int) -> str:
    """Return the colour of a copy that holds `count` of `num_ranks` contributions."""
    if count == 0:
        return EMPTY
    return blend(_PALE, _FULL, (count - 1) / (num_ranks - 1) if num_ranks > 1 else 1.0)


def cells_of(copy: frozenset[int], num_ranks: int) -> list[str]:
    """Return the colours of the cells of a copy that holds the contributions of these ranks."""
    full = fill(len(copy), num_ranks)
    return [full if rank in copy else EMPTY for rank in range(num_ranks)]


def draw_cells(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float],
    columns: Sequence[Sequence[str]], gid: str,
) -> None:  # fmt: skip
    """Draw columns of cells, from the top down, in a box with this lower left corner.

    All cells are one artist named `gid`: one patch per cell would take three times as long.
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
    """Draw the number of a chunk that is being sent, in a small circle."""
    box = {"boxstyle": "circle,pad=0.2", "facecolor": SHEET, "edgecolor": edge(ARROW)}
    axes.text(*place, label, **centred(size, INK, weight="bold"), bbox={**box, "linewidth": 0.8})


# Figure of a binomial tree -----------------------------------------------------------------------
#
# A box shows what a rank holds after a round. It has one cell per rank, filled if that rank's
# contribution is included. An arrow leads from the sender's box before the round to the receiver's
# box after it.

_TITLES = {"all_reduce": "Tree all-reduce", "reduce": "Reduce", "broadcast": "Broadcast"}
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.25, 0.2, 0.85, 0.62  # inches around the rows
_COLUMN, _ROW = 0.98, 0.66  # inches from rank to rank, and from round to round
_BOX, _CELL = 0.72, 0.2  # inches: width of a box's row of cells, and its height
_PAD = 0.05
_LATER = "#C9C9C3"


def tree(
    num_ranks: int = 8,
    step: int | None = None,
    *,
    operation: TreeOperation = "all_reduce",
    title: str | None = None,
) -> Figure:
    """Draw a binomial tree with rank 0 as its root: all its rounds, or the rounds up to `step`.

    `operation` is "all_reduce" (up the tree, then down), "reduce" (up) or "broadcast" (down).
    `step` counts rounds from 0, the start. The messages of that round are emphasised, and later
    rounds are empty.
    Raises `ValueError` for a step that does not exist, or for other than 1 to 8 ranks.
    """
    if not 1 <= num_ranks <= 8:
        raise ValueError(f"tree draws 1 to 8 ranks, not {num_ranks}.")
    rounds = tree_rounds(num_ranks, operation)
    if step is not None and not 0 <= step < len(rounds):
        raise ValueError(f"this tree has steps 0 to {len(rounds) - 1}, not {step}.")
    whole = f"{_TITLES[operation]} among {num_ranks} rank{'s' * (num_ranks > 1)}"
    heading = title or (whole if step is None else f"{whole}: {_heading(rounds, step)}")
    width = max(_LEFT + num_ranks * _COLUMN + _RIGHT, 5.8)
    height = _TOP + _BOTTOM + (len(rounds) - 1) * _ROW + _CELL + 2 * _PAD
    figure = Figure(width, height, alt_text=_alt_text(heading, rounds, step))
    figure.heading(heading)
    axes = figure.sheet(0, 0, width, height)
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    ladder = _Ladder(axes, rounds, height - _TOP)
    for rank in range(num_ranks):
        x, _ = ladder.place(rank, 0)
        axes.text(x, height - _TOP + 0.15, f"rank {rank}", **centred(9, INK))
    for row in range(len(rounds)):
        ladder.draw(row, step)
    _draw_key(axes, num_ranks)
    return figure


def _heading(rounds: Sequence[Round], step: int) -> str:
    """Name the phase and the round."""
    drawn = rounds[step]
    if drawn.phase == "start":
        return "at the start"
    total = max(each.number for each in rounds if each.phase == drawn.phase)
    return f"{drawn.phase}, round {drawn.number} of {total}"


@dataclass(frozen=True)
class _Ladder:
    """The rows of a tree that is being drawn; `top` is the upper end of the first, in inches."""

    axes: Axes
    rounds: Sequence[Round]
    top: float

    def place(self, rank: int, row: int) -> tuple[float, float]:
        """Return the centre of a rank's box in a row."""
        y = self.top - _PAD - _CELL / 2 - row * _ROW
        return _LEFT + (rank + 0.5) * _COLUMN, y

    def draw(self, row: int, step: int | None) -> None:
        """Draw one round: its name, its messages, and what every rank holds after it."""
        drawn, (_, y) = self.rounds[row], self.place(0, row)
        past, later = (False, False) if step is None else (row < step, row > step)
        label = self.axes.text(_LEFT - 0.1, y, drawn.title, ha="right", va="center", fontsize=9)
        label.set(color=MUTED if later else INK, weight="bold" if row == step else "normal")
        received = {move.dst for move in drawn.moves}
        if row > 0:
            self._draw_stays(row, later)
        for rank, copies in enumerate(drawn.held):
            self._draw_box(rank, row, later)
            if later:
                continue
            corner = (self.place(rank, row)[0] - _BOX / 2, y - _CELL / 2)
            name = f"round {row} rank {rank}"
            _draw_copy(self.axes, corner, copies[0], len(drawn.held), f"{name} cells")
            if rank in received and not past:
                _outline(self.axes, corner, f"{name} received")
        if not later:
            self._draw_moves(row, faint=past)

    def _draw_box(self, rank: int, row: int, later: bool) -> None:
        x, y = self.place(rank, row)
        box = FancyBboxPatch(
            (x - _BOX / 2, y - _CELL / 2), _BOX, _CELL,
            boxstyle=f"round,pad={_PAD},rounding_size=0.05", facecolor="#FFFFFF",
            edgecolor=_LATER if later else MUTED, linewidth=0.8, gid=f"round {row} rank {rank}",
        )  # fmt: skip
        self.axes.add_artist(box)

    def _draw_stays(self, row: int, later: bool) -> None:
        """Draw thin lines from the row above: a rank keeps what it holds."""
        places = [self.place(rank, row) for rank in range(len(self.rounds[0].held))]
        low = places[0][1] + _CELL / 2 + _PAD
        self.axes.vlines(
            [x for x, _ in places], low, low + _ROW - _CELL - 2 * _PAD, color=_LATER,
            linewidth=0.8, zorder=0.5, linestyle=":" if later else "-",
        )  # fmt: skip

    def _draw_moves(self, row: int, faint: bool) -> None:
        """Draw the messages of a round, from the row above to this row."""
        for move in self.rounds[row].moves:
            from_x, from_y = self.place(move.src, row - 1)
            to_x, to_y = self.place(move.dst, row)
            aside = _BOX / 4 if from_x < to_x else -_BOX / 4
            arrow = FancyArrowPatch(
                (from_x + aside / 2, from_y - _CELL / 2 - _PAD),
                (to_x - aside, to_y + _CELL / 2 + _PAD),
                arrowstyle="-|>", mutation_scale=11, linewidth=1.8, color=ARROW, shrinkA=0,
                shrinkB=0.5, alpha=0.45 if faint else 1.0, zorder=3,
                gid=f"round {row} move {move.src} {move.dst}",
            )  # fmt: skip
            self.axes.add_artist(arrow)


def _draw_copy(
    axes: Axes, corner: tuple[float, float], copy: frozenset[int], num_ranks: int, gid: str
) -> None:
    """Draw one copy of the whole tensor as cells side by side, with rank 0 on the left."""
    draw_cells(axes, corner, (_BOX, _CELL), [[cell] for cell in cells_of(copy, num_ranks)], gid)


def _outline(axes: Axes, corner: tuple[float, float], gid: str) -> None:
    """Draw an outline around a copy that has just arrived."""
    outline = Rectangle(corner, _BOX, _CELL, fill=False, edgecolor=ARROW, linewidth=1.7, gid=gid)
    axes.add_artist(outline)


def _draw_key(axes: Axes, num_ranks: int) -> None:
    """Draw the key, in one line below the rows."""
    words: dict[str, Any] = {"fontsize": 8, "color": MUTED, "ha": "left", "va": "center"}
    left, y = 0.35, 0.28
    sample = frozenset(range(0, num_ranks, 2))
    _draw_copy(axes, (left, y - _CELL / 2), sample, num_ranks, "key cells")
    axes.text(left + _BOX + 0.1, y, "whose values are in it, rank 0 on the left", **words)
    _outline(axes, (left + 3.5, y - _CELL / 2), "key received")
    axes.text(left + 3.5 + _BOX + 0.1, y, "has just arrived", **words)


def _alt_text(heading: str, rounds: Sequence[Round], step: int | None) -> str:
    """Describe the messages of each round, and what each rank holds after the last."""
    shown = rounds[1:] if step is None else [rounds[step]]
    parts = [f"{heading}."]
    if not shown:
        parts.append("No message is needed.")
    for drawn in shown:
        sent = [f"rank {move.src} sends to rank {move.dst}" for move in drawn.moves]
        parts += [f"{drawn.title.capitalize()}: {list_words(sent)}."] if sent else []
    return " ".join([*parts, _state(rounds[-1 if step is None else step])])


def _state(drawn: Round) -> str:
    """Describe whose values each rank holds."""
    copies = [copy for (copy,) in drawn.held]
    if all(len(copy) == len(copies) for copy in copies):
        return f"Then every rank holds the values of all {len(copies)} ranks."
    holds = [
        f"rank {rank}: {list_words([str(r) for r in sorted(copy)]) or 'nothing'}"
        for rank, copy in enumerate(copies)
    ]
    return f"Whose values each rank then holds: {'; '.join(holds)}."
