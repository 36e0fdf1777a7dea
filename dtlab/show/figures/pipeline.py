"""Figures of pipelines, measured or simulated, on one time axis.

simulated   rank 0  |0|1|////////| 0 |...    A box is an action, with its microbatch. Hatched
            rank 1  |/|0|1| 0 | 1 |...       areas are idle time between the first and the last
measured    rank 0  |0|1|/////////| 0 |...   action of the panel. A dashed line marks the end
            rank 1  |/|0|1| 0 | 1 |...       without any bubble.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from dtlab.predict.simulate import Costs, bubble, peak_in_flight, simulate
from dtlab.predict.units import counted
from dtlab.schedules import (
    Action,
    Schedule,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    stage_ranks,
    zb_h1,
    zb_h2,
)
from dtlab.show.drawing.style import COLOURS, INK, MUTED, Figure, blend, edge
from dtlab.show.drawing.time_axis import time_axes
from dtlab.show.words import time_words

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = [
    "LETTERS", "SCHEDULES", "Box", "Panel", "full_name", "panel_of", "pipeline",
    "predicted_pipeline",
]  # fmt: skip

SCHEDULES: Final[Mapping[str, Callable[[int, int], Schedule]]] = MappingProxyType(
    {
        "naive": naive,
        "GPipe": gpipe,
        "1F1B": one_f_one_b,
        "interleaved (2 chunks)": lambda p, m: interleaved(p, m, 2),
        "interleaved (4 chunks)": lambda p, m: interleaved(p, m, 4),
        "ZB-H1": zb_h1,
        "ZB-H2": zb_h2,
    }
)


class _Look(NamedTuple):
    words: str
    fill: str
    ink: str


_BLUE: Final = COLOURS["backward"]
_GREEN: Final = "#4B7F1F"  # tests tell it apart from B and W for colour-blind readers
_LOOKS: Final[Mapping[str, _Look]] = {  # by the names of spans
    "forward": _Look("F forward", COLOURS["forward"], INK),
    "backward": _Look("B backward", _BLUE, "#FFFFFF"),
    "backward_input": _Look("I input gradient", _GREEN, "#FFFFFF"),
    "backward_weight": _Look("W weight gradient", blend(_BLUE, "#000000", 0.5), "#FFFFFF"),
}
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 9.4, 0.75, 1.0, 1.0, 0.5
_NAME, _LANE, _BOX, _GAP = 0.27, 0.24, 0.2, 0.12  # inches, like the line above
_MOST_NUMBERS: Final = 400
_NUMBER, _SMALLEST, _BESIDE_NUMBER = 7.0, 4.8, 0.025  # points, points, inches
_OUTLINE, _OUTLINE_SHARE = 0.5, 0.05  # points; of a box's width, so that it keeps its colour
_FORWARD: Final = 10e-3  # seconds; only ratios to it matter


def pipeline(traces: Mapping[str, Trace], *, title: str = "Pipelines", note: str = "") -> Figure:
    """Draw the actions of one step on every rank, with a panel for each named trace.

    A trace comes from `simulate`, or from the spans that `run_schedule` records in one step. Boxes
    of a rank's second and later pipeline stages have a line along them, which is higher for later
    stages. Beside a lane is the maximum number of microbatches that the rank holds for backward;
    on one of its v stages a microbatch counts 1/v.
    Raises: ValueError for no trace, and for a trace without forward and backward.
    """
    panels = [panel_of(name, trace) for name, trace in traces.items()]
    if not panels:
        raise ValueError("pipeline: nothing to draw. Give it a trace with a name.")
    emulated = next((each.emulated for each in traces.values() if each.emulated), "")
    subtitle = "; ".join(filter(None, [f"emulated: {emulated}" if emulated else "", note]))
    tall = [_NAME + _LANE * len(panel.holds) for panel in panels]
    height = _TOP + sum(tall) + _GAP * (len(panels) - 1) + _BOTTOM
    figure = Figure(_WIDTH, height)
    figure.heading(title, subtitle)
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
    end = max(panel.end for panel in panels)
    axes = time_axes(figure, box, end, "the first action", grid=False)
    top = height - _TOP
    for panel, inches in zip(panels, tall, strict=True):
        _draw_panel(axes, panel, top)
        top -= inches + _GAP
    _draw_key(figure, panels, height)
    below = f" ({subtitle})" if subtitle else ""
    figure.alt_text = f"{title}{below}. {' '.join(map(_in_words, panels))}"
    return figure


def full_name(name: str) -> str:
    """Return the first name of `SCHEDULES` that begins with these words, or else `name`."""
    words = re.findall(r"[\w-]+", name)
    found = (each for each in SCHEDULES if re.findall(r"[\w-]+", each)[: len(words)] == words)
    return next(found, name) if words else name


def predicted_pipeline(
    schedule: str = "1F1B",
    num_stages: int = 4,
    num_microbatches: int = 8,
    backward: float = 2.0,
    communication: float = 0.0,
    beside: str = "nothing",
    *,
    title: str | None = None,
) -> Figure:
    """Simulate a schedule of `SCHEDULES` on `num_stages` ranks, and another one below it.

    "interleaved" has two chunks. The forward pass of a microbatch takes 10 ms on each rank,
    whether or not it is split into chunks. `backward` is a multiple of that time, half of it for
    action I and half for W; `communication` is a message's time as a multiple of it.
    Raises: ValueError for an unknown name, and as the schedule and `Costs` do.
    """
    names = [full_name(each) for each in (schedule, beside) if each != "nothing"]
    traces = {}
    for name in dict.fromkeys(names):
        if name not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {name!r}.")
        actions = SCHEDULES[name](num_stages, num_microbatches)
        seconds = _FORWARD * num_stages / len(stage_ranks(actions))
        half = seconds * backward / 2
        traces[name] = simulate(actions, Costs(seconds, half, half, communication * _FORWARD))
    words = f"{counted(num_stages, 'rank')}, "
    words += counted(num_microbatches, "microbatch", "microbatches")
    note = (f"predicted; on each rank forward {time_words(_FORWARD)}, backward {backward:g} times "
            f"that; a message {communication:g} times that")  # fmt: skip
    return pipeline(traces, title=title or f"{' and '.join(traces)}: {words}", note=note)


def _draw_panel(axes: Axes, panel: Panel, top: float) -> None:
    """Draw the panel's title, then a lane for each rank: idle time, and the boxes on top of it."""
    axes.text(0, top - _NAME / 2, panel.words, fontsize=8.5, color=INK, va="center")
    lows = [top - _NAME - _LANE * (rank + 1) for rank in range(len(panel.holds))]
    idle = COLOURS["idle"]
    for rank, low in enumerate(lows):
        axes.add_artist(Rectangle((0, low), panel.end, _BOX, facecolor=idle, edgecolor=edge(idle),
                                  hatch="//////", linewidth=0, zorder=1,
                                  gid=f"{panel.name} idle"))  # fmt: skip
        _beside(axes, f"rank {rank}", low, 0, -8, "right", INK)
        _beside(axes, f"holds {panel.holds[rank]}", low, 1, 8, "left", MUTED)
    points = 72 * (_WIDTH - _LEFT - _RIGHT) / axes.get_xlim()[1]
    for name, look in _LOOKS.items():
        boxes = [box for box in panel.boxes if box.name == name]
        width = points * median([box.end - box.start for box in boxes] or [0.0])
        outline = min(_OUTLINE, _OUTLINE_SHARE * width)
        _draw_boxes(axes, boxes, lows, (0, _BOX), look.fill, f"{panel.name} {name}", outline)
        for chunk in range(1, 1 + max((box.chunk for box in boxes), default=0)):
            later = [box for box in boxes if box.chunk == chunk]
            low = 0.04 * chunk - 0.022
            _draw_boxes(axes, later, lows, (low, low + 0.018), look.ink, "later stage")
    if len(panel.boxes) <= _MOST_NUMBERS:
        _draw_numbers(axes, panel, lows)
    axes.plot([panel.ideal] * 2, [lows[-1] - 0.03, top - _NAME], "--", color=INK, linewidth=1.3,
              zorder=5, gid=f"{panel.name} ideal")  # fmt: skip


def _beside(
    axes: Axes, words: str, low: float, side: float, points: float, align: str, ink: str
) -> None:
    """Write a text next to a lane: `side` is 0 for left, 1 for right."""
    axes.annotate(
        words, (side, low + _BOX / 2), xycoords=("axes fraction", "data"), xytext=(points, 0),
        textcoords="offset points", fontsize=8.5, va="center", ha=align, color=ink,
    )  # fmt: skip


def _draw_boxes(
    axes: Axes, boxes: Sequence[Box], lows: Sequence[float], part: tuple[float, float],
    fill: str, gid: str, outline: float = 0.0,
) -> None:  # fmt: skip
    """Draw many boxes as one artist; `part` is their lower and upper end in a lane, in inches."""
    corners = []
    for box in boxes:
        low, high = (lows[box.rank] + inches for inches in part)
        corners.append([(box.start, low), (box.end, low), (box.end, high), (box.start, high)])
    if corners:
        drawn = PolyCollection(corners, facecolors=fill, linewidths=outline, zorder=2, gid=gid,
                               edgecolors=edge(fill) if outline else "none")  # fmt: skip
        axes.add_collection(drawn, autolim=False)


def _draw_numbers(axes: Axes, panel: Panel, lows: Sequence[float]) -> None:
    """Draw the microbatch's number on each box that has room, as one artist for each colour.

    On a narrow box it is smaller. Its size depends on its number of digits only: a 4, which is
    wider than a 3, is neither smaller nor left out. As text objects the numbers would take twice
    as long to draw as the rest of the figure.
    """
    inches = (_WIDTH - _LEFT - _RIGHT) / axes.get_xlim()[1]
    numbers = {box.action.microbatch for box in panel.boxes}
    digits = {number: TextPath((0, 0), str(number), size=_NUMBER) for number in numbers}
    sizes = {number: path.get_extents() for number, path in digits.items()}
    widest = TextPath((0, 0), "4", size=_NUMBER).get_extents().width / 72
    glyph_paths: dict[tuple[str, str], list[Path]] = defaultdict(list)  # by ink and halo
    for box in panel.boxes:
        size, look = sizes[box.action.microbatch], _LOOKS[box.name]
        room = (box.end - box.start) * inches - _BESIDE_NUMBER
        share = min(1.0, room / (widest * len(str(box.action.microbatch)) * 1.1))
        if share * _NUMBER >= _SMALLEST:
            middle = (box.start + box.end) / 2, lows[box.rank] + _BOX / 2
            around = (size.x0 + size.width / 2, size.y0 + size.height / 2)
            glyphs = digits[box.action.microbatch]
            corners = share * (glyphs.vertices - around) / (72 * inches, 72) + middle
            crossed = box.start < panel.ideal < box.end  # by the dashed line
            glyph_paths[look.ink, look.fill if crossed else ""].append(Path(corners, glyphs.codes))
    for (ink, halo), paths in glyph_paths.items():
        shape = Path.make_compound_path(*paths)
        if halo:
            axes.add_artist(PathPatch(shape, fill=False, edgecolor=halo, linewidth=3, zorder=6))
        axes.add_artist(PathPatch(shape, facecolor=ink, linewidth=0, zorder=7, gid="numbers"))


def _draw_key(figure: Figure, panels: Sequence[Panel], height: float) -> None:
    """Draw a sample of each kind of box in the figure, in a row under the title."""
    names = {box.name for panel in panels for box in panel.boxes}
    samples = [(look.words, look.fill, "") for name, look in _LOOKS.items() if name in names]
    samples.append(("idle", COLOURS["idle"], "//////"))
    axes = figure.sheet(0, height - 0.9, _WIDTH, 0.3)
    axes.set(xlim=(0, _WIDTH), ylim=(0, 0.3))
    x = _LEFT
    for words, fill, hatch in samples:
        axes.add_artist(Rectangle((x, 0.09), 0.24, 0.13, facecolor=fill, edgecolor=edge(fill),
                                  linewidth=0.5, hatch=hatch or None))  # fmt: skip
        axes.text(x + 0.3, 0.15, words, fontsize=8, color=MUTED, va="center")
        x += 0.5 + 0.064 * len(words)
    axes.plot([x, x + 0.24], [0.15, 0.15], "--", color=INK, linewidth=1.3)
    axes.text(x + 0.3, 0.15, "end without a bubble", fontsize=8, color=MUTED, va="center")


def _in_words(panel: Panel) -> str:
    return (f"{panel.words}; its ranks, from rank 0 on, hold at most {', '.join(panel.holds)} "
            f"microbatches and run {counted(len(panel.boxes), 'action')}.")  # fmt: skip


# Layout of a pipeline's traces: actions, bubble, microbatches held. No drawing -------------------
#
# A trace comes from `dtlab.predict.simulate`, or from the spans of one step of `run_schedule`.

LETTERS: Final[Mapping[str, str]] = {  # of actions, by the names of their spans
    "forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W",
}  # fmt: skip


class Box(NamedTuple):
    """An action on a rank, times in seconds; `chunk` is the index of its stage on the rank."""

    rank: int
    name: str
    start: float
    end: float
    action: Action
    chunk: int


@dataclass(frozen=True)
class Panel:
    """One trace: its boxes, on a clock that starts at its first action, and its bubble.

    `holds` gives for each rank the maximum number of microbatches that it holds at once, in units
    of all its stages: eleven on chunks of which the rank has two are "5.5". `shares` are the
    bubble's shares of the total and of the ideal time; `ideal` is the ideal time in seconds.
    """

    name: str
    boxes: Sequence[Box]
    holds: Sequence[str]
    shares: tuple[float, float]
    ideal: float

    @property
    def end(self) -> float:
        """The time in seconds at which the last action ends."""
        return max(box.end for box in self.boxes)

    @property
    def words(self) -> str:
        """The total and the ideal time, and then the bubble's share of each."""
        total, ideal = self.shares
        return (f"{self.name}: total {time_words(self.ideal * (1 + ideal))}, ideal (no bubble) "
                f"{time_words(self.ideal)}; the bubble is {total:.1%} of the total, "
                f"{ideal:.1%} of the ideal")  # fmt: skip


def panel_of(name: str, trace: Trace) -> Panel:
    """Return the panel of a trace. Raises: ValueError if it has neither forward nor backward."""
    spans = [each for each in trace.events if each.kind == "compute" and each.name in LETTERS]
    if not spans:
        raise ValueError(f"pipeline: {name!r} has no forward and no backward to draw.")
    boxes: list[Box] = []
    stages: list[list[int]] = [[] for _ in range(trace.world_size)]
    rows: list[list[Action]] = [[] for _ in range(trace.world_size)]
    for each in spans:
        of_rank, stage = stages[each.rank], each.extra.get("stage", each.rank)
        if stage not in of_rank:
            of_rank.append(stage)
        action = Action(stage, LETTERS[each.name], each.extra.get("microbatch", 0))
        rows[each.rank].append(action)
        times = each.start - spans[0].start, each.end - spans[0].start
        boxes.append(Box(each.rank, each.name, *times, action, of_rank.index(stage)))
    ideal = sum(box.end - box.start for box in boxes) / sum(map(bool, rows))
    counts = zip(peak_in_flight(rows), stages, strict=True)
    holds = [f"{most / max(1, len(of_rank)):.4g}" for most, of_rank in counts]
    return Panel(name, boxes, holds, (bubble(trace), bubble(trace, of="ideal")), ideal)
