"""Figures of curves: losses, errors, scaling with the number of ranks, and ceilings on speed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from matplotlib.patches import Rectangle

from dtlab.predict.hardware import CARDS, Card, Link
from dtlab.predict.roofline import Ceiling, attainable, ceilings
from dtlab.predict.units import in_units
from dtlab.show.drawing.charts import Axis, Chart, Kind, Numbers, grey_out, log_ends
from dtlab.show.drawing.style import COLOURS, INK, MUTED, SHEET, Figure, blend, edge
from dtlab.show.words import number_words

__all__ = ["ceiling_ladder", "line_chart", "roofline", "scaling_chart"]

Columns = Mapping[str, tuple[Sequence[float], Sequence[float]]]
_APART, _LONGEST = 0.08, 5  # room for a tick label: share of the axis, and number of digits


def line_chart(
    curves: Columns,
    *,
    across: str,
    upwards: str,
    title: str,
    note: str = "",
    log: Literal["", "x", "y", "xy"] = "",
    kind: Kind = "measured",
    predicted: Columns | None = None,
    asides: Mapping[str, str] | None = None,
    places: Mapping[str, float] | None = None,
) -> Figure:
    """Plot curves; `curves` maps a name to the x values and equally many y values.

    `across` and `upwards` name the axes, with units. `log` says which axes are logarithmic; values
    on them that are not above 0 leave a gap, and a few x values are themselves the tick labels.
    `note` is written below the title, `asides` below the names of curves in the key. `places` are
    vertical lines: it maps the label above each line to its x value. `predicted` are the curves
    that the formula gives for some of the names, drawn as lines; marks far from them are grey,
    because the machine was busy.
    Raises: ValueError if there is nothing to draw, for columns of different lengths, and for more
    than six curves.
    """
    drawn = {name: _columns(name, *pair, log=log) for name, pair in curves.items()}
    every = [np.concatenate([pair[side] for pair in drawn.values()]) for side in (0, 1)] if (
        drawn) else []  # fmt: skip
    if not drawn or any(not np.isfinite(side).any() for side in every):
        raise ValueError("line_chart: nothing to draw. Give it curves with numbers in them.")
    heading = f"{title} ({note})" if note else title
    words = _alt_text(heading, across, upwards, drawn) + _marked(places or {})
    axes = [
        Axis(
            name,
            _ends(numbers, side in log),
            logarithmic=side in log,
            ticks=_few(numbers) if side == "x" and side in log else (),
        )
        for name, numbers, side in zip((across, upwards), every, "xy", strict=True)
    ]
    chart = Chart.below(title, note, list(drawn), *axes, height=3.6)
    chart.figure.alt_text = words
    beside = dict(asides or {})
    for name, pair in (predicted or {}).items():
        formula = _columns(name, *pair, log=log)
        chart.draw_curve(name, *formula, "predicted")
        grey = grey_out(chart.axes, name, drawn[name], formula, "%" if "%" in upwards else "")
        lines = (beside.get(name, ""), f"marks {kind},", "line predicted", grey)
        beside[name] = "\n".join(filter(None, lines))
    for name, (xs, ys) in drawn.items():
        chart.draw_curve(name, xs, ys, kind, joined=name not in (predicted or {}))
    for name, x in (places or {}).items():
        chart.draw_upright(x, name)
    chart.draw_key({name: beside.get(name, "") for name in drawn})
    return chart.figure


def _marked(places: Mapping[str, float]) -> str:
    """List the vertical lines in words."""
    lines = ", ".join(f"{name} at {number_words(x)}" for name, x in places.items())
    return f" Lines: {lines}." if lines else ""


def _columns(
    name: str, xs: Sequence[float], ys: Sequence[float], log: str
) -> tuple[Numbers, Numbers]:
    """Convert both columns to arrays, with NaN for values that a logarithmic axis cannot show."""
    columns = np.asarray(xs, dtype=float), np.asarray(ys, dtype=float)
    if columns[0].ndim != 1 or columns[0].shape != columns[1].shape:
        raise ValueError(f"line_chart: {name!r} has {columns[0].size} numbers across and "
                         f"{columns[1].size} upwards; give equally many.")  # fmt: skip
    across, upwards = (
        np.where(column > 0, column, np.nan) if side in log else column
        for side, column in zip("xy", columns, strict=True)
    )
    return across, upwards


def _ends(numbers: Numbers, logarithmic: bool) -> tuple[float, float]:
    """Return the ends of an axis, with some space beyond the values."""
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    if logarithmic:
        return log_ends(low, high)
    low = min(0.0, low) if low < 0.4 * high else low
    room = 0.05 * (high - low) or 1.0
    return low - (room if low else 0.0), high + room


def _few(numbers: Numbers) -> list[float]:
    """Return the numbers as ticks if all fit on a logarithmic axis, else an empty list."""
    ticks = np.unique(numbers[np.isfinite(numbers)])
    low, high = _ends(ticks, True)
    room = np.diff(np.log(ticks)) / np.log(high / low)
    if len(ticks) < 2 or room.min() < _APART or any(len(f"{x:g}") > _LONGEST for x in ticks):
        return []
    return [float(tick) for tick in ticks]


def _alt_text(
    heading: str, across: str, upwards: str, drawn: Mapping[str, tuple[Numbers, Numbers]]
) -> str:
    """Describe the start, the end, the lowest and the highest point of each curve."""
    facts = []
    for name, (xs, ys) in drawn.items():
        finite = np.isfinite(xs) & np.isfinite(ys)
        if not finite.any():
            facts.append(f"{name} has nothing to show")
            continue
        xs, ys = xs[finite], ys[finite]
        ends = " to ".join(f"{number_words(ys[i])} at {number_words(xs[i])}" for i in (0, -1))
        reach = f"lowest {number_words(ys.min())}, highest {number_words(ys.max())}"
        facts.append(f"{name} from {ends}, {reach}")
    return f"{heading}: {upwards} against {across}. {'; '.join(facts)}."


# Speed-up of a job with more ranks: measured, emulated and predicted -----------------------------
#
# The dashed line is ideal scaling: N ranks are N times as fast as one rank.

Times = Mapping[str, Mapping[int, float]]
_IDEAL: Final = "ideal: N times"


def scaling_chart(
    measured: Times | None = None,
    *,
    emulated: Times | None = None,
    predicted: Times | None = None,
    weak: Collection[str] = (),
    title: str = "How much faster with more ranks?",
    note: str = "",
) -> Figure:
    """Plot the work per second on 1, 2, 4, ... ranks, relative to the work of one rank.

    Each argument maps the name of a job to its seconds per step by number of ranks; 1 rank must be
    among them. The total batch is the same for all numbers of ranks (strong scaling). For the jobs
    named in `weak` the batch of each rank is the same, so N ranks do N times the work in a step.
    Emulated marks that are far from their prediction are grey: the machine was busy.
    Raises: ValueError if there is nothing to draw, if times on one rank are missing, for times
    that are not above 0, and for more than five jobs.
    """
    kinds: dict[Kind, Times] = {
        "predicted": predicted or {}, "emulated": emulated or {}, "measured": measured or {},
    }  # fmt: skip
    drawn = {
        (kind, name): _speedups(name, seconds, name in weak)
        for kind, times in kinds.items()
        for name, seconds in times.items()
    }
    if not drawn:
        raise ValueError(
            "scaling_chart: nothing to draw. Give it a job's name with its seconds by ranks."
        )
    names = list(dict.fromkeys(name for _, name in drawn))
    ranks = sorted({int(n) for columns in drawn.values() for n in columns[0]})
    heading = f"{title} ({note})" if note else title
    speedups = np.concatenate([columns[1] for columns in drawn.values()])
    chart = Chart.below(title, note, [*names, _IDEAL], *_scaling_axes(ranks, speedups))
    chart.figure.alt_text = _scaling_alt_text(heading, drawn)
    chart.draw_curve(_IDEAL, np.array(ranks, float), np.array(ranks, float), "predicted")
    for (kind, name), (xs, ys) in drawn.items():
        chart.draw_curve(
            name, xs, ys, kind, joined=kind == "predicted" or ("predicted", name) not in drawn
        )
    asides = {name: _aside(name, drawn, weak) for name in names}
    for name in names:
        if {("emulated", name), ("predicted", name)} <= drawn.keys():
            pair = drawn["emulated", name], drawn["predicted", name]
            asides[name] += f"\n{grey_out(chart.axes, name, *pair)}".rstrip()
    chart.draw_key({**asides, _IDEAL: ""})
    return chart.figure


def _speedups(name: str, seconds: Mapping[int, float], weak: bool) -> tuple[Numbers, Numbers]:
    """Return the numbers of ranks and the speed-ups over one rank."""
    if 1 not in seconds:
        raise ValueError(f"scaling_chart: {name!r} has no time on one rank to compare with.")
    ranks = np.array(sorted(seconds), dtype=float)
    times = np.array([seconds[int(n)] for n in ranks])
    if not (times > 0).all():
        raise ValueError(f"scaling_chart: the times of {name!r} must be above 0.")
    return ranks, (ranks if weak else 1.0) * seconds[1] / times


def _scaling_axes(ranks: list[int], speedups: Numbers) -> tuple[Axis, Axis]:
    """Return ranks across and speed-up upwards, both on log scales."""
    across = Axis("ranks", (ranks[0] / 1.15, ranks[-1] * 1.15), True, ticks=ranks)
    low, high = min(0.5, float(speedups.min())), max(float(ranks[-1]), float(speedups.max()))
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    ends = (low / 1.25, high * 1.25)
    upwards = Axis("times the speed of one rank", ends, True, ticks=[2.0**each for each in powers])
    return across, upwards


def _aside(
    name: str, drawn: Mapping[tuple[Kind, str], tuple[Numbers, Numbers]], weak: Collection[str]
) -> str:
    """Describe the curves of a job, and its efficiency on the largest number of ranks."""
    kinds = [kind for kind, each in drawn if each == name]
    ranks, speedups = drawn[kinds[-1], name]
    share = 100 * speedups[-1] / ranks[-1]
    lines = [f"marks {kinds[-1]},", "line predicted"] if len(kinds) > 1 else [kinds[0]]
    lines += ["the batch grows"] if name in weak else []
    return "\n".join([*lines, f"efficiency on {ranks[-1]:g}: {share:.0f} %"])


def _scaling_alt_text(
    heading: str, drawn: Mapping[tuple[Kind, str], tuple[Numbers, Numbers]]
) -> str:
    """Describe how much faster each job is on each number of ranks."""
    facts = []
    for (kind, name), (ranks, speedups) in drawn.items():
        pairs = zip(ranks, speedups, strict=True)
        points = ", ".join(f"{times:.3g} on {n:g}" for n, times in pairs)
        facts.append(f"{name}, {kind}: {points}")
    return f"{heading}: times the work of one rank per second. {'; '.join(facts)}."


# Ceilings: what each memory and each link of a GPU allows ----------------------------------------
#
#     arithmetic      ████████████████████  989 TFLOP/s    FLOPs per byte
#     shared memory   ███████████████       33 TB/s              30
#     HBM             ██████████            3.35 TB/s           295
#     NVLink          ██████                450 GB/s          2,198
#     network         ██                    50 GB/s          19,780

_CARD: Final = CARDS["H100 SXM"]
_REACHES: Final = {
    "shared memory": "inside a multiprocessor",
    "HBM": "memory of the GPU",
    "NVLink": "GPUs of the same node",
    "network": "other nodes",
}
_INTENSITIES: Final = 0.1, 2e5  # FLOPs per byte
_BAR, _PITCH, _BARS, _LONG = 0.28, 0.46, 2.05, 4.0  # inches; from _BARS on, at most _LONG


def ceiling_ladder(
    card: Card = _CARD, network: Link | None = None, *, title: str | None = None
) -> Figure:
    """Draw the bytes per second of each memory and link of a GPU, below its FLOPs per second.

    The right column has the FLOPs that the GPU must compute per byte that it moves over this
    level, so that arithmetic is the limit and not the level. `network` is the link between nodes;
    None means the adapter that usually comes with the card.
    Raises: ValueError for a card without a bf16 peak, or without any bandwidth.
    """
    peak, levels = _levels("ceiling_ladder", card, network)
    height = 1.35 + _PITCH * (1 + len(levels))
    heading = title or f"The ladder of ceilings: {card.name}"
    below = "per GPU and one-way; bars on a logarithmic scale; arithmetic in bf16, dense"
    figure = Figure(9.4, height)
    figure.heading(heading, below)
    axes = figure.sheet(0, 0, 9.4, height)
    axes.set(xlim=(0, 9.4), ylim=(0, height))
    axes.text(8.6, height - 0.8, "FLOPs per byte needed", fontsize=8.5, color=MUTED, ha="right")
    lowest = levels[-1].bandwidth / 5
    reach = math.log(peak / lowest)
    told = [f"arithmetic {in_units(peak, 'FLOP/s')}"]
    rows = [("arithmetic", "FLOPs per second", peak, "FLOP/s")]
    rows += [(name, _REACHES.get(name, ""), each, "B/s") for name, each in levels]
    for number, (name, reaches, speed, unit) in enumerate(rows):
        low = height - 1.2 - _PITCH * number
        fill = COLOURS["forward"] if number == 0 else COLOURS["communication"]
        if name in ("shared memory", "HBM"):
            fill = blend(fill, SHEET, 0.55)
        wide = _LONG * math.log(speed / lowest) / reach
        axes.add_patch(Rectangle((_BARS, low), wide, _BAR, facecolor=fill, edgecolor=edge(fill),
                                 linewidth=0.6, gid=name))  # fmt: skip
        axes.text(0.15, low + 0.2, name, fontsize=9.5, color=INK, va="center")
        axes.text(0.15, low + 0.03, reaches, fontsize=7.5, color=MUTED, va="center")
        words = in_units(speed, unit)
        axes.text(_BARS + wide + 0.1, low + 0.14, words, fontsize=9, color=INK, va="center")
        if number:
            ridge = f"{peak / speed:,.0f}"
            axes.text(8.6, low + 0.14, ridge, fontsize=9.5, color=INK, va="center", ha="right")
            told.append(f"{name} {words}, arithmetic is the limit from {ridge} FLOPs per byte on")
    axes.text(0.15, 0.14, "A level further down moves fewer bytes per second, so a program must "
              "compute more with each byte.", fontsize=8.5, color=INK)  # fmt: skip
    figure.alt_text = f"{heading} ({below}): {'; '.join(told)}."
    return figure


def _levels(function: str, card: Card, network: Link | None) -> tuple[float, list[Ceiling]]:
    """Return the card's peak and its ceilings, fastest first."""
    levels = ceilings(card, network)
    if card.bf16_flops is None or not levels:
        raise ValueError(
            f"{function}: the bf16 peak or all bandwidths of {card.name} are unknown."
        )
    return card.bf16_flops, levels


def roofline(
    points: Mapping[str, tuple[str, float]] | None = None,
    card: Card = _CARD,
    network: Link | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Plot the FLOPs per second that each memory and link of a GPU allows.

    `points` maps a name to a level, such as "network", and to the FLOPs that a program computes
    per byte that it moves over this level. Each point lies on the level's roof (Williams et al.
    2009, "Roofline").
    Raises: ValueError for a level that the card does not have.
    """
    peak, levels = _levels("roofline", card, network)
    by_name = dict(levels)
    unknown = {level for level, _ in (points or {}).values()} - set(by_name)
    if unknown:
        raise ValueError(f"roofline: {card.name} has {', '.join(by_name)}; not {unknown.pop()!r}.")
    heading = title or f"The roofline of the {card.name}, with its links"
    below = f"peak {in_units(peak, 'FLOP/s')} in bf16; a roof for each memory and link"
    across = np.geomspace(*_INTENSITIES, 300)
    axes = [
        Axis("FLOPs per byte over the level", _INTENSITIES, True, number_words),
        Axis("FLOP/s at most", (1e11, 4 * peak), True, lambda y: in_units(y, "FLOP/s")),
    ]
    chart = Chart.below(heading, below, list(by_name), *axes, height=4.1, left=1.2)
    for name, bandwidth in levels:
        chart.draw_curve(name, across, attainable(across, peak, bandwidth), "predicted")
    told = [f"{name} reaches the peak from {each.ridge(peak):,.0f} FLOPs per byte on"
            for name, each in zip(by_name, levels, strict=True)]  # fmt: skip
    for name, (level, intensity) in (points or {}).items():
        speed = float(attainable(intensity, peak, by_name[level]))
        chart.draw_points(intensity, {level: speed})
        above = speed == peak
        label = chart.axes.annotate(name, (intensity, speed), textcoords="offset points",
                                    xytext=(0, 7) if above else (7, -5))  # fmt: skip
        label.set(ha="center" if above else "left", va="bottom" if above else "top")
        label.set(fontsize=8, color=INK, gid=f"point {name}")
        label.set_bbox({"facecolor": SHEET, "edgecolor": "none", "pad": 0.5, "alpha": 0.8})
        told.append(
            f"{name}, over {level}: {number_words(intensity)} FLOPs per byte allow "
            f"{in_units(speed, 'FLOP/s')}, {number_words(100 * speed / peak, 2)} % of the peak"
        )
    chart.draw_key({
        name: f"{in_units(each.bandwidth, 'B/s')}\npeak from {each.ridge(peak):,.0f}"
        for name, each in zip(by_name, levels, strict=True)
    })  # fmt: skip
    chart.figure.alt_text = f"{heading} ({below}). {'; '.join(told)}."
    return chart.figure
