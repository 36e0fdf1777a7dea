"""Axes for time against size, and the curves, marks and ranges on them.

Both axes are logarithmic. A prediction is a line, an emulated time an open mark, a measured time a
full mark; an algorithm has one colour, one dash and one shape of mark in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dtlab.show.style import INK, MUTED, PALETTE, SHEET, Figure, blend, centred
from dtlab.show.words import byte_words, short_words, time_words

__all__ = ["CostAxes", "Curve", "Kind", "Winner"]

Kind = Literal["measured", "emulated", "predicted"]
Numbers = npt.NDArray[np.float64]
Curve = tuple[Numbers, Numbers]  # sizes in bytes, increasing, and times in seconds

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.75, 2.35, 0.85, 0.6
_BAND, _BAND_GAP = 0.2, 0.06  # inches: of the band that names the fastest, and below it
_KNOWN: Final = (  # have the same colour in every figure
    "ring", "central server", "recursive doubling", "halving-doubling", "tree", "hierarchical",
)  # fmt: skip
_DASHES: Final = ("-", (0, (1, 1)), (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (2, 1)), (0, (8, 2)))
_MARKS: Final = "osD^vP"


@dataclass(frozen=True)
class Winner:
    """The fastest algorithm of a range of sizes, in bytes."""

    name: str
    start: float
    end: float


def _looks_of(names: Sequence[str]) -> dict[str, int]:
    """The number of each name's colour, dash and mark: its own if known, else one that is free."""
    if len(names) > len(_KNOWN):
        raise ValueError(f"there is room for {len(_KNOWN)} algorithms, not for {len(names)}")
    known = {name: _KNOWN.index(name) for name in names if name in _KNOWN}
    free = (number for number in range(len(_KNOWN)) if number not in known.values())
    return {name: known[name] if name in known else next(free) for name in names}


@dataclass
class CostAxes:
    """Logarithmic axes, bytes across and seconds upwards, for the algorithms `names`.

    `limits` are those of the sizes and those of the times.
    """

    figure: Figure
    names: Sequence[str]
    limits: tuple[tuple[float, float], tuple[float, float]]

    def __post_init__(self) -> None:
        width, height = self.figure.get_size_inches()
        self._looks = _looks_of(self.names)
        self._axes = self.figure.sheet(
            _LEFT, _BOTTOM, width - _LEFT - _RIGHT, height - _TOP - _BOTTOM
        )
        self._axes.set_axis_on()
        self._axes.set(xscale="log", yscale="log", xlim=self.limits[0], ylim=self.limits[1])
        _ticks(self._axes.xaxis, self.limits[0], byte_words)
        _ticks(self._axes.yaxis, self.limits[1], time_words)
        self._axes.set_xlabel("size of the tensor", fontsize=8, color=MUTED)
        self._axes.grid(color="#E2E2DC", linewidth=0.7)
        self._axes.set_axisbelow(True)
        for side, spine in self._axes.spines.items():
            spine.set(visible=side in ("left", "bottom"), color=MUTED)

    def draw_curve(
        self, name: str, sizes: Numbers, seconds: Numbers, kind: Kind, *, joined: bool = True
    ) -> None:
        """A line for a prediction; else marks, `joined` by a thin line where there is no other."""
        style: dict[str, Any] = {"color": self._colour(name), "gid": f"{kind} {name}"}
        style |= self._line(name) if kind == "predicted" else self._marks(name, kind)
        if kind != "predicted" and joined:
            style |= {"linestyle": "-", "linewidth": 0.9}
        self._axes.plot(sizes, seconds, zorder=3 if kind == "predicted" else 4, **style)

    def draw_winners(self, winners: Sequence[Winner]) -> None:
        """The fastest of each range of sizes: a tint, a band with its name, a line at its end."""
        for each in winners:
            self._draw_winner(each)
        for each in winners[1:]:
            style: Any = {"color": INK, "linewidth": 0.9, "linestyle": (0, (3, 2)), "zorder": 2}
            self._axes.axvline(each.start, gid="crossover", **style)
            self._beside_line(each.start, 0.02, "bottom")
        if winners:
            width, height = self.figure.get_size_inches()
            y = 1 - (_TOP - _BAND_GAP - _BAND / 2) / height
            words = self.figure.text(0.15 / width, y, "fastest", ha="left", va="center")
            words.set(fontsize=8, color=MUTED)

    def _draw_winner(self, winner: Winner) -> None:
        """A tint over its range of sizes, and a band above with its name where there is room."""
        width, height = self.figure.get_size_inches() - (_LEFT + _RIGHT, _TOP + _BOTTOM)
        name, (start, end) = winner.name, (winner.start, winner.end)
        colour = blend(self._colour(name), "#000000", 0.25)  # dark enough for white letters
        tint = blend(colour, SHEET, 0.9)
        self._axes.axvspan(start, end, color=tint, linewidth=0, zorder=0, gid=f"fastest {name}")
        band = [1 + (_BAND_GAP + share * _BAND) / height for share in (0, 0.5, 1)]
        self._axes.axvspan(start, end, band[0], band[2], color=colour, linewidth=0, clip_on=False)
        decades = np.diff(np.log10(self.limits[0]))[0]
        if np.log10(end / start) / decades * width > 0.085 * len(name):
            place = (np.sqrt(start * end), band[1])
            label = self._axes.annotate(name, place, xycoords=("data", "axes fraction"))
            label.set(**centred(8, "#FFFFFF", "bold"), annotation_clip=False)

    def _beside_line(self, size: float, height: float, align: str) -> None:
        """A size in words to the right of a line across the chart, at a share of its height."""
        label = self._axes.annotate(byte_words(size), (size, height), textcoords="offset points",
                                    xycoords=("data", "axes fraction"), xytext=(4, 0))  # fmt: skip
        label.set(fontsize=8, color=INK, va=align)

    def draw_size(self, size: float, times: Mapping[str, float]) -> None:
        """A line at one size, with a point on every curve."""
        self._axes.axvline(size, color=INK, linewidth=1.1, zorder=5, gid="size")
        self._beside_line(size, 0.98, "top")
        for name, seconds in times.items():
            self._axes.plot([size], [seconds], "o", markersize=5, color=self._colour(name),
                            markeredgecolor=SHEET, zorder=6, gid=f"size {name}")  # fmt: skip

    def draw_key(self, asides: Mapping[str, str], kinds: Sequence[Kind]) -> None:
        """A line for each algorithm, in this order, with what is said of it; then the kinds."""
        width, height = self.figure.get_size_inches()
        axes = self.figure.sheet(width - _RIGHT, 0, _RIGHT, height)
        axes.set_xlim(0, _RIGHT)
        axes.set_ylim(0, height)
        y = height - _TOP - 0.05
        for name, aside in asides.items():
            sample = self._line(name) | {"markersize": 5, "marker": _MARKS[self._looks[name]]}
            sample |= {"color": self._colour(name), "markevery": [1]}
            axes.plot([0.2, 0.42, 0.64], [y] * 3, **sample)
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
    """A tick for each power of ten, in units that suit; every third where they are many."""
    exponents = list(_decades(*limits))
    every = 3 if len(exponents) > 9 else 1
    labels = {
        10.0**exponent: short_words(words(10.0**exponent)) if exponent % every == 0 else ""
        for exponent in exponents
    }
    axis.set_major_locator(FixedLocator(list(labels)))
    axis.set_major_formatter(FuncFormatter(lambda place, _: labels[place]))
    axis.set_minor_locator(NullLocator())
    axis.set_tick_params(colors=MUTED, labelsize=8, length=3)


def _decades(low: float, high: float) -> Iterator[int]:
    yield from range(int(np.ceil(np.log10(low))), int(np.floor(np.log10(high))) + 1)
