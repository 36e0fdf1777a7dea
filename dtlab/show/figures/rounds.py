"""The rounds of a collective as data for figures.

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
from typing import Final, Literal, get_args

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from dtlab.show.drawing.style import COLOURS, INK, SHEET, blend, centred, edge

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
