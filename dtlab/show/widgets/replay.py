"""The widget that replays a trace.

replay(trace)    the timeline up to a moment that moves, and below it what each rank is doing then

The figure is drawn once, and its later part is covered. A step changes only cover and text.
"""

from __future__ import annotations

import html
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dtlab.show.drawing.lanes import STRIP, Lane, lanes
from dtlab.show.drawing.style import INK, SHEET
from dtlab.show.figures.timeline import timeline
from dtlab.show.widgets.dials import Dial, seconds_scale
from dtlab.show.widgets.explorer import Explorer
from dtlab.show.words import byte_words, list_words

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["Replay", "replay"]

_STEPS: Final = 100
_INTERVAL: Final = 100  # milliseconds between two steps
_STYLE: Final = (
    "<style>"
    ".dtlab-replay {position: relative; overflow: visible}"
    ".dtlab-replay > * {margin: 0}"
    ".dtlab-replay > .dtlab-cover {position: absolute; inset: 0; pointer-events: none}"
    f".dtlab-cover div[style] {{position: absolute; background: {SHEET}; opacity: 0.85; "
    f"border-left: 2px solid {INK}}}"
    "</style>"
)


def replay(trace: Trace, *, title: str | None = None, note: str = "") -> Replay:
    """Replay a trace on its timeline: play, pause, or choose a moment.

    The mouse shows the bytes, times and line of each bar. Without a front end the timeline is
    shown. See `timeline` for the arguments. Raises: ValueError for a trace without events.
    """
    return Replay(trace, title, note)


class Replay(Explorer):
    """A timeline, a moment in `controls["time"]` (seconds), and what each rank does at it."""

    def __init__(self, trace: Trace, title: str | None, note: str) -> None:
        """See `replay`."""
        import ipywidgets as widgets

        self._lanes = lanes(trace.events, trace.lane_names)
        if not self._lanes:
            raise ValueError("replay: the trace has no events.")
        figure = timeline(trace, title=title, note=note)
        box = figure.axes[0].get_position()
        self._left, self._right = box.x0, box.x1
        self._top, self._bottom = 100 * (1 - box.y1) - 1.5, 100 * box.y0
        self._end = float(figure.axes[0].get_xlim()[1])
        times = [float(each) for each in np.linspace(0, self._end, _STEPS + 1)]
        self._cover = widgets.HTML()
        self._cover.add_class("dtlab-cover")
        self._now = widgets.HTML(
            layout=widgets.Layout(height=f"{1.5 * len(self._lanes) + 0.5:g}em", margin="0")
        )
        self.play = play = widgets.Play(min=0, max=_STEPS, interval=_INTERVAL, value=0)
        dial = Dial("Time", seconds_scale(times), times[-1], width="4em")
        self._times, self._following = times, False
        super().__init__(lambda time: figure, {"time": dial}, [[play, dial.widget]])
        width = f"{figure.get_size_inches()[0] * 96:.0f}px"
        frame = widgets.Box([self._picture, self._cover], layout=widgets.Layout(width=width))
        frame.layout.max_width = "100%"
        frame.add_class("dtlab-replay")
        self.widget.children = (self.widget.children[0], frame, self._now)
        play.observe(self._played, names="value")

    def _played(self, change: Any) -> None:
        """Show the moment of a step, and stop at the last one."""
        if not self._following:
            self.play.playing = self.play.playing and change["new"] < _STEPS
            self.controls["time"].value = self._times[change["new"]]

    def _redraw(self, _: Any = None) -> None:
        if not self._picture.value:
            super()._redraw()
        time = float(self.controls["time"].value)
        self._following = True  # playing continues from here, and from the end at the beginning
        self.play.value = round(_STEPS * time / self._end) % _STEPS
        self._following = False
        left = self._left + (self._right - self._left) * time / self._end
        shown = (
            f'<div class="dtlab-figure" style="left:{100 * left:.2f}%;'
            f"right:{100 * (1 - self._right):.2f}%;"
            f'top:{self._top:.2f}%;bottom:{self._bottom:.2f}%"></div>'
        )
        self._cover.value = _STYLE + (shown if time < self._end else "")
        lines = [html.escape(doing(lane, time)) for lane in self._lanes]
        self._now.value = f'<div style="line-height:1.5em">{"<br>".join(lines)}</div>'


def doing(lane: Lane, time: float) -> str:
    """Say what a rank's program does at a time in seconds, and which operations are under way."""
    if time >= max(bar.end for bar in lane.bars):
        return f"{lane.name}: finished"
    current = [bar for bar in lane.bars if bar.start <= time < bar.end]
    program = [bar for bar in current if bar.track == STRIP]
    words = max(program, key=lambda bar: bar.depth).label if program else "outside any span"
    counts = Counter(
        f"{bar.label} ({byte_words(bar.bytes)})" if bar.bytes else bar.label
        for bar in current if bar.track != STRIP
    )  # fmt: skip
    operations = [f"{n} × {each}" if n > 1 else each for each, n in counts.items()]
    under_way = f"; under way: {list_words(operations)}" if operations else ""
    return f"{lane.name}: {words}{under_way}"
