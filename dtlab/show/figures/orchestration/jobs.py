"""Figures of a job over hours and of many jobs: checkpoints, a sweep, replicas of a model.

goodput_curve        the share of the time that becomes progress, over the checkpoint interval
sweep_table          a number for each pair of settings
replicas_over_time   requests in progress, and the replicas that answer them
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from dtlab.predict.failures import best_interval, goodput, young_interval
from dtlab.show.drawing.charts import Axis, Chart, Numbers
from dtlab.show.drawing.style import (
    COLOURS,
    GRID,
    INK,
    MUTED,
    SHEET,
    Figure,
    blend,
    centred,
    edge,
    is_dark,
)
from dtlab.show.words import duration_words, number_words, time_words

__all__ = ["goodput_curve", "replicas_over_time", "sweep_table"]

# Goodput over the checkpoint interval ------------------------------------------------------------

_TICKS: Final = (  # seconds
    1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000,
)  # fmt: skip


def goodput_curve(
    save: float,
    between_failures: float,
    restart: float = 0.0,
    interval: float | None = None,
    *,
    title: str | None = None,
    note: str = "",
) -> Figure:
    """Plot the goodput over the checkpoint interval, with Young's and the best interval.

    Goodput is the share of the time that becomes lasting progress; see `dtlab.predict.goodput` for
    the arguments, in seconds. `interval` marks one more interval.
    Raises: ValueError as `dtlab.predict.goodput`, and if `save` is 0: then no interval is best.
    """
    if save == 0:
        raise ValueError("goodput_curve: save must be above 0 seconds. A save that takes no time "
                         "allows any number of saves, so no interval is best.")  # fmt: skip
    young, best = young_interval(save, between_failures), best_interval(save, between_failures)
    marks = {"Young's interval": young, "the best interval": best}
    if interval is not None:
        marks["your interval"] = interval
    low, high = min(*marks.values(), best / 30), max(*marks.values(), best * 30)
    xs = np.geomspace(low / 1.3, high * 1.3, 200)

    def share(seconds: float) -> float:
        return 100 * goodput(seconds, save, between_failures, restart)

    heading = title or "How often to save a checkpoint?"
    below = (
        f"a save takes {duration_words(save)}, a restart {duration_words(restart)}; "
        f"a failure every {duration_words(between_failures)}" + (f"; {note}" if note else "")
    )
    across = Axis("work between two saves", (float(xs[0]), float(xs[-1])), True, duration_words,
                  _ticks(float(xs[0]), float(xs[-1])))  # fmt: skip
    upwards = Axis("goodput in %", (0, 100))
    chart = Chart.below(heading, below, ["goodput", *marks], across, upwards)
    chart.draw_curve("goodput", xs, np.array([share(x) for x in xs]), "predicted")
    asides = {"goodput": "predicted"}
    for name, seconds in marks.items():
        chart.draw_curve(name, np.array([seconds]), np.array([share(seconds)]), "measured")
        asides[name] = f"{duration_words(seconds)}: {share(seconds):.1f} %"
    chart.draw_key(asides)
    facts = [f"{name} {words}" for name, words in asides.items() if name in marks]
    chart.figure.alt_text = (
        f"{heading} ({below}). Goodput in percent against the work between two saves: "
        f"{share(float(xs[0])):.0f} at {duration_words(float(xs[0]))}, "
        f"{share(float(xs[-1])):.0f} at {duration_words(float(xs[-1]))}. {'; '.join(facts)}."
    )
    return chart.figure


def _ticks(low: float, high: float) -> Sequence[float]:
    """Return every second tick if all ticks between the ends would be close together."""
    inside = [tick for tick in _TICKS if low <= tick <= high]
    return inside[:: 1 + (len(inside) > 9)]


# A sweep over two settings -----------------------------------------------------------------------

_CELL, _TALL = 0.95, 0.42  # inches
_GOOD: Final = COLOURS["forward"]


def sweep_table(
    results: Mapping[tuple[float, float], float],
    *,
    rows: str = "learning rate",
    columns: str = "batch",
    value: str = "loss",
    title: str | None = None,
    note: str = "",
) -> Figure:
    """Draw a number for each pair of settings: the smaller, the darker; the smallest has a frame.

    `results` maps pairs (row, column) to numbers. A result that is not finite is marked as
    diverged, and a pair without a result is empty.
    Raises: ValueError if no result is finite.
    """
    finite = {pair: number for pair, number in results.items() if math.isfinite(number)}
    if not finite:
        raise ValueError("sweep_table: nothing to draw. Give it at least one finite result.")
    down = sorted({row for row, _ in results})
    across = sorted({column for _, column in results})
    best = min(finite, key=finite.__getitem__)
    heading = title or f"{value.capitalize()} by {rows} and {columns}"
    below = f"darker is a smaller {value}; the frame is the smallest" + (note and f"; {note}")
    left, top = 1.5, 1.05
    width = max(5.6, left + _CELL * len(across) + 0.3)
    height = top + _TALL * len(down) + 0.2
    figure = Figure(width, height)
    figure.heading(heading, below)
    axes = figure.sheet(0, 0, width, height)
    axes.set(xlim=(0, width), ylim=(0, height))
    low, high = min(finite.values()), max(finite.values())
    axes.text(left - 0.15, height - top + 0.15, f"{rows}  \\  {columns}", ha="right", va="center",
              fontsize=8, color=MUTED)  # fmt: skip
    for x, column in enumerate(across):
        middle = left + (x + 0.5) * _CELL
        axes.text(middle, height - top + 0.15, number_words(column), **centred(9, INK))
    told = []
    for y, row in enumerate(down):
        bottom = height - top - (y + 1) * _TALL
        axes.text(left - 0.15, bottom + _TALL / 2, number_words(row), ha="right", va="center",
                  fontsize=9, color=INK)  # fmt: skip
        for x, column in enumerate(across):
            corner = left + x * _CELL, bottom
            number = results.get((row, column))
            words = _draw_cell(axes, corner, number, low, high)
            told.append(f"{words} at {number_words(row)} and {number_words(column)}")
            if (row, column) == best:
                frame = Rectangle(corner, _CELL, _TALL, fill=False, edgecolor=INK, gid="best")
                frame.set(linewidth=2.2, zorder=4)
                axes.add_patch(frame)
    figure.alt_text = f"{heading} ({below}): {'; '.join(told)}."
    return figure


def _draw_cell(
    axes: Axes, corner: tuple[float, float], number: float | None, low: float, high: float
) -> str:
    """Draw a cell with its number, and return the words for it."""
    words, fill, hatch = "no result", SHEET, ""
    if number is not None and math.isfinite(number):
        share = math.log(number / low) / math.log(high / low) if 0 < low < high else (
            (number - low) / (high - low) if high > low else 0.0)  # fmt: skip
        words, fill = number_words(number), blend(_GOOD, "#FFFFFF", min(1.0, 0.95 * share))
    elif number is not None:
        words, fill, hatch = "diverged", COLOURS["idle"], "//////"
    axes.add_patch(Rectangle(corner, _CELL, _TALL, facecolor=fill, edgecolor="#FFFFFF",
                             linewidth=1.2, gid="cell"))  # fmt: skip
    if hatch:
        box = Rectangle(corner, _CELL, _TALL, fill=False, hatch=hatch, linewidth=0)
        box.set(edgecolor=edge(fill), alpha=0.25, gid="diverged")
        axes.add_patch(box)
    if number is not None:
        ink = "#FFFFFF" if is_dark(fill) else INK
        axes.text(corner[0] + _CELL / 2, corner[1] + _TALL / 2, words, **centred(9, ink))
    return words


# Requests and replicas over time -----------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 9.4, 3.9, 0.8, 0.6


def replicas_over_time(
    seconds: Sequence[float],
    requests: Sequence[float],
    replicas: Sequence[float],
    *,
    per_replica: float | None = None,
    title: str | None = None,
    note: str = "",
) -> Figure:
    """Draw requests in progress, and below them the replicas of a service, over time.

    Each value holds from its time to the next. `per_replica` is the number of requests for which
    one replica is meant; a dashed line shows how many the replicas are meant for.
    Raises: ValueError unless there are two times or more, in order, and as many of each value.
    """
    times = np.asarray(seconds, dtype=float)
    columns = np.asarray(requests, dtype=float), np.asarray(replicas, dtype=float)
    if len(times) < 2 or (np.diff(times) < 0).any() or any(len(c) != len(times) for c in columns):
        raise ValueError(
            f"replicas_over_time: give two or more times in order, and as many requests and "
            f"replicas, not {len(times)}, {len(columns[0])} and {len(columns[1])}."
        )
    heading = title or "Requests and replicas"
    below = f"dashed: {number_words(per_replica)} for each replica" if per_replica else ""
    below = "; ".join(filter(None, (note, below)))
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(heading, below)
    times = times - times[0]
    upper = _panel(figure, (1.95, 1.15), times, columns[0], "requests in\nprogress")
    lower = _panel(figure, (_BOTTOM, 1.05), times, columns[1], "replicas")
    upper.tick_params(labelbottom=False)
    lower.set_xlabel("s since the first value", fontsize=8, color=MUTED)
    if per_replica:
        meant = columns[1] * per_replica
        upper.step(times, meant, where="post", color=INK, linewidth=1.4,
                   linestyle=(0, (4, 2)), gid="meant")  # fmt: skip
        upper.set_ylim(0, 1.1 * max(*columns[0], *meant))
    changes = [0, *(np.flatnonzero(np.diff(columns[1])) + 1)]
    told = [f"{columns[1][at]:g} from {number_words(times[at])} s" for at in changes]
    most = int(np.argmax(columns[0]))
    figure.alt_text = (
        f"{heading}{f' ({below})' if below else ''}: over {time_words(float(times[-1]))}, at most "
        f"{columns[0][most]:g} requests in progress, at {number_words(times[most])} s. "
        f"Replicas: {', '.join(told)}."
    )
    return figure


def _panel(
    figure: Figure, place: tuple[float, float], times: Numbers, values: Numbers, name: str
) -> Axes:
    """Draw values as steps; `place` is the lower end and the height, in inches."""
    axes = figure.sheet(_LEFT, place[0], _WIDTH - _LEFT - 0.3, place[1])
    axes.set_axis_on()
    axes.set(xlim=(0, times[-1]), ylim=(0, 1.1 * max(1.0, *values)))
    colour = COLOURS["communication"] if name != "replicas" else COLOURS["backward"]
    axes.fill_between(
        times, values, step="post", color=blend(colour, "#FFFFFF", 0.55), linewidth=0
    )
    axes.step(times, values, where="post", color=edge(colour), linewidth=1.2, gid=name)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.tick_params(colors=MUTED, labelsize=8, length=3)
    axes.set_ylabel(name, fontsize=8, color=MUTED)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=MUTED)
    return axes
