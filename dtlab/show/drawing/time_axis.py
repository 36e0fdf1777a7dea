"""Axes with a clock: x in seconds, labelled in a suitable unit, and y in inches of the figure."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dtlab.show.drawing.style import GRID, MUTED, Figure
from dtlab.show.words import time_unit

__all__ = ["time_axes"]


def time_axes(
    figure: Figure,
    box: tuple[float, float, float, float],
    end: float,
    since: str,
    *,
    grid: bool = True,
) -> Axes:
    """Create axes in a box (left, bottom, width, height in inches), from 0 to `end` seconds.

    `since` names the event at time 0.
    """
    axes = figure.sheet(*box)
    unit, factor = time_unit(end)
    ticks = MaxNLocator(nbins=8, steps=[1, 2, 5, 10]).tick_values(0, end * factor)
    ticks = [tick for tick in ticks if 0 <= tick <= end * factor]
    axes.set(xlim=(0, end), ylim=(box[1], box[1] + box[3]))
    axes.set_axis_on()
    axes.set_yticks([])
    axes.set_xticks([tick / factor for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.tick_params(axis="x", colors=MUTED, labelsize=8, length=3)
    if grid:
        axes.grid(axis="x", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
    axes.set_xlabel(f"{unit} since {since}", fontsize=8, color=MUTED)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", color=MUTED)
    return axes
