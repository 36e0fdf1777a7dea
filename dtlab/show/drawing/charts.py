"""A chart of curves, with linear or logarithmic axes, a key next to it, and marks at one position.

A prediction is drawn as a line, an emulated value as an open mark, a measured value as a filled
mark, as in the figures of time against size. A curve has one colour, dash and mark shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    Locator,
    LogLocator,
    MaxNLocator,
    NullLocator,
)

from dtlab.show.drawing.style import INK, MUTED, PALETTE, SHEET, Figure
from dtlab.show.remeasure import far_off

__all__ = ["BREADTH", "KEY", "Axis", "Chart", "Kind", "Numbers", "grey_out", "log_ends"]

Kind = Literal["measured", "emulated", "predicted"]
Numbers = npt.NDArray[np.float64]

MOST_CURVES: Final = 6
MOST_MARKS: Final = 30  # on a curve
KEY: Final = 2.5  # inches across
WIDTH, LEFT, TOP, BOTTOM = 9.4, 0.8, 0.9, 0.6  # inches of a figure of one chart, and around it
BREADTH: Final = WIDTH - LEFT - KEY
BAND: Final = "#E9E6DA"
_DASHES: Final = ("-", (0, (1, 1)), (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (2, 1)), (0, (8, 2)))
_MARKS: Final = "osD^vP"


@dataclass(frozen=True)
class Axis:
    """The name and unit of an axis, its ends, and the function that formats its numbers.

    `ticks` are the labelled values; without them the axis gets round numbers.
    """

    name: str
    ends: tuple[float, float]
    logarithmic: bool = False
    write: Callable[[float], str] = field(default=lambda value: f"{value:g}")
    ticks: Sequence[float] = ()

    def apply(self, axis: Any, set_ends: Callable[..., Any]) -> None:
        """Configure one of Matplotlib's axes."""
        low, high = self.ends
        digits = (1,) if self.logarithmic and high / low > 100 else (1, 2, 5)
        steps: Locator = MaxNLocator(7, steps=[1, 2, 2.5, 5, 10])
        if self.ticks:
            steps = FixedLocator(self.ticks)
        elif self.logarithmic:
            steps = LogLocator(subs=digits)
        set_ends(low, high)
        axis.set_major_locator(steps)
        axis.set_major_formatter(FuncFormatter(lambda value, _: self.write(value)))
        axis.set_minor_locator(NullLocator())
        axis.set_tick_params(colors=MUTED, labelsize=8, length=3)
        axis.set_label_text(self.name, fontsize=8, color=MUTED)


def log_ends(low: float, high: float) -> tuple[float, float]:
    """Return the ends of a logarithmic axis, with some of its length beyond the values."""
    room = max((high / low) ** 0.07, 1.12) if high > low else 1.5
    return low / room, high * room


class Chart:
    """A chart in a box (left, bottom, width, height in inches), with its key on the right."""

    def __init__(
        self,
        figure: Figure,
        box: tuple[float, float, float, float],
        names: Sequence[str],
        across: Axis,
        upwards: Axis,
    ) -> None:
        """Raises ValueError for more curves than a reader can tell apart."""
        if len(names) > MOST_CURVES:
            raise ValueError(f"there is room for {MOST_CURVES} curves, not for {len(names)}")
        self._figure, self._box, self._names = figure, box, list(names)
        self._kinds: dict[str, tuple[Kind, bool]] = {}  # kind, and whether the curve has marks
        self._axes = axes = figure.sheet(*box)
        axes.set_axis_on()
        axes.set(xscale="log" if across.logarithmic else "linear",
                 yscale="log" if upwards.logarithmic else "linear")  # fmt: skip
        across.apply(axes.xaxis, axes.set_xlim)
        upwards.apply(axes.yaxis, axes.set_ylim)
        axes.grid(color="#E2E2DC", linewidth=0.7)
        axes.set_axisbelow(True)
        for side, spine in axes.spines.items():
            spine.set(visible=side in ("left", "bottom"), color=MUTED)

    @classmethod
    def below(
        cls,
        title: str,
        note: str,
        names: Sequence[str],
        across: Axis,
        upwards: Axis,
        *,
        height: float = 3.8,
        left: float = LEFT,
    ) -> Chart:
        """Create a figure with a title, the smaller line `note`, and below them a chart.

        `height` of the figure and the space on the `left`, for the numbers, are in inches.
        """
        figure = Figure(WIDTH, height)
        figure.heading(title, note)
        box = (left, BOTTOM, WIDTH - left - KEY, height - TOP - BOTTOM)
        return cls(figure, box, names, across, upwards)

    @property
    def figure(self) -> Figure:
        """The figure that the chart is part of."""
        return self._figure

    @property
    def axes(self) -> Axes:
        """The axes of the chart, for marks that no other chart has."""
        return self._axes

    def draw_curve(
        self, name: str, xs: Numbers, ys: Numbers, kind: Kind, *, joined: bool = True
    ) -> None:
        """Draw a prediction as a line, other kinds as marks on a thin line.

        A curve with more than `MOST_MARKS` points has no marks. Values that are not finite leave a
        gap. With `joined=False` the line is left out.
        """
        marks = kind != "predicted" and len(xs) <= MOST_MARKS
        self._kinds[name] = kind, marks
        style = self._style(name, kind, marks) | ({} if joined else {"linestyle": "none"})
        self._axes.plot(xs, ys, zorder=3, gid=f"{kind} {name}", **style)

    def draw_ranges(self, name: str, xs: Numbers, lows: Numbers, highs: Numbers) -> None:
        """Draw a bar at each x from the lowest to the highest value, in the curve's colour."""
        colour = self._colour(name)
        self._axes.vlines(xs, lows, highs, color=colour, linewidth=1.2, gid=f"range {name}")
        for ends in (lows, highs):
            self._axes.plot(xs, ends, "_", markersize=6, color=colour, gid=f"end {name}")

    def draw_band(self, low: float, high: float, words: str) -> None:
        """Shade a vertical strip between two x values, with its name at the top."""
        self._axes.axvspan(low, high, color=BAND, linewidth=0, zorder=0.5, gid="band")
        middle = (low * high) ** 0.5 if self._axes.get_xscale() == "log" else (low + high) / 2
        self._name_at_top(middle, words, "band")

    def draw_level(self, y: float, words: str) -> None:
        """Draw a dotted horizontal line at height `y`, with its name at the left end."""
        self._axes.axhline(y, color=INK, linewidth=1.1, linestyle=(0, (1, 2)), gid="level")
        label = self._axes.annotate(words, (0.01, y), xycoords=("axes fraction", "data"))
        label.set(fontsize=8, color=INK, ha="left", va="bottom", gid="level")

    def draw_upright(self, x: float, words: str) -> None:
        """Draw a vertical line at `x`, with its name at the top."""
        self._axes.axvline(x, color=INK, linewidth=1.1, zorder=2, gid="place")
        self._name_at_top(x, words, "place")

    def draw_points(self, x: float, ys: Mapping[str, float]) -> None:
        """Draw a point on each curve at `x`."""
        for name, y in ys.items():
            self._axes.plot([x], [y], "o", markersize=5.5, color=self._colour(name),
                            markeredgecolor=SHEET, zorder=6, gid=f"place {name}")  # fmt: skip

    def draw_key(self, asides: Mapping[str, str]) -> None:
        """Draw the key: a sample of each curve, in this order, its name, and its note below."""
        left, bottom, width, height = self._box
        axes = self._figure.sheet(left + width, bottom, KEY, height)
        axes.set_xlim(0, KEY)
        axes.set_ylim(0, height)
        y = height - 0.1
        for name, aside in asides.items():
            kind, marks = self._kinds[name]
            axes.plot([0.2, 0.64], [y, y], gid=f"key {name}", **self._style(name, kind, False))
            if marks:
                axes.plot([0.42], [y], gid=f"key mark {name}", **self._style(name, kind, True))
            _beside(axes, y, name, INK)
            for number, line in enumerate(aside.splitlines(), 1):
                _beside(axes, y - 0.16 * number, line, MUTED)
            y -= 0.27 + 0.16 * len(aside.splitlines())

    def _name_at_top(self, x: float, words: str, gid: str) -> None:
        label = self._axes.annotate(words, (x, 1), xycoords=("data", "axes fraction"))
        label.set(fontsize=8, color=INK, ha="center", va="bottom", gid=gid)

    def _colour(self, name: str) -> str:
        return PALETTE[self._names.index(name)]

    def _style(self, name: str, kind: Kind, marks: bool) -> dict[str, Any]:
        number, colour = self._names.index(name), self._colour(name)
        width = 1.2 if marks else 1.9
        style: dict[str, Any] = {
            "color": colour, "linestyle": _DASHES[number], "linewidth": width,
        }  # fmt: skip
        if marks:
            face = SHEET if kind == "emulated" else colour
            style |= {"marker": _MARKS[number], "markersize": 5.5, "markerfacecolor": face}
        return style


def grey_out(
    axes: Axes,
    name: str,
    marks: tuple[Numbers, Numbers],
    predicted: tuple[Numbers, Numbers],
    unit: str = "",
) -> str:
    """Draw in grey the marks that a busy machine moved far from the prediction at their x.

    Return a line for the key, empty if there are none.
    """
    formula = dict(zip(*predicted, strict=True))
    far = [(x, y) for x, y in zip(*marks, strict=True)
           if x in formula and far_off(y, formula[x], unit)]  # fmt: skip
    if not far:
        return ""
    xs, ys = zip(*far, strict=True)
    axes.plot(xs, ys, "o", markersize=6.5, color=MUTED, zorder=5, gid=f"disturbed {name}")
    return "grey: machine was busy"


def _beside(axes: Axes, y: float, words: str, colour: str) -> None:
    axes.text(0.76, y, words, fontsize=8.5, color=colour, va="center", ha="left")
