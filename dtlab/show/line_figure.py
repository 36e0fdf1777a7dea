"""Draws curves of numbers: losses over steps, errors against rates, whatever has two columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from dtlab.show.charts import KEY, Axis, Chart, Kind, Numbers
from dtlab.show.style import Figure

__all__ = ["line_chart"]

Columns = Mapping[str, tuple[Sequence[float], Sequence[float]]]
_LEFT, _TOP, _BOTTOM = 0.8, 0.75, 0.6
_APART, _LONGEST = 0.08, 5  # of an axis, digits: room for a number that stands on it


def line_chart(
    curves: Columns,
    *,
    across: str,
    upwards: str,
    title: str,
    note: str = "",
    log: Literal["", "x", "y", "xy"] = "",
    kind: Kind = "measured",
    asides: Mapping[str, str] | None = None,
    places: Mapping[str, float] | None = None,
) -> Figure:
    """Curves by their names: for each the numbers across, and as many upwards.

    `across` and `upwards` name the axes, with units; `log` says which are logarithmic: numbers
    there that are not above 0 leave a gap, and where there are few across, these stand on the
    axis. `note` stands below the title, and `asides` below the
    names of curves in the key. `places` are lines across the chart, by the few words above them.
    Raises: ValueError where there is nothing to draw, for columns of different lengths, and for
    more than six curves.
    """
    drawn = {name: _columns(name, *pair, log=log) for name, pair in curves.items()}
    every = [np.concatenate([pair[side] for pair in drawn.values()]) for side in (0, 1)] if (
        drawn) else []  # fmt: skip
    if not drawn or any(not np.isfinite(side).any() for side in every):
        raise ValueError("line_chart: nothing to draw. Give it curves with numbers in them.")
    heading = f"{title} ({note})" if note else title
    words = _alt_text(heading, across, upwards, drawn) + _marked(places or {})
    figure = Figure(9.4, 3.6, alt_text=words)
    figure.heading(title, note)
    axes = [
        Axis(
            name,
            _ends(numbers, side in log),
            logarithmic=side in log,
            ticks=_few(numbers) if side == "x" and side in log else (),
        )
        for name, numbers, side in zip((across, upwards), every, "xy", strict=True)
    ]
    box = (_LEFT, _BOTTOM, 9.4 - _LEFT - KEY, 3.6 - _TOP - _BOTTOM)
    chart = Chart(figure, box, list(drawn), axes[0], axes[1])
    for name, (xs, ys) in drawn.items():
        chart.draw_curve(name, xs, ys, kind)
    for name, x in (places or {}).items():
        chart.draw_upright(x, name)
    chart.draw_key({name: (asides or {}).get(name, "") for name in drawn})
    return figure


def _marked(places: Mapping[str, float]) -> str:
    """Where lines stand, in words."""
    told = ", ".join(f"{name} at {x:g}" for name, x in places.items())
    return f" Lines: {told}." if told else ""


def _columns(
    name: str, xs: Sequence[float], ys: Sequence[float], log: str
) -> tuple[Numbers, Numbers]:
    """Two columns; what a logarithmic axis has no place for is not a number."""
    columns = np.asarray(xs, dtype=float), np.asarray(ys, dtype=float)
    if columns[0].ndim != 1 or columns[0].shape != columns[1].shape:
        raise ValueError(f"line_chart: {name!r} has {columns[0].size} numbers across and "
                         f"{columns[1].size} upwards; it needs as many.")  # fmt: skip
    across, upwards = (
        np.where(column > 0, column, np.nan) if side in log else column
        for side, column in zip("xy", columns, strict=True)
    )
    return across, upwards


def _ends(numbers: Numbers, logarithmic: bool) -> tuple[float, float]:
    """Ends of an axis with a little room."""
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    if logarithmic:
        return low / 1.5, high * 1.5
    low = min(0.0, low) if low < 0.4 * high else low
    room = 0.05 * (high - low) or 1.0
    return low - (room if low else 0.0), high + room


def _few(numbers: Numbers) -> list[float]:
    """The numbers themselves, where a logarithmic axis has room for all of them; else none."""
    own = np.unique(numbers[np.isfinite(numbers)])
    low, high = _ends(own, True)
    room = np.diff(np.log(own)) / np.log(high / low)
    if len(own) < 2 or room.min() < _APART or any(len(f"{one:g}") > _LONGEST for one in own):
        return []
    return [float(one) for one in own]


def _alt_text(
    heading: str, across: str, upwards: str, drawn: Mapping[str, tuple[Numbers, Numbers]]
) -> str:
    """Where each curve begins, how far it goes up and down, and where it ends."""
    facts = []
    for name, (xs, ys) in drawn.items():
        there = np.isfinite(xs) & np.isfinite(ys)
        if not there.any():
            facts.append(f"{name} has nothing to show")
            continue
        xs, ys = xs[there], ys[there]
        facts.append(f"{name} from {ys[0]:.3g} at {xs[0]:.3g} to {ys[-1]:.3g} at {xs[-1]:.3g}, "
                     f"lowest {ys.min():.3g}, highest {ys.max():.3g}")  # fmt: skip
    return f"{heading}: {upwards} against {across}. {'; '.join(facts)}."
