"""Draws what several seeds gave: the median of each setting, and a bar from lowest to highest.

    error │ ┬           One seed shows a number; five show whether two settings differ at all.
          │ ●   ┬       Curves are moved a little apart, so that their bars do not hide each
          │ ┴   ●┬      other: a group of marks belongs to the number below its middle.
          │     ┴▲
          └─┴────┴───
           256  512  batch
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, Literal

import numpy as np

from dtlab.show.charts import KEY, Axis, Chart, Numbers
from dtlab.show.style import Figure

__all__ = ["sweep_chart"]

Runs = Mapping[str, Mapping[float, Sequence[float]]]

_WIDTH, _HEIGHT = 9.4, 4.1
_LEFT, _TOP, _BOTTOM = 0.8, 0.95, 0.6
_APART: Final = 0.07  # inches between the marks of two curves at one place
_ROOM: Final = 0.35  # inches of the chart left free on both sides
_MOST_TICKS: Final = 12


def sweep_chart(
    runs: Runs,
    *,
    across: str,
    upwards: str,
    title: str,
    note: str = "",
    log: Literal["", "x", "y", "xy"] = "",
    band: tuple[float, float, str] | None = None,
    level: tuple[float, str] | None = None,
    asides: Mapping[str, str] | None = None,
) -> Figure:
    """Curves by their names: for each, at each place across, the numbers of all runs there.

    A mark is their median, its bar goes from the lowest to the highest. `band` shades a strip from
    one place to another, `level` draws a line at one height; both are named by their words.
    `asides` stand below the names of curves in the key, `note` below the title, and `log` says
    which axes are logarithmic.
    Raises: ValueError where there is nothing to draw, for a number that is not finite, or not
    above 0 on a logarithmic axis, and for more than six curves.
    """
    places = sorted({place for curve in runs.values() for place in curve})
    every = [value for curve in runs.values() for values in curve.values() for value in values]
    _check(runs, places, every, log)
    heading = f"{title} ({note})" if note else title
    figure = Figure(_WIDTH, _HEIGHT, alt_text=_alt_text(heading, across, upwards, runs))
    figure.heading(title, note)
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - KEY, _HEIGHT - _TOP - _BOTTOM)
    ticks = tuple(places) if len(places) <= _MOST_TICKS else ()
    seen = [*places, *(band[:2] if band else ())]
    heights = [*every, *([level[0]] if level else ())]
    axes = [
        Axis(across, _ends_across(seen, "x" in log, box[2]), "x" in log, ticks=ticks),
        _upwards(upwards, heights, "y" in log),
    ]
    chart = Chart(figure, box, list(runs), *axes)
    if band:
        chart.draw_band(*band)
        figure.alt_text += f" Shaded from {band[0]:.3g} to {band[1]:.3g}: {band[2]}."
    if level:
        chart.draw_level(*level)
        figure.alt_text += f" A line at {level[0]:.3g}: {level[1]}."
    for number, (name, curve) in enumerate(runs.items()):
        aside = (number - (len(runs) - 1) / 2) * _APART
        xs = _moved(np.array(sorted(curve), dtype=float), aside, axes[0], box[2])
        columns = [curve[place] for place in sorted(curve)]
        chart.draw_ranges(name, xs, np.array([*map(min, columns)]), np.array([*map(max, columns)]))
        chart.draw_curve(name, xs, np.array([*map(median, columns)]), "measured")
    chart.draw_key({name: (asides or {}).get(name, "") for name in runs})
    return figure


def _check(runs: Runs, places: Sequence[float], every: Sequence[float], log: str) -> None:
    empty = [name for name, curve in runs.items() if not curve or not all(curve.values())]
    if not runs or empty:
        where = f" {empty[0]!r} has a place without a run." if empty else ""
        raise ValueError(f"sweep_chart: nothing to draw.{where} Give each curve numbers.")
    for side, numbers in zip("xy", (places, every), strict=True):
        wrong = [one for one in numbers if not np.isfinite(one) or (side in log and one <= 0)]
        if wrong:
            raise ValueError(f"sweep_chart: {wrong[0]:g} has no place on the {side} axis.")


def _ends_across(places: Sequence[float], logarithmic: bool, inches: float) -> tuple[float, float]:
    """Ends with room for the marks of the first and the last place."""
    low, high = min(places), max(places)
    share = _ROOM / (inches - 2 * _ROOM)
    if logarithmic:
        factor = (high / low) ** share if high > low else 2.0
        return low / factor, high * factor
    room = (high - low) * share or 1.0
    return low - room, high + room


def _upwards(name: str, values: Sequence[float], logarithmic: bool) -> Axis:
    """An axis with a little room at its ends; a logarithmic one shows 1, 2 and 5 where it can."""
    low, high = min(values), max(values)
    if not logarithmic:
        low = min(0.0, low)
        return Axis(name, (low, high + 0.07 * (high - low or 1.0)))
    ends = low / 1.3, high * 1.3
    powers = range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])))
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if ends[0] <= tick <= ends[1]]
    return Axis(name, ends, True, ticks=ticks if len(ticks) <= _MOST_TICKS else ())


def _moved(xs: Numbers, aside: float, axis: Axis, inches: float) -> Numbers:
    """Places so many inches aside, on an axis of this length."""
    low, high = axis.ends
    if not axis.logarithmic:
        return xs + (high - low) * aside / inches
    factor: float = (high / low) ** (aside / inches)
    return xs * factor


def _alt_text(heading: str, across: str, upwards: str, runs: Runs) -> str:
    """The median at each place, and between which numbers it lies."""
    facts = []
    for name, curve in runs.items():
        points = ", ".join(
            f"{median(curve[place]):.3g} ({min(curve[place]):.3g} to {max(curve[place]):.3g}) "
            f"at {place:g}"
            for place in sorted(curve)
        )
        facts.append(f"{name}: {points}")
    return f"{heading}: {upwards} against {across}. {'; '.join(facts)}."
