"""Axes for time against size, and the curves, marks and ranges on them.

Both axes are logarithmic. A prediction is drawn as a line, an emulated time as an open mark, a
measured time as a filled mark. An algorithm has one colour, one dash and one mark shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dtlab.show.drawing.labels import Obstacles, Upright, places
from dtlab.show.drawing.style import INK, MUTED, PALETTE, SHEET, Figure, blend, centred
from dtlab.show.words import byte_words, short_words, time_words

__all__ = ["CostAxes", "Curve", "Kind", "Winner"]

Kind = Literal["measured", "emulated", "predicted"]
Numbers = npt.NDArray[np.float64]
Curve = tuple[Numbers, Numbers]  # sizes in bytes, increasing, and times in seconds

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.9, 2.35, 0.85, 0.6
_BAND, _BAND_GAP = 0.2, 0.06  # inches: height of the band naming the fastest, and gap below it
_KNOWN: Final = (  # these algorithms have the same colour in every figure
    "ring", "central server", "recursive doubling", "halving-doubling", "tree", "hierarchical",
)  # fmt: skip
_DASHES: Final = ("-", (0, (1, 1)), (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (2, 1)), (0, (8, 2)))
_MARKS: Final = "osD^vP"
_THIN: Final = {"linestyle": "-", "linewidth": 0.9}  # joins marks if no prediction is drawn


@dataclass(frozen=True)
class Winner:
    """The fastest algorithm in a range of sizes; `start` and `end` in bytes."""

    name: str
    start: float
    end: float


def _looks_of(names: Sequence[str]) -> dict[str, int]:
    """Return the index of each name's colour, dash and mark: fixed if known, else a free one."""
    if len(names) > len(_KNOWN):
        raise ValueError(f"there is room for {len(_KNOWN)} algorithms, not for {len(names)}")
    known = {name: _KNOWN.index(name) for name in names if name in _KNOWN}
    free = (number for number in range(len(_KNOWN)) if number not in known.values())
    return {name: known[name] if name in known else next(free) for name in names}


@dataclass
class CostAxes:
    """Logarithmic axes for the algorithms `names`: bytes on the x axis, seconds on the y axis.

    `limits` are the limits of the sizes and the limits of the times.
    """

    figure: Figure
    names: Sequence[str]
    limits: tuple[tuple[float, float], tuple[float, float]]

    @property
    def axes(self) -> Axes:
        """The axes, for marks that no other figure has."""
        return self._axes

    def __post_init__(self) -> None:
        self._looks = _looks_of(self.names)
        self._drawn: dict[str, list[Kind]] = {name: [] for name in self.names}
        self._curves: list[Numbers] = []
        self._axes = self.figure.sheet(_LEFT, _BOTTOM, *self._inches)
        self._axes.set_axis_on()
        self._axes.set(xscale="log", yscale="log", xlim=self.limits[0], ylim=self.limits[1])
        _ticks(self._axes.xaxis, self.limits[0], byte_words)
        _ticks(self._axes.yaxis, self.limits[1], time_words)
        self._axes.set_xlabel("size of the tensor", fontsize=8, color=MUTED)
        self._axes.set_ylabel("time", fontsize=8, color=MUTED)
        self._axes.grid(color="#E2E2DC", linewidth=0.7)
        self._axes.set_axisbelow(True)
        for side, spine in self._axes.spines.items():
            spine.set(visible=side in ("left", "bottom"), color=MUTED)

    @property
    def _inches(self) -> tuple[float, float]:
        """Width and height of the chart without its margins, in inches."""
        width, height = self.figure.get_size_inches()
        return width - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def _to_inches(self, values: Any, side: Literal[0, 1]) -> Any:
        """Convert sizes (side 0) or times (side 1) to inches from the lower left corner."""
        low, high = np.log(self.limits[side])
        return (np.log(values) - low) / (high - low) * self._inches[side]

    def draw_curve(
        self, name: str, sizes: Numbers, seconds: Numbers, kind: Kind, *, joined: bool = True
    ) -> None:
        """Draw a prediction as a line, other kinds as marks; a thin line joins `joined` marks."""
        self._drawn[name].append(kind)
        self._curves.append(np.stack([self._to_inches(sizes, 0), self._to_inches(seconds, 1)]))
        style: dict[str, Any] = {"color": self._colour(name), "gid": f"{kind} {name}"}
        style |= self._line(name) if kind == "predicted" else self._marks(name, kind)
        if kind != "predicted" and joined:
            style |= _THIN
        self._axes.plot(sizes, seconds, zorder=3 if kind == "predicted" else 4, **style)

    def draw_winners(self, winners: Sequence[Winner]) -> None:
        """Mark the fastest algorithm of each range of sizes with a tint and a named band."""
        for each in winners:
            self._draw_winner(each, last=each is winners[-1])
        if winners:
            width, height = self.figure.get_size_inches()
            y = 1 - (_TOP - _BAND_GAP - _BAND / 2) / height
            words = self.figure.text(0.15 / width, y, "fastest", ha="left", va="center")
            words.set(fontsize=8, color=MUTED)

    def _draw_winner(self, winner: Winner, last: bool) -> None:
        """Draw a tint over the range of sizes, and above it a band with the name if it fits."""
        width, height = self._inches
        name, (start, end) = winner.name, (winner.start, winner.end)
        colour = blend(self._colour(name), "#000000", 0.25)  # dark enough for white letters
        tint = blend(colour, SHEET, 0.9)
        self._axes.axvspan(start, end, color=tint, linewidth=0, zorder=0, gid=f"fastest {name}")
        band = [1 + (_BAND_GAP + share * _BAND) / height for share in (0, 0.5, 1)]
        self._axes.axvspan(start, end, band[0], band[2], color=colour, linewidth=0, clip_on=False)
        decades = np.diff(np.log10(self.limits[0]))[0]
        fits = np.log10(end / start) / decades * width > 0.085 * len(name)
        if fits or last:  # the last name may extend past the end of the chart
            place = (np.sqrt(start * end) if fits else end, band[1])
            label = self._axes.annotate(name, place, xycoords=("data", "axes fraction"),
                                        xytext=(0 if fits else 5, 0),
                                        textcoords="offset points")  # fmt: skip
            label.set(**centred(8, "#FFFFFF" if fits else colour, "bold"), annotation_clip=False)
            label.set(ha="center" if fits else "left")

    def draw_borders(self, winners: Sequence[Winner], size: float | None = None) -> None:
        """Draw a line between neighbouring winners and one at `size`, with separate labels.

        Call it after the curves are drawn, because labels are placed where they cover no curve.
        """
        uprights = []
        if size is not None:
            uprights.append(self._draw_upright(size, "top", linewidth=1.1, zorder=5, gid="size"))
        style: Any = {"linewidth": 0.9, "linestyle": (0, (3, 2)), "zorder": 2, "gid": "crossover"}
        for each in winners[1:]:
            uprights.append(self._draw_upright(each.start, "bottom", **style))
        corners = places(uprights, Obstacles(*self._inches, self._curves))
        for upright, place in zip(uprights, corners, strict=True):
            self._write(upright.words, place, f"label {upright.end}")

    def _draw_upright(self, size: float, end: Literal["top", "bottom"], **style: Any) -> Upright:
        """Draw a vertical line at one size, to be labelled at one of its ends."""
        upright = Upright(float(self._to_inches(size, 0)), byte_words(size), end)
        height = self._inches[1]
        low, high = upright.reach(height)
        self._axes.axvline(size, low / height, high / height, color=INK, **style)
        return upright

    def _write(self, words: str, place: tuple[float, float], gid: str) -> None:
        """Write a small label at a lower left corner in inches, readable on top of a line."""
        width, height = self._inches
        label = self._axes.text(place[0] / width, place[1] / height, words, gid=gid, zorder=7)
        label.set(transform=self._axes.transAxes, fontsize=8, color=INK, va="bottom", ha="left")
        label.set_bbox({"facecolor": SHEET, "alpha": 0.7, "linewidth": 0, "pad": 0.8})

    def draw_points(self, size: float, times: Mapping[str, float]) -> None:
        """Draw a point on every curve at one size."""
        for name, seconds in times.items():
            self._axes.plot([size], [seconds], "o", markersize=5, color=self._colour(name),
                            markeredgecolor=SHEET, zorder=6, gid=f"size {name}")  # fmt: skip

    def draw_key(self, asides: Mapping[str, str], kinds: Sequence[Kind]) -> None:
        """Draw the key: a sample and a note for each algorithm, in this order; then the kinds."""
        width, height = self.figure.get_size_inches()
        axes = self.figure.sheet(width - _RIGHT, 0, _RIGHT, height)
        axes.set_xlim(0, _RIGHT)
        axes.set_ylim(0, height)
        y = height - _TOP - 0.05
        for name, aside in asides.items():
            self._draw_sample(axes, name, y)
            _beside(axes, y, name, INK)
            if aside:
                _beside(axes, y - 0.16, aside, MUTED)
            y -= 0.4 if aside else 0.25
        y -= 0.12
        for kind in kinds:
            line = kind == "predicted"
            axes.add_line(Line2D([0.3, 0.54] if line else [0.42], [y, y] if line else [y],
                                 **_kind_style(kind, MUTED)))  # fmt: skip
            _beside(axes, y, kind, MUTED)
            y -= 0.22

    def _draw_sample(self, axes: Axes, name: str, y: float) -> None:
        """Draw a piece of an algorithm's curve exactly as in the chart."""
        predicted = "predicted" in self._drawn[name]
        marks = [kind for kind in dict.fromkeys(self._drawn[name]) if kind != "predicted"]
        style = self._line(name) if predicted else _THIN
        axes.plot([0.2, 0.64], [y, y], color=self._colour(name), gid=f"key {name}", **style)
        for number, kind in enumerate(marks, 1):
            x = 0.2 + 0.44 * number / (len(marks) + 1)
            axes.plot([x], [y], gid=f"key {kind} {name}", **self._marks(name, kind))

    def _colour(self, name: str) -> str:
        return PALETTE[self._looks[name]]

    def _line(self, name: str) -> dict[str, Any]:
        return {"linestyle": _DASHES[self._looks[name]], "linewidth": 1.9}

    def _marks(self, name: str, kind: Kind) -> dict[str, Any]:
        style = _kind_style(kind, self._colour(name))
        return {**style, "marker": _MARKS[self._looks[name]]}


def _kind_style(kind: Kind, colour: str) -> dict[str, Any]:
    if kind == "predicted":
        return {"color": colour, "linewidth": 1.9}
    return {
        "color": colour, "linestyle": "none", "marker": "o", "markersize": 5.5,
        "markeredgewidth": 1.4, "markerfacecolor": SHEET if kind == "emulated" else colour,
    }  # fmt: skip


def _beside(axes: Axes, y: float, words: str, colour: str) -> None:
    axes.text(0.76, y, words, fontsize=8.5, color=colour, va="center", ha="left")


def _ticks(axis: Any, limits: tuple[float, float], words: Any) -> None:
    """Set a tick for each power of ten; label fewer, or add ticks, to suit the axis's range."""
    powers = _round_numbers(*limits, (1,))
    every = 3 if len(powers) > 9 else 1
    labelled = [number for number in powers if round(np.log10(number)) % every == 0]
    for digits in ((1, 2, 5), range(1, 10)):
        if len(powers) < 3:
            powers = labelled = _round_numbers(*limits, digits)
    labels = dict.fromkeys(powers, "") | {each: short_words(words(each)) for each in labelled}
    axis.set_major_locator(FixedLocator(powers))
    axis.set_major_formatter(FuncFormatter(lambda place, _: labels[place]))
    axis.set_minor_locator(NullLocator())
    axis.set_tick_params(colors=MUTED, labelsize=8, length=3)


def _round_numbers(low: float, high: float, digits: Sequence[int]) -> list[float]:
    """Return the numbers from `low` to `high` that are one of the digits times a power of ten."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    numbers = (float(f"{digit}e{power}") for power in powers for digit in digits)
    return [number for number in numbers if low <= number <= high]
