"""Figures of a trace's timeline, a lane for each rank, and of what ranks that hang wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from typing import TYPE_CHECKING, Any, Final

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Circle, FancyArrowPatch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from dtlab.predict.units import counted
from dtlab.ranks.words import ranks_in_words
from dtlab.show.drawing.lanes import (
    STRIP,
    Bar,
    Lane,
    Message,
    folded,
    hatches,
    lanes,
    look_of,
    messages,
    without,
)
from dtlab.show.drawing.style import (
    COLOURS,
    INK,
    LANE,
    MUTED,
    Figure,
    blend,
    centred,
    edge,
    is_dark,
)
from dtlab.show.drawing.time_axis import time_axes
from dtlab.show.words import byte_words, list_words, time_words

if TYPE_CHECKING:
    from dtlab.errors import Waiting
    from dtlab.trace import Trace

__all__ = ["timeline", "waits"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.75, 1.3, 0.86, 0.55  # inches around the lanes
_STRIP, _TRACK, _GAP = 0.22, 0.2, 0.17  # inches: height of a strip, of a track, gap between lanes
_ALL_TRACKS = 1.2  # inches: maximum for all tracks of one lane
_SUBTITLE = 0.2  # inches
_TALLEST = 6.5  # inches: a screen; above it, ranks that do alike share a lane
_MOST_ARROWS = 32
_MOST_HINTS = 600
_FONT: Final = 7.0
_CHARACTER = _FONT * 0.6 / 72  # inches, approximate

_ORANGE = COLOURS["communication"]
_FILLS: Final = {  # shades of one hue show the direction of an operation
    "send": _ORANGE,
    "receive": blend(_ORANGE, "#FFFFFF", 0.62),
    "collective": blend(_ORANGE, "#000000", 0.3),
    "waiting": COLOURS["idle"],
}


def timeline(
    trace: Trace,
    *,
    title: str | None = None,
    width: float = 9.6,
    arrows: bool | None = None,
    note: str = "",
) -> Figure:
    """Draw what every rank did over time: one lane per rank, times on the trace's clock.

    The upper strip of a lane shows the rank's program: its compute spans and, hatched, the time it
    waited for an operation. Below it are the operations from issue to completion; operations that
    overlap are on separate tracks. If collectives run in several process groups, each is labelled
    with its ranks. `arrows` connects each send to its receive (None: only if there are few).
    The mouse shows the bytes, times and line of each bar, unless there are very many.
    `width` is in inches. `note` is written below the title, after a remark on emulated links.
    If the figure would be taller than a screen, ranks with the same spans and operations share a
    lane, which shows the first of them.
    """
    every = drawn = lanes(trace.events, trace.lane_names)
    if _height(every) > _TALLEST and not trace.lane_names:
        drawn = folded(every)
    notes = [f"emulated: {trace.emulated}" if trace.emulated else "", note]
    if len(drawn) < len(every):
        notes.append("ranks that do alike share a lane, with the times of the first")
    subtitle = "; ".join(filter(None, notes))
    heights = [_lane_height(lane) for lane in drawn]
    top = _TOP + (_SUBTITLE if subtitle else 0)
    height = top + _BOTTOM + _height(drawn)
    unit = "lane" if trace.lane_names else "rank"
    heading = title or f"Timeline of {counted(len(every), unit)}"
    in_words = f"{heading} ({subtitle})" if subtitle else heading
    figure = Figure(width, height, alt_text=_alt_text(in_words, drawn))
    figure.heading(heading, subtitle)
    if not drawn:
        figure.text(0.5, 0.4, "Nothing was recorded.", **centred(9, MUTED))
        return figure
    box = (_LEFT, _BOTTOM, width - _LEFT - _RIGHT, height - top - _BOTTOM)
    end = max(bar.end for lane in drawn for bar in lane.bars) or 1e-6
    axes = time_axes(figure, box, end, "the first event")
    axes.spines["bottom"].set_position(("outward", 4))
    tops = [height - top - sum(heights[:i]) - i * _GAP for i in range(len(drawn))]
    scale = (width - _LEFT - _RIGHT) / axes.get_xlim()[1]
    places = {
        lane.rank: _Place(axes, lane, top, scale) for lane, top in zip(drawn, tops, strict=True)
    }
    marks = hatches(drawn)
    for place in places.values():
        _draw_lane(place, marks)
    pairs = messages(drawn)
    if arrows or (arrows is None and len(pairs) <= _MOST_ARROWS):
        for pair in pairs:
            _draw_arrow(axes, pair, places)
    _draw_legend(figure, drawn, top, marks, "task" if trace.lane_names else "")
    if sum(len(lane.bars) for lane in drawn) <= _MOST_HINTS:
        for place in places.values():
            for bar in place.lane.bars:  # the waits are over the spans that they interrupt
                figure.add_hint(axes, place.box(bar), f"{place.lane.name}: {bar.words}")
    return figure


def _strip(lane: Lane) -> float:
    """Return the inches of the strip: 0 for a rank that neither computed nor waited."""
    used = any(bar.track == STRIP for bar in lane.bars)
    return _STRIP if used or not lane.tracks else 0.0


def _track(lane: Lane) -> float:
    """Return the inches of one track, thinner if many operations overlap, so that all fit."""
    return min(_TRACK, _ALL_TRACKS / max(1, lane.tracks))


def _lane_height(lane: Lane) -> float:
    return _strip(lane) + lane.tracks * _track(lane)


def _height(drawn: Sequence[Lane]) -> float:
    """Return the inches of all lanes, with the gaps between them."""
    return sum(map(_lane_height, drawn)) + _GAP * max(0, len(drawn) - 1)


@dataclass(frozen=True)
class _Place:
    """The position of a lane: its axes (x in seconds, y in inches) and its upper end."""

    axes: Axes
    lane: Lane
    top: float
    inches_per_second: float

    @property
    def middle(self) -> float:
        """The vertical middle of the lane."""
        return self.top - _lane_height(self.lane) / 2

    def box(self, bar: Bar) -> tuple[float, float, float, float]:
        """Return left and right in seconds, lower and upper end in inches."""
        if bar.track == STRIP:
            return bar.start, bar.end, self.top - _STRIP, self.top - 0.05 * min(bar.depth, 3)
        track = _track(self.lane)
        upper = self.top - _strip(self.lane) - bar.track * track
        return bar.start, bar.end, upper - 0.94 * track, upper - 0.06 * track


def _draw_lane(place: _Place, marks: Mapping[str, str]) -> None:
    """Draw a rank's name, its bars, and next to them the bytes sent and the time waited.

    `marks` maps looks to hatches.
    """
    axes, lane = place.axes, place.lane
    low = place.top - _lane_height(lane)
    axes.axhspan(low, place.top, color=LANE, linewidth=0, zorder=0, gid=f"lane {lane.rank}")
    _beside(place, lane.name, 0, -9, fontsize=9, color=INK, ha="right")
    beside = _sums(lane).replace(" communication", "\ncommunication")
    _beside(place, beside, 1, 9, fontsize=8, color=MUTED, ha="left", linespacing=1.3)
    for depth in sorted({bar.depth for bar in lane.bars}):
        groups: dict[tuple[str, str], list[Bar]] = {}
        for bar in lane.bars:
            if bar.depth == depth:
                groups.setdefault((bar.role, look_of(bar, marks)), []).append(bar)
        for (role, look), bars in groups.items():
            boxes = [place.box(bar) for bar in bars]
            collection = _rectangles(boxes, _fill(bars[0]), f"rank {lane.rank} {role} {look}")
            axes.add_collection(collection, autolim=False)
            if marks.get(look):
                axes.add_artist(_hatching(collection, marks[look], edge(_fill(bars[0]))))
    labelled: list[tuple[float, float]] = []
    for bar in lane.bars:
        _draw_label(place, bar, labelled)


def _beside(place: _Place, words: str, side: float, points: float, **style: Any) -> None:
    """Write a text next to the lane, `points` from its edge; `side` is 0 for left, 1 for right."""
    place.axes.annotate(
        words, (side, place.middle), xycoords=("axes fraction", "data"),
        xytext=(points, 0), textcoords="offset points", va="center", **style,
    )  # fmt: skip


def _fill(bar: Bar) -> str:
    return _FILLS.get(bar.shade, COLOURS[bar.role])


def _rectangles(
    boxes: Sequence[tuple[float, float, float, float]], fill: str, gid: str
) -> PolyCollection:
    """Draw many boxes as one artist. The outline shows events that are narrower than a pixel."""
    corners = [
        [(left, low), (right, low), (right, high), (left, high)]
        for left, right, low, high in boxes
    ]
    return PolyCollection(
        corners, facecolors=fill, edgecolors=edge(fill), linewidths=0.5, zorder=2, gid=gid
    )


def _hatching(boxes: PolyCollection, hatch: str, ink: str) -> PathPatch:
    """Draw one hatch over many boxes: a hatch for each would take seconds to draw."""
    path = Path.make_compound_path(*boxes.get_paths())
    return PathPatch(path, fill=False, hatch=hatch, edgecolor=ink, linewidth=0,
                     zorder=2, gid=f"{boxes.get_gid()} hatch")  # fmt: skip


def _draw_label(place: _Place, bar: Bar, labelled: list[tuple[float, float]]) -> None:
    """Draw the bar's name on it; shortened, or left out, if it does not fit.

    `labelled` are the parts of the strip, in seconds, that have the names of outer spans.
    """
    _, _, low, high = place.box(bar)
    if bar.shade == "waiting" or high - low < 0.12:
        return
    ink = "#FFFFFF" if is_dark(_fill(bar)) else INK
    short = bar.group or bar.label.split(" ")[0]
    for words in (bar.label, bar.label if bar.shade == "span" else short):
        inches = len(words) * _CHARACTER + 0.06
        middle = _middle_of_free_space(place, bar, inches)
        if middle is not None:
            half = inches / place.inches_per_second / 2
            if bar.track == STRIP:
                if any(left < middle + half and middle - half < right for left, right in labelled):
                    return
                labelled.append((middle - half, middle + half))
            text = place.axes.text(middle, (low + high) / 2 - 0.005, words, zorder=5,
                                   **centred(_FONT, ink))  # fmt: skip
            stroke = 2.5 if bar.shade == "collective" else 1.5  # covers arrows and hatches
            text.set_path_effects([withStroke(linewidth=stroke, foreground=_fill(bar))])
            return


def _middle_of_free_space(place: _Place, bar: Bar, inches: float) -> float | None:
    """Return the middle of a free part of the bar that has `inches` of room, or None.

    On a span, prefer a part that waits and inner spans do not cover.
    """

    def fits(begin: float, end: float) -> bool:
        return (end - begin) * place.inches_per_second > inches

    room = bar.start, bar.end
    if not fits(*room):
        return None
    if bar.shade == "span":
        waits = [each for each in place.lane.bars if each.shade == "waiting"]
        inner = [
            each for each in place.lane.bars if each.shade == "span" and each.depth > bar.depth
        ]
        for above in (waits, waits + inner):
            free = without([(bar.start, bar.end)], [(each.start, each.end) for each in above])
            widest = max(free, key=lambda part: part[1] - part[0], default=room)
            room = widest if fits(*widest) else room
    return sum(room) / 2


def _draw_arrow(axes: Axes, message: Message, places: dict[int, _Place]) -> None:
    """Draw an arrow from the start of a send to the end of its receive."""
    send, receive = message.send, message.receive
    _, _, send_low, send_high = places[send.rank].box(send)
    _, _, low, high = places[receive.rank].box(receive)
    downwards = low < send_low
    arrow = FancyArrowPatch(
        (send.start, send_low if downwards else send_high),
        (receive.end, high if downwards else low),
        arrowstyle="-|>", mutation_scale=7, linewidth=0.8, color=INK, alpha=0.6,
        shrinkA=0, shrinkB=0, zorder=4, gid=f"message {send.rank} {receive.rank}",
    )  # fmt: skip
    axes.add_artist(arrow)


def _draw_legend(
    figure: Figure, drawn: Sequence[Lane], top: float, marks: Mapping[str, str], other: str
) -> None:
    """Draw a swatch and a name for each kind of bar in the figure, in a row under the title.

    `other` is the name of spans without a role; if it is empty, a name that all of them share.
    """
    names = {bar.label.split(" ")[0].rstrip(":") for lane in drawn for bar in lane.bars
             if bar.role == "compute"}  # fmt: skip
    other = other or (names.pop() if len(names) == 1 else "compute")
    if other == "compute" or len(other) > len("other compute"):
        other = "other compute"
    entries: dict[str, tuple[str, str]] = {}
    for lane in drawn:
        for bar in lane.bars:
            look = look_of(bar, marks)
            words: str = bar.role if look == "span" else look
            words = other if words == "compute" else words
            words = "collective, with its ranks" if bar.group and look == "collective" else words
            entries.setdefault(words, (_fill(bar), marks.get(look, "")))
    width, height = figure.get_size_inches()
    axes = figure.sheet(0, height - top + 0.1, width, 0.3)
    axes.set_xlim(0, width)
    axes.set_ylim(0, 0.3)
    left = _LEFT
    order = [*_LEGEND_ORDER[:5], other, *_LEGEND_ORDER[5:-1], *marks, _LEGEND_ORDER[-1]]
    for words in (entry for entry in dict.fromkeys(order) if entry in entries):
        fill, hatch = entries[words]
        axes.add_artist(
            Rectangle((left, 0.09), 0.24, 0.13, facecolor=fill, edgecolor=edge(fill),
                      linewidth=0.5, hatch=hatch or None)
        )  # fmt: skip
        axes.text(left + 0.3, 0.15, words, fontsize=8, color=MUTED, va="center", ha="left")
        left += 0.55 + len(words) * 8 * 0.56 / 72


_LEGEND_ORDER: Final = (
    "forward", "backward", "optimizer", "input", "communication",
    "send", "receive", "collective", "collective, with its ranks", "waiting",
)  # fmt: skip


def _sums(lane: Lane) -> str:
    """List bytes in point-to-point sends, compute time and waiting time, without zeros."""
    lines = []
    if lane.bytes_sent:
        lines.append(f"{byte_words(lane.bytes_sent)} in sends")
    if lane.computing:
        lines.append(f"{time_words(lane.computing)} compute")
    elif lane.communicating:
        lines.append(f"{time_words(lane.communicating)} communication")
    if lane.waiting:
        lines.append(f"{time_words(lane.waiting)} waiting")
    return "\n".join(lines)


def _alt_text(heading: str, drawn: Sequence[Lane]) -> str:
    """Describe the figure: its duration, and what each rank did."""
    if not drawn:
        return f"{heading}. Nothing was recorded."
    end = max(bar.end for lane in drawn for bar in lane.bars)
    parts = [f"{heading}: {len(drawn)} lane{'s' * (len(drawn) > 1)} over {time_words(end)}."]
    for lane in drawn:
        operations = [f"{count} {name}" for name, count in sorted(lane.operations.items())]
        facts = [f"issued {list_words(operations)}"] if operations else []
        facts += _sums(lane).splitlines()
        name = lane.name.replace("\n", " ").capitalize()
        parts.append(f"{name}: {', '.join(facts) or 'nothing'}.")
    return " ".join(parts)


# What ranks wait for when they hang --------------------------------------------------------------

_RADIUS, _NODE, _MARGIN = 1.15, 0.26, 0.85  # inches: of the circle, of a rank, around the circle


def waits(waiting: Sequence[Waiting], world_size: int, *, title: str | None = None) -> Figure:
    """Draw the ranks on a circle, with an arrow from each rank to the ranks that it waits for.

    Beside a rank is the operation that blocks it. Ranks that no entry names have returned.
    """
    heading = title or "What each rank waits for"
    entries = {entry.rank: entry for entry in waiting}
    arrows = {rank: _awaited(entries[rank], entries) for rank in sorted(entries)}
    said = [_wait_words(entries[rank], peers) for rank, peers in arrows.items()]
    size = 2 * (_RADIUS + _MARGIN)
    figure = Figure(size + 1.6, size + 0.4, alt_text=f"{heading}: {'; '.join(said)}.")
    figure.heading(heading)
    axes = figure.sheet(0, 0, size + 1.6, size)
    axes.set_xlim(-size / 2 - 0.8, size / 2 + 0.8)
    axes.set_ylim(-size / 2, size / 2)
    angles = [pi / 2 - 2 * pi * rank / world_size for rank in range(world_size)]
    across = [(cos(angle), sin(angle)) for angle in angles]
    points = [(_RADIUS * x, _RADIUS * y) for x, y in across]
    for rank, (x, y) in enumerate(points):
        is_stuck = rank in entries
        fill = blend(_ORANGE, "#FFFFFF", 0.62) if is_stuck else COLOURS["idle"]
        axes.add_patch(Circle((x, y), _NODE, facecolor=fill, edgecolor=edge(fill)))
        axes.text(x, y, str(rank), **centred(10, INK, "bold"))
        side = across[rank][0]
        beside = axes.text(
            x + side * (_NODE + 0.1), y + across[rank][1] * (_NODE + 0.16),
            _state_words(entries.get(rank)), fontsize=8, va="center",
        )  # fmt: skip
        beside.set(
            color=INK if is_stuck else MUTED,
            ha="center" if abs(side) < 0.1 else "left" if side > 0 else "right",
        )
        for peer in arrows.get(rank, ()):
            arrow = FancyArrowPatch(
                (x, y), points[peer], connectionstyle="arc3,rad=0.16", arrowstyle="-|>",
                mutation_scale=12, shrinkA=72 * _NODE, shrinkB=72 * _NODE,
                color=_FILLS["collective"],
                gid=f"rank {rank} waits for rank {peer}",
            )  # fmt: skip
            axes.add_patch(arrow)
    return figure


def _awaited(entry: Waiting, entries: Mapping[int, Waiting]) -> list[int]:
    """Return the ranks that a rank waits for, without those that wait in the same collective."""
    if entry.op.startswith(("send", "recv")):
        return [peer for peer in entry.peers if peer != entry.rank]
    members = {entry.rank, *entry.peers}

    def has_come(peer: int) -> bool:
        other = entries.get(peer)
        return other is not None and other.op == entry.op and {peer, *other.peers} == members

    return [peer for peer in entry.peers if peer != entry.rank and not has_come(peer)]


def _state_words(entry: Waiting | None) -> str:
    if entry is None:
        return "returned"
    return "still running" if entry.op == "compute" else entry.op


def _wait_words(entry: Waiting, peers: Sequence[int]) -> str:
    if entry.op == "compute":
        return f"rank {entry.rank} is still running"
    source = f" for {ranks_in_words(peers)}" if peers else ""
    return f"rank {entry.rank} waits in {entry.op}{source}"
