"""Draws bus bandwidth against size: a panel for each collective, torch.distributed's and ours.

    B/s  │        ●──●     All panels have the same axes, so that one can look across: a bus
         │     ●   ■──■    bandwidth is to be compared with what the link can carry, whichever
         │  ●  ■           collective it is and however many ranks there are.
         └──────────────
           8 B      64 MB
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from dtlab.show.charts import KEY, Axis, Chart, Numbers
from dtlab.show.style import INK, MUTED, Figure
from dtlab.show.words import byte_words, short_words

__all__ = ["bus_bandwidths"]

Panels = Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]

_LEFT, _TOP, _BOTTOM = 0.85, 0.85, 0.65
_WIDTH, _HEIGHT = 2.45, 1.45
_ACROSS, _UPWARDS = 0.95, 0.85  # inches between panels
_MOST_ACROSS: Final = 2
_MOST_TICKS: Final = 5
_NOTHING: Final = (np.array([np.nan]), np.array([np.nan]))


def bus_bandwidths(
    panels: Panels,
    *,
    title: str,
    note: str = "",
    notes: Mapping[str, str] | None = None,
) -> Figure:
    """Bus bandwidth against size: for each collective, and each of its curves, two columns.

    The columns are sizes in bytes and bus bandwidths in bytes/s, as nccl-tests counts both. Curves
    of one name have one colour in all panels; `notes` say below the names of panels what is meant
    there, `note` stands below the title.
    Raises: ValueError where there is nothing to draw, for columns of different lengths or numbers
    that are not above 0, and for more than six names of curves.
    """
    drawn = {
        panel: {name: _columns(panel, name, pair) for name, pair in curves.items()}
        for panel, curves in panels.items()
        if curves
    }
    if not drawn:
        raise ValueError("bus_bandwidths: nothing to draw. Give it a collective with a curve.")
    names = list(dict.fromkeys(name for curves in drawn.values() for name in curves))
    across = min(_MOST_ACROSS, len(drawn))
    down = -(-len(drawn) // across)
    width = _LEFT + across * _WIDTH + (across - 1) * _ACROSS + KEY
    height = _TOP + down * _HEIGHT + (down - 1) * _UPWARDS + _BOTTOM
    heading = f"{title} ({note})" if note else title
    figure = Figure(width, height, alt_text=_alt_text(heading, drawn))
    figure.heading(title, note)
    axes = _axes(drawn)
    for number, (panel, curves) in enumerate(drawn.items()):
        row, column = divmod(number, across)
        left = _LEFT + column * (_WIDTH + _ACROSS)
        bottom = height - _TOP - _HEIGHT - row * (_HEIGHT + _UPWARDS)
        _name(figure, (left, bottom + _HEIGHT + 0.04), panel, (notes or {}).get(panel, ""))
        chart = Chart(figure, (left, bottom, _WIDTH, _HEIGHT), names, *axes)
        for name, pair in curves.items():
            chart.draw_curve(name, *pair, "measured")
        if number == across - 1:
            for name in (name for name in names if name not in curves):
                chart.draw_curve(name, *_NOTHING, "measured")  # the key is that of all panels
            chart.draw_key(dict.fromkeys(names, ""))
    return figure


def _columns(
    panel: str, name: str, pair: tuple[Sequence[float], Sequence[float]]
) -> tuple[Numbers, Numbers]:
    sizes, speeds = (np.asarray(column, dtype=float) for column in pair)
    if sizes.ndim != 1 or sizes.shape != speeds.shape or not len(sizes):
        raise ValueError(f"bus_bandwidths: {name!r} of {panel} has {sizes.size} sizes and "
                         f"{speeds.size} bandwidths; it needs one for each.")  # fmt: skip
    if not (np.isfinite(speeds) & (speeds > 0) & (sizes > 0)).all():
        raise ValueError(f"bus_bandwidths: sizes and bandwidths of {name!r} of {panel} have to be "
                         "above 0.")  # fmt: skip
    order = np.argsort(sizes, kind="stable")
    return sizes[order], speeds[order]


def _axes(drawn: Mapping[str, Mapping[str, tuple[Numbers, Numbers]]]) -> tuple[Axis, Axis]:
    pairs = [pair for curves in drawn.values() for pair in curves.values()]
    ends = []
    for side in (0, 1):
        numbers = np.concatenate([pair[side] for pair in pairs])
        ends.append((float(numbers.min()) / 1.8, float(numbers.max()) * 1.8))
    return (
        Axis("size", ends[0], True, lambda size: short_words(byte_words(size)), _ticks(*ends[0])),
        Axis("bus bandwidth", ends[1], True, _per_second, _ticks(*ends[1])),
    )


def _per_second(speed: float) -> str:
    return f"{short_words(byte_words(speed))}/s"


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two ends, so many that there is room for them."""
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    step = max(1, -(-len(powers) // _MOST_TICKS))
    return [10.0**power for power in powers[::step]]


def _name(figure: Figure, place: tuple[float, float], words: str, note: str) -> None:
    """A panel's name above it, and in small letters what is meant there."""
    width, height = figure.get_size_inches()
    x, y = place[0] / width, place[1] / height
    above = 0.15 / height if note else 0.0
    figure.text(x, y + above, words, fontsize=9, color=INK, weight="bold", gid=f"panel {words}")
    if note:
        figure.text(x, y, f"ours: {note}", fontsize=8, color=MUTED, gid=f"note {words}")


def _alt_text(heading: str, drawn: Mapping[str, Mapping[str, tuple[Numbers, Numbers]]]) -> str:
    """Where each curve begins and ends, and its highest point."""
    parts = [f"{heading}: bus bandwidth against size."]
    for panel, curves in drawn.items():
        facts = [
            f"{name} from {byte_words(speeds[0])}/s at {byte_words(sizes[0])} to "
            f"{byte_words(speeds[-1])}/s at {byte_words(sizes[-1])}, highest "
            f"{byte_words(speeds.max())}/s"
            for name, (sizes, speeds) in curves.items()
        ]
        parts.append(f"{panel}: {'; '.join(facts)}.")
    return " ".join(parts)
