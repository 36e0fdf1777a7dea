"""Figures of batches: an optimizer step, learning-rate schedules, sweeps, and a published sweep.

copy 0  ■ ■   [ 4 ][ 4 ][ 4 ]  │        a copy computes its microbatches one after another,
copy 1  ■ ■   [ 4 ][ 4 ][ 4 ]  │ step   on all its GPUs; then the copies average their gradients
 GPUs of a copy   time ──►
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from dtlab.show.drawing.charts import BREADTH, Axis, Chart, Numbers
from dtlab.show.drawing.style import COLOURS, INK, MUTED, Figure, blend, centred, edge
from dtlab.show.words import number_words

__all__ = ["AT_8K", "IMAGENET", "effective_batch", "published_sweep", "schedule", "sweep_chart"]

_WIDTH, _HEIGHT = 9.4, 3.7
_TOP, _BOTTOM = 2.75, 0.45  # inches from below: upper and lower end of the rows of copies
_MOST_COPIES, _MOST_GPUS, _MOST_MICRO = 6, 8, 12
_GPUS, _MICRO, _END = 1.1, 3.0, 7.9  # inches from the left
_GPU: Final = blend(COLOURS["compute"], "#000000", 0.25)


def effective_batch(
    micro_batch: int = 4,
    micro_batches: int = 8,
    data_parallel: int = 4,
    gpus_per_copy: int = 2,
    *,
    title: str | None = None,
) -> Figure:
    """Draw the samples over which one step averages its gradient, and the GPUs that compute it.

    In a step, each of `data_parallel` copies of the model processes `micro_batches` microbatches
    of `micro_batch` samples. `gpus_per_copy` GPUs share one copy (tensor times pipeline
    parallelism) and process the same samples. Raises ValueError for a number below 1.
    """
    numbers = micro_batch, micro_batches, data_parallel, gpus_per_copy
    if min(numbers) < 1:
        raise ValueError(f"effective_batch: all numbers must be at least 1, not {numbers}.")
    batch, gpus = micro_batch * micro_batches * data_parallel, data_parallel * gpus_per_copy
    heading = title or (
        f"Effective batch: {_many(batch, 'sample')} in a step, on {_many(gpus, 'GPU')}"
    )
    product = f"{micro_batch:,} × {micro_batches:,} × {data_parallel:,} = {batch:,}"
    note = f"microbatch × microbatches × data-parallel degree: {product}"
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(heading, note)
    axes = figure.sheet(0, 0, _WIDTH, _HEIGHT)
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, _HEIGHT)
    _draw_copies(axes, *numbers)
    claimed = micro_batch * micro_batches * gpus
    aside = f"GPUs that share a copy see the same samples: with all {gpus:,} GPUs the product "
    aside += f"would be {claimed:,}, too many by a factor of {gpus_per_copy}."
    if gpus_per_copy > 1:
        axes.text(0.15, 0.2, aside, fontsize=8.5, color=MUTED, va="center")
    work = f"{_many(micro_batches, 'microbatch', 'microbatches')} of {micro_batch}"
    reduce = "one all-reduce and " if data_parallel > 1 else ""
    words = [
        f"{heading} ({note}).",
        f"{_many(data_parallel, 'copy', 'copies')} of the model, each on",
        f"{_many(gpus_per_copy, 'GPU')}, with {work}, one after another; then {reduce}the step.",
    ]
    figure.alt_text = " ".join([*words, aside] if gpus_per_copy > 1 else words)
    return figure


def _many(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def _draw_copies(axes: Axes, micro: int, count: int, copies: int, gpus: int) -> None:
    """Draw a row for each copy, or for the first copies and a line that counts the rest."""
    shown = copies if copies <= _MOST_COPIES else _MOST_COPIES - 1
    pitch = min(0.62, (_TOP - _BOTTOM) / (shown + (shown < copies)))
    height = 0.72 * pitch
    for words, x in ((_gpu_words(gpus), _GPUS), ("microbatches, one after another", _MICRO)):
        axes.text(x, _TOP + 0.16, words, fontsize=8, color=MUTED, va="center")
    for copy in range(shown):
        low = _TOP - (copy + 1) * pitch + (pitch - height) / 2
        axes.text(0.15, low + height / 2, f"copy {copy}", fontsize=9, color=INK, va="center")
        _draw_gpus(axes, low, height, gpus)
        _draw_micro_batches(axes, low, height, micro, count)
    bottom = _TOP - shown * pitch
    if shown < copies:
        words = f"and {copies - shown:,} more copies"
        axes.text(0.15, bottom - pitch / 2, words, fontsize=9, color=MUTED, va="center")
        bottom -= pitch
    _draw_step(axes, _MICRO + min(count, _MOST_MICRO) * _across(count) + 0.1, bottom, copies)


def _gpu_words(gpus: int) -> str:
    return "its GPU" if gpus == 1 else f"its {gpus} GPUs"


def _draw_gpus(axes: Axes, low: float, height: float, gpus: int) -> None:
    shown = gpus if gpus <= _MOST_GPUS else _MOST_GPUS - 1
    side = min(height, 0.17)
    for number in range(shown):
        corner = (_GPUS + 0.21 * number, low + (height - side) / 2)
        axes.add_artist(Rectangle(corner, side, side, facecolor=_GPU, gid="gpu"))
    if shown < gpus:
        place = (_GPUS + 0.21 * shown + side / 2, low + height / 2)
        axes.text(*place, "…", **centred(9, INK))


def _draw_micro_batches(axes: Axes, low: float, height: float, micro: int, count: int) -> None:
    shown = count if count <= _MOST_MICRO else _MOST_MICRO - 1
    across, fill = _across(count), COLOURS["forward"]
    for number in range(shown):
        left = _MICRO + number * across
        box = Rectangle((left, low), 0.9 * across, height, facecolor=fill, edgecolor=edge(fill),
                        linewidth=0.6, gid="microbatch")  # fmt: skip
        axes.add_artist(box)
        size = 8 if len(str(micro)) < 4 else 6.5
        axes.text(left + 0.45 * across, low + height / 2, str(micro), **centred(size, INK))
    if shown < count:
        axes.text(_MICRO + (shown + 0.45) * across, low + height / 2, "…", **centred(9, INK))


def _across(count: int) -> float:
    """Return the inches of a microbatch and the gap after it."""
    return min(0.7, (_END - _MICRO) / min(count, _MOST_MICRO))


def _draw_step(axes: Axes, left: float, bottom: float, copies: int) -> None:
    """Draw the all-reduce and the step after the last microbatch; one copy needs no all-reduce."""
    fill = COLOURS["communication"] if copies > 1 else COLOURS["optimizer"]
    box = Rectangle((left, bottom), 0.16, _TOP - bottom, facecolor=fill, edgecolor=edge(fill),
                    linewidth=0.6, gid="step")  # fmt: skip
    axes.add_artist(box)
    words = "one all-reduce,\nthen the step" if copies > 1 else "the step"
    axes.text(left + 0.24, (bottom + _TOP) / 2, words, fontsize=8, color=INK, va="center")


# The learning rate over the steps of a run: as intended, and with a mistake ----------------------

_MEANT: Final = "as meant"
_POINTS: Final = 400


def schedule(
    warmup: float = 0.25,
    times: float = 8.0,
    calls_per_step: int = 1,
    decay: Literal["cosine", "linear", "constant"] = "cosine",
    base_rate: float = 0.05,
    num_steps: int = 400,
    *,
    title: str | None = None,
) -> Figure:
    """Plot the rate of `WarmupThenDecay` over `num_steps` optimizer steps, by the linear rule.

    The batch is `times` as large as the batch for `base_rate`, and so is the full rate. `warmup`
    is the share of the run, 0 to 1, in which the rate rises from `base_rate`. If `calls_per_step`
    is above 1, a second curve shows the rate if `scheduler.step()` is called that often in each
    optimizer step, for example once for every microbatch.
    Raises: ValueError for a share outside 0 to 1, fewer than one call or step, or `times` below 1.
    """
    if not 0 <= warmup <= 1 or times < 1 or calls_per_step < 1 or num_steps < 1:
        raise ValueError(
            f"schedule: give a warm-up from 0 to 1, and times, calls_per_step and num_steps of at "
            f"least 1; not {warmup}, {times}, {calls_per_step} and {num_steps}."
        )
    warm, steps = round(warmup * num_steps), np.linspace(0, num_steps, _POINTS + 1)
    heading = title or f"The learning rate in a run of {num_steps} steps"
    low, full = number_words(base_rate), number_words(base_rate * times)
    start = "no warm-up" if warm == 0 else f"{warm} steps of warm-up from {low}"
    note = f"predicted: {start}, full rate {full}, then {decay}"
    curves = {_MEANT: 1}
    if calls_per_step > 1:
        curves[f"{calls_per_step} calls in a step"] = calls_per_step
    upwards = Axis("learning rate", (0, 1.08 * base_rate * times))
    across = Axis("optimizer step", (0, num_steps))
    chart = Chart.below(heading, note, list(curves), across, upwards)
    asides = {}
    for name, calls in curves.items():
        rates = _rates(calls * steps, warm, num_steps, times, decay) * base_rate * times
        chart.draw_curve(name, steps, rates, "predicted")
        asides[name] = _aside(calls, warm, num_steps, decay)
    chart.draw_key(asides)
    facts = [f"{name}: {words.replace(chr(10), ', ')}" for name, words in asides.items()]
    chart.figure.alt_text = f"{heading} ({note}). {'; '.join(facts)}."
    return chart.figure


def _rates(steps: Numbers, warm: int, num_steps: int, times: float, decay: str) -> Numbers:
    """Return the share of the full rate that `WarmupThenDecay` has after `steps` calls."""
    from dtlab.training.learning_rate import DECAYS  # also imports torch, which takes a second

    left = max(1, num_steps - warm)
    going_up = 1 / times + (1 - 1 / times) * steps / max(1, warm)
    going_down = [DECAYS[decay](min(1.0, max(0.0, (step - warm) / left))) for step in steps]
    return np.where(steps < warm, going_up, going_down)


def _aside(calls: int, warm: int, num_steps: int, decay: str) -> str:
    """Say at which step the rate is full, and from which step on it is 0."""
    words = f"full rate at step {warm / calls:.0f}"
    if decay == "constant":
        return words
    gone = f"\n0 from step {num_steps / calls:.0f} on"
    return words + gone + ("" if calls == 1 else f"\nfor {100 - 100 / calls:.0f} % of the run")


# The results of several seeds: the median of each setting, and a bar from lowest to highest ------
#
#     error │ ┬           One seed gives a number; five seeds show whether two settings differ.
#           │ ●   ┬       Curves are shifted slightly, so that their bars do not hide each other.
#           │ ┴   ●┬      A group of marks belongs to the number below its middle.
#           │     ┴▲
#           └─┴────┴───
#            256  512  batch

Runs = Mapping[str, Mapping[float, Sequence[float]]]

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
    """Plot the results of several runs; `runs` maps a curve and an x value to the runs' results.

    A mark is the median of the runs; its bar extends from the lowest to the highest. `band` shades
    a strip between two x values, `level` draws a horizontal line; the text in each is its label.
    `asides` are written below the names of curves in the key, `note` below the title. `log` says
    which axes are logarithmic.
    Raises: ValueError if there is nothing to draw, for a number that is not finite, or not above 0
    on a logarithmic axis, and for more than six curves.
    """
    places = sorted({place for curve in runs.values() for place in curve})
    every = [value for curve in runs.values() for values in curve.values() for value in values]
    _check(runs, places, every, log)
    heading = f"{title} ({note})" if note else title
    ticks = tuple(places) if len(places) <= _MOST_TICKS else ()
    xs_shown = [*places, *(band[:2] if band else ())]
    heights = [*every, *([level[0]] if level else ())]
    axes = [
        Axis(across, _ends_across(xs_shown, "x" in log), "x" in log, ticks=ticks),
        _upwards(upwards, heights, "y" in log),
    ]
    chart = Chart.below(title, note, list(runs), *axes, height=4.1)
    chart.figure.alt_text = _alt_text(heading, across, upwards, runs)
    if band:
        chart.draw_band(*band)
        low, high = map(number_words, band[:2])
        chart.figure.alt_text += f" Shaded from {low} to {high}: {band[2]}."
    if level:
        chart.draw_level(*level)
        chart.figure.alt_text += f" A line at {number_words(level[0])}: {level[1]}."
    for number, (name, curve) in enumerate(runs.items()):
        aside = (number - (len(runs) - 1) / 2) * _APART
        xs = _moved(np.array(sorted(curve), dtype=float), aside, axes[0])
        columns = [curve[place] for place in sorted(curve)]
        chart.draw_ranges(name, xs, np.array([*map(min, columns)]), np.array([*map(max, columns)]))
        chart.draw_curve(name, xs, np.array([*map(median, columns)]), "measured")
    chart.draw_key({name: (asides or {}).get(name, "") for name in runs})
    return chart.figure


def _check(runs: Runs, places: Sequence[float], every: Sequence[float], log: str) -> None:
    empty = [name for name, curve in runs.items() if not curve or not all(curve.values())]
    if not runs or empty:
        which = f" {empty[0]!r} has a position without a run." if empty else ""
        raise ValueError(f"sweep_chart: nothing to draw.{which} Give each curve numbers.")
    for side, numbers in zip("xy", (places, every), strict=True):
        wrong = [x for x in numbers if not np.isfinite(x) or (side in log and x <= 0)]
        if wrong:
            raise ValueError(f"sweep_chart: {wrong[0]:g} cannot be drawn on the {side} axis.")


def _ends_across(places: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    """Return the ends of the x axis, with space for the marks at the first and the last value."""
    low, high = min(places), max(places)
    share = _ROOM / (BREADTH - 2 * _ROOM)
    if logarithmic:
        factor = (high / low) ** share if high > low else 2.0
        return low / factor, high * factor
    room = (high - low) * share or 1.0
    return low - room, high + room


def _upwards(name: str, values: Sequence[float], logarithmic: bool) -> Axis:
    """Return the y axis with some space at its ends; ticks at 1, 2 and 5 if logarithmic."""
    low, high = min(values), max(values)
    if not logarithmic:
        low = min(0.0, low)
        return Axis(name, (low, high + 0.07 * (high - low or 1.0)))
    ends = low / 1.3, high * 1.3
    powers = range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])))
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if ends[0] <= tick <= ends[1]]
    return Axis(name, ends, True, ticks=ticks if len(ticks) <= _MOST_TICKS else ())


def _moved(xs: Numbers, aside: float, axis: Axis) -> Numbers:
    """Shift x values by `aside` inches."""
    low, high = axis.ends
    if not axis.logarithmic:
        return xs + (high - low) * aside / BREADTH
    factor: float = (high / low) ** (aside / BREADTH)
    return xs * factor


def _alt_text(heading: str, across: str, upwards: str, runs: Runs) -> str:
    """Describe each curve by its medians, with the lowest and highest result at each x value."""
    facts = []
    for name, curve in runs.items():
        points = ", ".join(
            "{} ({} to {})".format(*(number_words(f(curve[place])) for f in (median, min, max)))
            + f" at {number_words(place)}"
            for place in sorted(curve)
        )
        facts.append(f"{name}: {points}")
    return f"{heading}: {upwards} against {across}. {'; '.join(facts)}."


# A published sweep: error on ImageNet against the batch, and other rules at a batch of 8k --------
#
# Source: P. Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour". The
# numbers are the top-1 validation error of ResNet-50 after 90 epochs, in percent, means of five
# runs.

IMAGENET: Final[Mapping[int, float]] = MappingProxyType(
    {
        128: 23.49,
        256: 23.60,
        512: 23.48,
        1024: 23.53,
        2048: 23.49,
        4096: 23.56,
        8192: 23.74,
        16384: 24.79,
        32768: 27.55,
        65536: 33.96,
    }
)  # batch: error, with the linear rule and a gradual warm-up over the first five epochs
AT_8K: Final[Mapping[str, tuple[str, float]]] = MappingProxyType(
    {
        "linear, gradual warm-up": ("0.1 x 32", 23.74),
        "linear, no warm-up": ("0.1 x 32", 24.84),
        "linear, constant warm-up": ("0.1 x 32", 25.88),
        "square root": ("0.1 x 5.7", 26.22),
        "not scaled": ("0.1", 41.67),
    }
)  # rule: its rate, and the error at a batch of 8192

_CURVE: Final = "linear, gradual warm-up"
_SMALL, _LARGE = 256, 8192


def published_sweep(rule: str = _CURVE, *, title: str | None = None) -> Figure:
    """Plot the published error on ImageNet against the batch, and another rule's error at 8192.

    `rule` is one of `AT_8K`. Raises ValueError for any other.
    """
    if rule not in AT_8K:
        raise ValueError(f"published_sweep: rule must be one of {', '.join(AT_8K)}, not {rule!r}.")
    heading = title or "ResNet-50 on ImageNet: error against the batch"
    note = "published: Goyal et al. 2017, mean of five runs; the rate is 0.1 at a batch of 256"
    names = list(dict.fromkeys([_CURVE, rule]))
    ends = min(IMAGENET) / 1.3, max(IMAGENET) * 1.3
    across = Axis("batch", ends, True, _batch, tuple(IMAGENET))
    upwards = Axis("top-1 error", (20, 44), write=_percent)
    chart = Chart.below(heading, note, names, across, upwards)
    batches, errors = (np.array([*side], dtype=float) for side in (IMAGENET, IMAGENET.values()))
    chart.draw_curve(_CURVE, batches, errors, "measured")
    rate, error = AT_8K[rule]
    if rule != _CURVE:
        chart.draw_curve(rule, np.array([float(_LARGE)]), np.array([error]), "measured")
    chart.draw_upright(_LARGE, "8k")
    more = error - IMAGENET[_SMALL]
    here = f"at 8k: rate {rate}\nerror {error:.2f} %,\n{more:.2f} points more\nthan at 256"
    chart.draw_key({name: here if name == rule else "" for name in names})
    points = ", ".join(f"{error:.2f} at {_batch(batch)}" for batch, error in IMAGENET.items())
    chart.figure.alt_text = (
        f"{heading} ({note}). Top-1 error in percent with the linear rule and gradual warm-up: "
        f"{points}. {rule.capitalize()}, {' '.join(here.split())}."
    )
    return chart.figure


def _batch(value: float) -> str:
    return f"{value:g}" if value < 1024 else f"{value / 1024:g}k"


def _percent(value: float) -> str:
    return f"{value:g} %"
