"""Figures of curves: losses, errors, and scaling with the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from dtlab.show.drawing.charts import KEY, Axis, Chart, Kind, Numbers
from dtlab.show.drawing.style import Figure

__all__ = ["line_chart", "scaling_chart"]

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


# Draws how much faster a job gets with more ranks: measured, emulated and predicted --------------
#
# The dashed line is what everybody hopes for: N ranks, N times as fast.

Times = Mapping[str, Mapping[int, float]]
_WIDTH, _HEIGHT = 9.4, 3.9
_SCALING_LEFT, _SCALING_TOP, _SCALING_BOTTOM = 0.8, 0.85, 0.6
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
    """Work done per second on 1, 2, 4, ... ranks, in multiples of what one rank does.

    Each argument has, by the name of a job, its seconds per step by the number of ranks, 1 among
    them. The batch of a step is the same for all numbers of ranks; for the jobs named in `weak` it
    is the same for each rank, so that N ranks do N times the work in a step.
    Raises: ValueError where there is nothing to draw, where times on one rank are missing, for
    times that are not above 0, and for more than five jobs.
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
        raise ValueError("scaling_chart: nothing to draw. Give it seconds by ranks, by a name.")
    names = list(dict.fromkeys(name for _, name in drawn))
    ranks = sorted({int(n) for columns in drawn.values() for n in columns[0]})
    heading = f"{title} ({note})" if note else title
    figure = Figure(_WIDTH, _HEIGHT, alt_text=_scaling_alt_text(heading, drawn))
    figure.heading(title, note)
    speedups = np.concatenate([columns[1] for columns in drawn.values()])
    chart = _chart(figure, [*names, _IDEAL], ranks, speedups)
    chart.draw_curve(_IDEAL, np.array(ranks, float), np.array(ranks, float), "predicted")
    for (kind, name), (xs, ys) in drawn.items():
        chart.draw_curve(
            name, xs, ys, kind, joined=kind == "predicted" or ("predicted", name) not in drawn
        )
    chart.draw_key({**{name: _aside(name, drawn, weak) for name in names}, _IDEAL: ""})
    return figure


def _speedups(name: str, seconds: Mapping[int, float], weak: bool) -> tuple[Numbers, Numbers]:
    """Numbers of ranks, and how many times the work of one rank they do in a second."""
    if 1 not in seconds:
        raise ValueError(f"scaling_chart: {name!r} has no time on one rank to compare with.")
    ranks = np.array(sorted(seconds), dtype=float)
    times = np.array([seconds[int(n)] for n in ranks])
    if not (times > 0).all():
        raise ValueError(f"scaling_chart: the times of {name!r} have to be above 0.")
    return ranks, (ranks if weak else 1.0) * seconds[1] / times


def _chart(figure: Figure, names: list[str], ranks: list[int], speedups: Numbers) -> Chart:
    """Ranks across and speed upwards, both by doubling."""
    across = Axis("ranks", (ranks[0] / 1.15, ranks[-1] * 1.15), True, ticks=ranks)
    low, high = min(0.5, float(speedups.min())), max(float(ranks[-1]), float(speedups.max()))
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    ends = (low / 1.25, high * 1.25)
    upwards = Axis("times the speed of one rank", ends, True, ticks=[2.0**each for each in powers])
    box = (
        _SCALING_LEFT,
        _SCALING_BOTTOM,
        _WIDTH - _SCALING_LEFT - KEY,
        _HEIGHT - _SCALING_TOP - _SCALING_BOTTOM,
    )
    return Chart(figure, box, names, across, upwards)


def _aside(
    name: str, drawn: Mapping[tuple[Kind, str], tuple[Numbers, Numbers]], weak: Collection[str]
) -> str:
    """What there is of a job, and how well its most ranks are used."""
    kinds = [kind for kind, each in drawn if each == name]
    ranks, speedups = drawn[kinds[-1], name]
    share = 100 * speedups[-1] / ranks[-1]
    lines = [f"marks {kinds[-1]},", "line predicted"] if len(kinds) > 1 else [kinds[0]]
    lines += ["the batch grows"] if name in weak else []
    return "\n".join([*lines, f"efficiency on {ranks[-1]:g}: {share:.0f} %"])


def _scaling_alt_text(
    heading: str, drawn: Mapping[tuple[Kind, str], tuple[Numbers, Numbers]]
) -> str:
    """How many times as fast each job is on each number of ranks."""
    facts = []
    for (kind, name), (ranks, speedups) in drawn.items():
        pairs = zip(ranks, speedups, strict=True)
        told = ", ".join(f"{times:.3g} on {n:g}" for n, times in pairs)
        facts.append(f"{name}, {kind}: {told}")
    return f"{heading}: times the work of one rank per second. {'; '.join(facts)}."
