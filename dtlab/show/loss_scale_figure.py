"""Draws the scale of a loss over the steps of a run, and the steps that were skipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from dtlab.show.charts import KEY, Axis, Chart
from dtlab.show.style import PALETTE, Figure

__all__ = ["loss_scale_chart"]

_WIDTH, _HEIGHT = 9.4, 3.6
_LEFT, _TOP, _BOTTOM = 0.8, 0.95, 0.6
_NAME: Final = "loss scale"
_MOST_TICKS: Final = 8


def loss_scale_chart(
    scales: Sequence[float],
    skipped: Sequence[bool],
    *,
    title: str = "The scale of the loss, step by step",
    note: str = "",
) -> Figure:
    """The scale in each step, as stairs, with a cross where gradients overflowed.

    `skipped` says of each step whether the optimizer left it out. `note` says where it is from.
    Raises: ValueError for no step, for scales that are not above 0, or where there are not as many
    of both.
    """
    if not len(scales) or len(scales) != len(skipped):
        raise ValueError(f"loss_scale_chart: a scale and a bool for each step, one step at least; "
                         f"not {len(scales)} and {len(skipped)}.")  # fmt: skip
    wrong = [one for one in scales if not 0 < one < math.inf]
    if wrong:
        raise ValueError(f"loss_scale_chart: scales are above 0, not {wrong[0]}.")
    steps = np.arange(1, len(scales) + 1)
    missed = int(np.count_nonzero(skipped))
    crosses = f"a cross: overflow, the step is skipped ({missed} of {len(scales)})"
    below = f"{note}; {crosses}" if note else crosses
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(title, below)
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - KEY, _HEIGHT - _TOP - _BOTTOM)
    across = Axis("optimizer step", (0.5, len(scales) + 0.5))
    chart = Chart(figure, box, [_NAME], across, _upwards(scales))
    stairs = np.repeat(np.append(steps - 0.5, len(scales) + 0.5), 2)[1:-1]
    chart.draw_curve(_NAME, stairs, np.repeat(np.asarray(scales, dtype=float), 2), "predicted")
    axes = figure.axes[0]
    for step in steps[np.asarray(skipped, dtype=bool)]:
        axes.plot([step], [scales[step - 1]], "X", markersize=9, color=PALETTE[1],
                  markeredgecolor="white", zorder=6, gid="skipped")  # fmt: skip
    last = f"{_power(scales[0])} in step 1\n{_power(scales[-1])} in step {len(scales)}"
    chart.draw_key({_NAME: last})
    places = ", ".join(str(step) for step in steps[np.asarray(skipped, dtype=bool)][:12])
    where = f"Skipped: {places}{', ...' if missed > 12 else ''}." if missed else "None is skipped."
    figure.alt_text = f"{title} ({below}). {last.replace(chr(10), ', ')}. {where}"
    return figure


def _upwards(scales: Sequence[float]) -> Axis:
    """Powers of two, a few of them with their names."""
    low, high = math.floor(math.log2(min(scales))), math.ceil(math.log2(max(scales)))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    ticks = [2.0**power for power in range(low, high + 1, step)]
    return Axis("scale", (2.0**low / 1.5, 2.0**high * 1.5), True, _power, ticks)


def _power(scale: float) -> str:
    power = math.log2(scale)
    return f"2^{power:.0f}" if power.is_integer() else f"{scale:.3g}"
