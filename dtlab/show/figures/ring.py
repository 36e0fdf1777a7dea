"""Figures of a ring all-reduce: its rounds (`ring`), and its messages in time (`ring_timeline`).

In `ring` every rank is a box with one column per chunk. A column has one cell per rank, filled if
that rank's contribution is in this copy of the chunk. A copy with more contributions is darker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from dtlab.show.drawing.lanes import lanes, messages
from dtlab.show.drawing.style import (
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
from dtlab.show.drawing.time_axis import time_axes
from dtlab.show.figures.rounds import (
    ARROW,
    EMPTY,
    Move,
    Round,
    cells_of,
    draw_cells,
    draw_tag,
    fill,
    ring_rounds,
)
from dtlab.show.words import byte_words, list_words, time_words

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["ring", "ring_timeline"]

_BOX = 0.74  # side of a rank's square of cells, in units of the radius of a ring of four
_KEY_WIDTH, _KEY_HEIGHT = 2.35, 1.5  # inches
_HEADING = 0.3


def ring(num_ranks: int = 4, step: int | None = None, *, title: str | None = None) -> Figure:
    """Draw a ring all-reduce among `num_ranks` ranks: one round of it, or all rounds.

    `step` counts rounds from 0, the start, to 2(N-1), the end for N ranks. A panel shows what
    every rank holds after that round, and the messages that have just arrived. Without `step`,
    every round has a panel. Raises `ValueError` for a step that does not exist, or for other than
    1 to 8 ranks.
    """
    if not 1 <= num_ranks <= 8:
        raise ValueError(f"ring draws 1 to 8 ranks, not {num_ranks}")
    rounds = ring_rounds(num_ranks)
    if step is None:
        return _all_rounds(rounds, title)
    if not 0 <= step < len(rounds):
        raise ValueError(f"a ring of {num_ranks} has steps 0 to {len(rounds) - 1}, not {step}")
    return _one_round(rounds, step, title)


def _one_round(rounds: list[Round], step: int, title: str | None) -> Figure:
    """Draw one round, large, with the key next to it."""
    drawn = rounds[step]
    num_ranks = len(drawn.held)
    inches = 1.3 if num_ranks <= 4 else 1.0
    side = 2 * _extent(num_ranks) * inches
    heading = title or f"Ring all-reduce, {_heading(drawn, num_ranks)}"
    alt_text = f"{heading}. {_legend_in_words(num_ranks)} {_round_in_words(drawn)}"
    figure = Figure(side + _KEY_WIDTH + 0.2, side + 0.45, alt_text=alt_text)
    figure.heading(heading)
    _draw_round(figure.sheet(0, 0, side, side), drawn, inches)
    _draw_key(figure.sheet(side, side / 2 - 0.75, _KEY_WIDTH, _KEY_HEIGHT), num_ranks)
    return figure


def _all_rounds(rounds: list[Round], title: str | None) -> Figure:
    """Draw every round; up to four ranks, each phase has its own row."""
    num_ranks = len(rounds[0].held)
    columns = min(4, max(2, num_ranks))
    places = [divmod(index, columns) for index in range(len(rounds) + 1)]
    key = places.pop() if num_ranks > 4 or num_ranks == 1 else places.pop(columns)
    inches = 0.77 if num_ranks <= 4 else 0.68
    side = max(2 * _extent(num_ranks) * inches, _KEY_WIDTH)
    height = (max(row for row, _ in [*places, key]) + 1) * (side + _HEADING) + 0.45
    heading = title or f"Ring all-reduce among {num_ranks} rank{'s' * (num_ranks > 1)}"
    alt_text = f"{heading}. {_legend_in_words(num_ranks)} {_all_in_words(rounds)}"
    figure = Figure(columns * side, height, alt_text=alt_text)
    figure.heading(heading)
    for drawn, (row, column) in zip(rounds, places, strict=True):
        top = height - 0.45 - row * (side + _HEADING)
        label = ((column + 0.5) / columns, (top - _HEADING / 2) / height)
        figure.text(*label, _heading(drawn, num_ranks), **centred(9, INK))
        axes = figure.sheet(column * side, top - _HEADING - side, side, side)
        _draw_round(axes, drawn, inches)
    middle = height - 0.45 - key[0] * (side + _HEADING) - (side + _HEADING) / 2
    axes = figure.sheet(key[1] * side, middle - _KEY_HEIGHT / 2, _KEY_WIDTH, _KEY_HEIGHT)
    _draw_key(axes, num_ranks)
    return figure


def _heading(drawn: Round, num_ranks: int) -> str:
    if drawn.phase == "start":
        return "at the start"
    return f"{drawn.phase}, round {drawn.number} of {num_ranks - 1}"


def _radius(num_ranks: int) -> float:
    """Return the radius of the circle of ranks, wide enough for arrows between the boxes."""
    return max(1.0, 0.68 / math.sin(math.pi / num_ranks)) if num_ranks > 1 else 0.0


def _extent(num_ranks: int) -> float:
    """Return half the side of a panel, in the unit of `_radius`."""
    return _radius(num_ranks) + 0.58


@dataclass(frozen=True)
class _Panel:
    """The axes of a round that is being drawn, with its number of ranks and inches per unit."""

    axes: Axes
    num_ranks: int
    inches: float

    @property
    def font(self) -> float:
        """Size of a rank's name in points."""
        return 10 * self.inches

    def place(self, rank: float, radius: float | None = None) -> tuple[float, float]:
        """Return the position of a rank: rank 0 on top, the others clockwise."""
        angle = math.pi / 2 - 2 * math.pi * rank / self.num_ranks
        distance = _radius(self.num_ranks) if radius is None else radius
        return distance * math.cos(angle), distance * math.sin(angle)


def _draw_round(axes: Axes, drawn: Round, inches: float) -> None:
    """Draw ranks on a circle, clockwise from the top, and the round's messages between them."""
    panel = _Panel(axes, len(drawn.held), inches)
    extent = _extent(panel.num_ranks)
    axes.set_xlim(-extent, extent)
    axes.set_ylim(-extent, extent)
    axes.set_aspect("equal")
    boxes = []
    for rank, chunks in enumerate(drawn.held):
        received = {move.chunk for move in drawn.moves if move.dst == rank}
        boxes.append(_draw_rank(panel, rank, chunks, received))
    for move in drawn.moves:
        _draw_move(panel, move, boxes[move.src], boxes[move.dst])


def _draw_rank(
    panel: _Panel, rank: int, chunks: tuple[frozenset[int], ...], received: set[int]
) -> FancyBboxPatch:
    """Draw a rank's box: its name, and a column per chunk with a cell for each contribution."""
    x, y = panel.place(rank)
    left, bottom = x - _BOX / 2, y - _BOX / 2 - 0.08
    box = FancyBboxPatch(
        (left, bottom), _BOX, _BOX + 0.16, boxstyle="round,pad=0.06,rounding_size=0.08",
        facecolor="#FFFFFF", edgecolor=MUTED, linewidth=0.8, gid=f"rank {rank}",
    )  # fmt: skip
    panel.axes.add_artist(box)
    panel.axes.text(x, bottom + _BOX + 0.1, f"rank {rank}", **centred(panel.font, INK))
    width = _BOX / panel.num_ranks
    columns = [cells_of(copy, panel.num_ranks) for copy in chunks]
    draw_cells(panel.axes, (left, bottom), (_BOX, _BOX), columns, f"rank {rank} cells")
    for chunk in received:
        outline = Rectangle(
            (left + chunk * width, bottom), width, _BOX, fill=False, edgecolor=ARROW,
            linewidth=min(2.2, 10 * width) * panel.inches, gid=f"rank {rank} received {chunk}",
        )  # fmt: skip
        panel.axes.add_artist(outline)
    return box


def _draw_move(panel: _Panel, move: Move, src: FancyBboxPatch, dst: FancyBboxPatch) -> None:
    """Draw an arrow from sender to receiver, with the number of the chunk that was sent."""
    bend = 0.28 if panel.num_ranks > 2 else 0.55
    start, end = panel.place(move.src), panel.place(move.dst)
    arrow = FancyArrowPatch(
        start, end, arrowstyle="-|>", connectionstyle=f"arc3,rad={-bend}", patchA=src, patchB=dst,
        mutation_scale=13 * panel.inches, linewidth=2 * panel.inches, color=ARROW,
        shrinkA=0, shrinkB=1, gid=f"move {move.src} {move.dst} {move.chunk}",
    )  # fmt: skip
    panel.axes.add_artist(arrow)
    middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
    across = (start[1] - end[1], end[0] - start[0])  # to the left of the arrow, i.e. outwards
    spot = [m + a * (bend / 2) + a / math.hypot(*across) * 0.16
            for m, a in zip(middle, across, strict=True)]  # fmt: skip
    draw_tag(panel.axes, (spot[0], spot[1]), str(move.chunk), panel.font)


def _draw_key(axes: Axes, num_ranks: int) -> None:
    """Draw the key: the shades, a column and its cells, the outline, the number on an arrow."""
    axes.set_xlim(0, _KEY_WIDTH)
    axes.set_ylim(0, _KEY_HEIGHT)
    words: dict[str, Any] = {"fontsize": 8, "color": MUTED, "ha": "left", "va": "center"}
    for count in range(1, num_ranks + 1):
        corner, width = (0.15 + (count - 1) * 0.72 / num_ranks, 1.18), 0.72 / num_ranks
        axes.add_artist(Rectangle(corner, width, 0.15, facecolor=fill(count, num_ranks)))
    ranks = f"values of 1 to {num_ranks} ranks" if num_ranks > 1 else "value of its one rank"
    axes.text(0.97, 1.255, ranks, **words)
    for row in range(3):
        colour = fill(num_ranks // 2 + 1, num_ranks) if row != 1 else EMPTY
        axes.add_artist(Rectangle((0.44, 0.95 - row * 0.145), 0.13, 0.13, facecolor=colour))
    axes.text(0.72, 0.87, "column: chunk 0, 1, …\ncell: whose value is in it,\nrank 0 on top",
              linespacing=1.25, **words)  # fmt: skip
    axes.add_artist(Rectangle((0.44, 0.36), 0.13, 0.2, fill=False, edgecolor=ARROW, linewidth=1.7))
    axes.text(0.72, 0.46, "has just arrived", **words)
    draw_tag(axes, (0.505, 0.18), "1", 7)
    axes.text(0.72, 0.18, "the chunk that travelled", **words)


def _legend_in_words(num_ranks: int) -> str:
    return f"The tensor is cut into {num_ranks} chunk{'s' * (num_ranks > 1)}, one column each."


def _complete(drawn: Round) -> int:
    """Count the copies of chunks, over all ranks, that hold every rank's contribution."""
    return sum(len(chunk) == len(drawn.held) for row in drawn.held for chunk in row)


def _round_in_words(drawn: Round) -> str:
    """Describe one panel: which rank sent which chunk, and how many copies are complete."""
    sent = [f"rank {m.src} sent chunk {m.chunk} to rank {m.dst}" for m in drawn.moves]
    state = f"{_complete(drawn)} of {len(drawn.held) ** 2} copies hold the full sum."
    return f"{list_words(sent)}; {state}".capitalize() if sent else state


def _all_in_words(rounds: list[Round]) -> str:
    """Describe all panels together."""
    num_ranks = len(rounds[0].held)
    if num_ranks == 1:
        return "No message is needed."
    counts = list_words([f"{_complete(drawn)} after {drawn.title}" for drawn in rounds[1:]])
    return (
        "In each round every rank sends one chunk to the next rank and receives one from the "
        f"previous rank. Number of the {num_ranks**2} copies that hold the full sum: {counts}."
    )


# The messages of a real ring all-reduce on the clock ---------------------------------------------
#
#              reduce-scatter       ╎ all-gather           A bar is a chunk on its way to the rank.
#     rank 0   [2][ 1 ][ 0]          ╎ [ 3][2 ][ 1 ]       It begins when the left neighbour sends
#     rank 1     [3][ 2 ][ 1 ]        ╎  [ 0][ 3 ][ 2 ]    it, or when the chunk before it arrives.

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 9.6, 0.75, 1.15, 1.22, 0.55  # inches
_LANE, _GAP = 0.34, 0.2
_FOLLOWED: Final = 0  # the chunk with arrows
_PARTIAL: Final = 0.55  # share of white in the colour of a chunk whose sum is not complete


class _Arrival(NamedTuple):
    """A chunk received by `rank`: sent at `sent`, in transit from `start`, received at `end`."""

    rank: int
    round: int
    chunk: int
    sent: float
    start: float
    end: float
    bytes: int

    @property
    def words(self) -> str:
        """The chunk, the number of bytes and the times, as lines of text."""
        times = f"{time_words(self.start) if self.start else 0} to {time_words(self.end)}"
        size = byte_words(self.bytes)
        return f"chunk {self.chunk} on its way to rank {self.rank}\n{size}, {times}"


def ring_timeline(trace: Trace, *, title: str = "A ring all-reduce in time") -> Figure:
    """Draw the messages of one `ring_all_reduce` in time: a lane per rank, a bar per chunk.

    A chunk has one colour on all ranks, pale while its sum is not complete. A dashed line
    separates the two halves, and arrows follow chunk 0. The clock starts at the first send.
    Chunks are numbered as in `ring`. Raises: ValueError if the trace is not one ring all-reduce
    of N = 2 to 8 ranks, in which every rank sends 2(N-1) messages to its right neighbour.
    """
    num_ranks = trace.world_size
    arrivals = _arrivals(trace)
    height = _TOP + num_ranks * (_LANE + _GAP) - _GAP + _BOTTOM
    figure = Figure(_WIDTH, height)
    note = f"emulated: {trace.emulated}; " if trace.emulated else ""
    note += "a bar begins at the send, or when the chunk before arrives, and ends at the arrival"
    figure.heading(title, note)
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
    axes = time_axes(figure, box, max(each.end for each in arrivals), "the first send")
    lows = [height - _TOP - _LANE - rank * (_LANE + _GAP) for rank in range(num_ranks)]
    for rank, low in enumerate(lows):
        here = [each for each in arrivals if each.rank == rank]
        _draw_lane(axes, rank, low, here)
        for each in here:
            figure.add_hint(axes, (each.start, each.end, low, low + _LANE), each.words)
    for each in arrivals:
        if each.chunk == _FOLLOWED:
            _draw_hop(axes, each, lows)
    _draw_halves(axes, arrivals, lows)
    _draw_chunk_key(figure, num_ranks, height)
    figure.alt_text = _timeline_in_words(title, note, arrivals, num_ranks)
    return figure


def _arrivals(trace: Trace) -> list[_Arrival]:
    """Return the chunks that arrive on each rank, round by round, on a clock from the first send.

    In round k, rank r of N ranks sends chunk r - 1 - k (modulo N) to its right neighbour.
    """
    count = trace.world_size
    pairs = sorted(messages(lanes(trace.events)), key=lambda pair: pair.send.start)
    from_left = [[pair for pair in pairs if pair.send.peer == rank] for rank in range(count)]
    if not 2 <= count <= 8 or any(
        len(to_rank) != 2 * (count - 1) or {p.send.rank for p in to_rank} != {(rank - 1) % count}
        for rank, to_rank in enumerate(from_left)
    ):
        raise ValueError(
            f"ring_timeline draws one ring all-reduce of 2 to 8 ranks, in which each rank sends "
            f"2(N-1) messages to its right neighbour. The trace has {count} ranks and "
            f"{len(pairs)} messages. Use timeline for it."
        )
    zero = pairs[0].send.start
    found = []
    for rank, to_rank in enumerate(from_left):
        before = zero
        for number, (send, receive) in enumerate((pair.send, pair.receive) for pair in to_rank):
            start = min(max(send.start, before), receive.end)
            found.append(
                _Arrival(rank, number, (rank - 2 - number) % count, send.start - zero,
                         start - zero, receive.end - zero, send.bytes)
            )  # fmt: skip
            before = receive.end
    return found


def _is_complete(arrival: _Arrival, num_ranks: int) -> bool:
    """Return whether the chunk holds every rank's contribution when it is sent."""
    return arrival.round >= num_ranks - 1


def _draw_lane(axes: Axes, rank: int, low: float, arrivals: Sequence[_Arrival]) -> None:
    """Draw the rank's name, its bars with the numbers of their chunks, and the bytes."""
    num_ranks = len(arrivals) // 2 + 1
    axes.axhspan(low, low + _LANE, color=LANE, linewidth=0, zorder=0, gid=f"lane {rank}")
    for words, side, align, ink, size in (
        (f"rank {rank}", 0, "right", INK, 9.0),
        (f"{byte_words(sum(each.bytes for each in arrivals))}\narrived", 1, "left", MUTED, 8.0),
    ):
        axes.annotate(
            words, (side, low + _LANE / 2), xycoords=("axes fraction", "data"),
            xytext=(9 * (2 * side - 1), 0), textcoords="offset points", va="center", ha=align,
            color=ink, fontsize=size, linespacing=1.2,
        )  # fmt: skip
    inches = (_WIDTH - _LEFT - _RIGHT) / axes.get_xlim()[1]
    for each in arrivals:
        complete = _is_complete(each, num_ranks)
        fill = blend(PALETTE[each.chunk], "#FFFFFF", 0.0 if complete else _PARTIAL)
        axes.add_artist(
            Rectangle((each.start, low), each.end - each.start, _LANE, facecolor=fill,
                      edgecolor=edge(fill), linewidth=0.6, zorder=2,
                      gid=f"rank {rank} chunk {each.chunk}{' complete' * complete}")
        )  # fmt: skip
        if (each.end - each.start) * inches > 0.12:
            ink = "#FFFFFF" if is_dark(fill) else INK
            middle = (each.start + each.end) / 2, low + _LANE / 2
            axes.text(*middle, str(each.chunk), zorder=5, **centred(8.5, ink, "bold"))


def _draw_hop(axes: Axes, arrival: _Arrival, lows: Sequence[float]) -> None:
    """Draw an arrow from the send, on the left neighbour's lane, to the arrival of the chunk."""
    left = (arrival.rank - 1) % len(lows)
    downwards = arrival.rank > left
    start = (arrival.sent, lows[left] + (0 if downwards else _LANE))
    end = (arrival.end, lows[arrival.rank] + (_LANE if downwards else 0))
    axes.add_artist(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, linewidth=1.4, color=INK,
                        shrinkA=0, shrinkB=0, zorder=6,
                        gid=f"hop {left} {arrival.rank}")
    )  # fmt: skip


def _draw_halves(axes: Axes, arrivals: Sequence[_Arrival], lows: Sequence[float]) -> None:
    """Draw a line through all lanes where the second half begins, and name the halves."""
    last = len(lows) - 2  # the last round of the first half
    places = [each.end for each in arrivals if each.round == last]
    xs = [place for place in places for _ in (0, 1)]
    ys = [y for low in lows for y in (low + _LANE + _GAP / 2, low - _GAP / 2)]
    axes.plot(xs, ys, linestyle=(0, (4, 2)), color=INK, linewidth=1.3, zorder=4, gid="halves")
    for words, side, align in (
        ("reduce-scatter: the rank adds the chunk to its own", 0, "left"),
        ("all-gather: the rank copies the chunk", axes.get_xlim()[1], "right"),
    ):
        axes.text(side, lows[0] + _LANE + 0.2, words, fontsize=8.5, color=INK, va="center",
                  ha=align)  # fmt: skip


def _draw_chunk_key(figure: Figure, num_ranks: int, height: float) -> None:
    """Draw a sample of each chunk, pale and full, in a row under the title."""
    axes = figure.sheet(0, height - 0.88, _WIDTH, 0.3)
    axes.set(xlim=(0, _WIDTH), ylim=(0, 0.3))
    x = _LEFT
    for share, words in (
        (_PARTIAL, "partial sum of a chunk"), (0.0, "complete sum of a chunk")
    ):  # fmt: skip
        for chunk in range(num_ranks):
            fill = blend(PALETTE[chunk], "#FFFFFF", share)
            axes.add_artist(Rectangle((x, 0.07), 0.2, 0.17, facecolor=fill, linewidth=0.5,
                                      edgecolor=edge(fill)))  # fmt: skip
            ink = "#FFFFFF" if is_dark(fill) else INK
            axes.text(x + 0.1, 0.155, str(chunk), **centred(7.5, ink, "bold"))
            x += 0.2
        axes.text(x + 0.08, 0.15, words, fontsize=8, color=MUTED, va="center")
        x += 0.25 + 0.066 * len(words)
    axes.add_artist(FancyArrowPatch((x, 0.15), (x + 0.3, 0.15), arrowstyle="-|>",
                                    mutation_scale=9, linewidth=1.4, color=INK))  # fmt: skip
    axes.text(x + 0.36, 0.15, f"path of chunk {_FOLLOWED}", fontsize=8, color=MUTED, va="center")


def _timeline_in_words(
    title: str, note: str, arrivals: Sequence[_Arrival], num_ranks: int
) -> str:
    """Describe the duration of the halves, and what arrives on each rank in which order."""
    half = max(each.end for each in arrivals if each.round == num_ranks - 2)
    end = max(each.end for each in arrivals)
    parts = [f"{title} ({note}): {num_ranks} ranks over {time_words(end)}.",
             f"The reduce-scatter ends on the last rank after {time_words(half)}; the all-gather "
             "follows."]  # fmt: skip
    for rank in range(num_ranks):
        chunks = [str(each.chunk) for each in arrivals if each.rank == rank]
        parts.append(f"On rank {rank} arrive chunks {list_words(chunks)}.")
    return " ".join(parts)
