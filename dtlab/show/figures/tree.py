"""Figure of a binomial tree, round by round.

A box shows what a rank holds after a round. It has one cell per rank, filled if that rank's
contribution is included. An arrow leads from the sender's box before the round to the receiver's
box after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from dtlab.show.drawing.style import INK, MUTED, Figure, centred
from dtlab.show.figures.rounds import (
    ARROW,
    Round,
    TreeOperation,
    cells_of,
    draw_cells,
    tree_rounds,
)
from dtlab.show.words import list_words

__all__ = ["tree"]

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
