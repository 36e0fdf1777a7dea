"""Figures of communication time against size: measured, emulated or predicted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dtlab.predict.communication import (
    Link,
    halving_doubling_all_reduce_seconds,
    naive_all_reduce_seconds,
    recursive_doubling_all_reduce_seconds,
    ring_all_reduce_seconds,
    tree_all_reduce_seconds,
)
from dtlab.predict.units import counted
from dtlab.show.drawing.charts import KEY, Axis, Chart, Numbers, grey_out
from dtlab.show.drawing.cost_axes import CostAxes, Curve, Kind, Winner
from dtlab.show.drawing.style import INK, MUTED, Figure
from dtlab.show.words import byte_words, list_words, short_words, time_words

__all__ = [
    "ALL_REDUCES",
    "Curves",
    "bus_bandwidths",
    "cost_curves",
    "crossover",
    "fastest",
    "winners_in_words",
]

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def cost_curves(
    measured: Curves | None = None,
    *,
    emulated: Curves | None = None,
    predicted: Curves | None = None,
    title: str | None = None,
    note: str = "",
) -> Figure:
    """Plot seconds against bytes for several algorithms, and mark where the fastest one changes.

    Each argument maps an algorithm's name to its sizes in bytes and its times in seconds. The
    fastest is determined from predictions if there are any, else from emulated times, at sizes
    that all curves cover. Measured times alone do not determine the fastest, because their
    crossings differ from run to run. Emulated marks that are far from their prediction are grey:
    the machine was busy. `note` is written below the title.
    Raises: ValueError if there is nothing to draw, for numbers that are not above 0, and for more
    than six algorithms.
    """
    kinds: dict[Kind, Curves] = {
        "predicted": predicted or {}, "emulated": emulated or {}, "measured": measured or {},
    }  # fmt: skip
    given = {kind: _arrays(curves) for kind, curves in kinds.items() if curves}
    if not given:
        raise ValueError("cost_curves: nothing to draw. Give it measured, emulated or predicted.")
    names = list(dict.fromkeys(name for curves in given.values() for name in curves))
    heading = title or "Time against size"
    kind, judged = next(iter(given.items()))
    winners = [] if kind == "measured" else fastest(judged)
    in_words = f"{heading} ({note})" if note else heading
    figure = Figure(9.4, 4.5, alt_text=_alt_text(in_words, given, kind, winners))
    figure.heading(heading, note)
    numbers = [pair for curves in given.values() for pair in curves.values()]
    limits = [_around(np.concatenate([pair[side] for pair in numbers])) for side in (0, 1)]
    chart = CostAxes(figure, names, (limits[0], limits[1]))
    chart.draw_winners(winners)
    for each, curves in given.items():
        for name, (sizes, seconds) in curves.items():
            alone = name not in given.get("predicted", {})
            chart.draw_curve(name, sizes, seconds, each, joined=alone)
    both = given.get("emulated", {}).keys() & given.get("predicted", {}).keys()
    asides = {
        name: grey_out(chart.axes, name, given["emulated"][name], given["predicted"][name])
        for name in both
    }
    chart.draw_borders(winners)
    last = {name: times[-1] for curves in given.values() for name, (_, times) in curves.items()}
    highest = sorted(names, key=lambda name: -last[name])
    chart.draw_key({name: asides.get(name, "") for name in highest}, list(given))
    return figure


def _arrays(curves: Curves) -> dict[str, Curve]:
    """Convert the curves to arrays, in order of size."""
    result = {}
    for name, pair in curves.items():
        sizes, seconds = (np.asarray(column, dtype=float) for column in pair)
        if sizes.ndim != 1 or sizes.shape != seconds.shape or not len(sizes):
            raise ValueError(
                f"cost_curves: {name!r} has {sizes.size} sizes and {seconds.size} times; "
                "give it one time for each size"
            )
        if not (np.concatenate((sizes, seconds)) > 0).all():
            raise ValueError(f"cost_curves: sizes and times of {name!r} must be above 0")
        order = np.argsort(sizes, kind="stable")
        result[name] = sizes[order], seconds[order]
    return result


def _around(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the limits of an axis, with some space at both ends."""
    return float(values.min()) / 1.6, float(values.max()) * 1.6


def fastest(curves: Mapping[str, Curve]) -> list[Winner]:
    """Return the lowest curve of each range of sizes, within the sizes that all curves cover.

    Times between two points are interpolated linearly in the logarithms. Of equal curves the first
    wins. The result is empty for fewer than two curves.
    """
    if len(curves) < 2:
        return []
    low = max(sizes[0] for sizes, _ in curves.values())
    high = min(sizes[-1] for sizes, _ in curves.values())
    if low >= high:
        return []
    names, grid = list(curves), np.linspace(np.log(low), np.log(high), 600)
    rows = np.array([np.interp(grid, np.log(sizes), np.log(t)) for sizes, t in curves.values()])
    rows += 1e-9 * np.arange(len(rows))[:, None]
    best = np.argmin(rows, axis=0)
    borders, order = [float(low)], [best[0]]
    for before in np.flatnonzero(np.diff(best)):
        old, new = (rows[number, before : before + 2] for number in best[before : before + 2])
        gap, grown = new[0] - old[0], old[1] - new[1]
        crossing = grid[before] + (grid[before + 1] - grid[before]) * gap / (gap + grown)
        borders.append(float(np.exp(crossing)))
        order.append(best[before + 1])
    ends = itertools.pairwise([*borders, float(high)])
    return [Winner(names[number], *pair) for number, pair in zip(order, ends, strict=True)]


def _alt_text(
    heading: str,
    given: Mapping[Kind, Mapping[str, Curve]],
    kind: Kind,
    winners: Sequence[Winner],
) -> str:
    """Describe where each curve begins and ends, and which is the lowest in which range."""
    parts = [f"{heading}, logarithmic axes."]
    for each, curves in given.items():
        facts = [
            f"{name} from {time_words(times[0])} at {byte_words(sizes[0])} to "
            f"{time_words(times[-1])} at {byte_words(sizes[-1])}"
            for name, (sizes, times) in curves.items()
        ]
        parts.append(f"{each.capitalize()}: {'; '.join(facts)}.")
    return " ".join([*parts, winners_in_words(winners, kind)]).strip()


def winners_in_words(winners: Sequence[Winner], kind: Kind) -> str:
    """Say which algorithm is the fastest from which size on."""
    if not winners:
        return ""
    ranges = [f"{each.name} from {byte_words(each.start)}" for each in winners]
    return f"Fastest, as {kind}: {list_words(ranges)}, up to {byte_words(winners[-1].end)}."


# All-reduce algorithms in the alpha-beta model, and the sizes at which each is the fastest -------

Seconds = Callable[[Any, int, Link], Any]

ALL_REDUCES: Final[Mapping[str, Seconds]] = MappingProxyType(
    {
        "central server": naive_all_reduce_seconds,
        "ring": ring_all_reduce_seconds,
        "tree": tree_all_reduce_seconds,
        "recursive doubling": recursive_doubling_all_reduce_seconds,
        "halving-doubling": halving_doubling_all_reduce_seconds,
    }
)
_SIZES: Final = (1e2, 1e10)  # bytes
_SECONDS: Final = (3e-7, 3e2)  # shows the fastest algorithm for every link in use today


def crossover(
    num_ranks: int = 8,
    latency: float = 5e-6,
    bandwidth: float = 50e9,
    *,
    size: float | None = None,
    slowdown: float = 1.0,
    algorithms: Sequence[str] = tuple(ALL_REDUCES),
    title: str | None = None,
) -> Figure:
    """Plot the predicted time of an all-reduce among `num_ranks` ranks against its size.

    Every link has `latency` in seconds and one-way `bandwidth` in bytes/s. `slowdown` multiplies
    all times, as on an emulated link. `size` in bytes is marked, with each algorithm's time.
    `algorithms` are names of `ALL_REDUCES`, or none. Formulas: `dtlab.predict.communication`.
    Raises: ValueError for another name, fewer than two ranks, or an impossible link.
    """
    _check(num_ranks, slowdown, algorithms)
    link = Link(latency, bandwidth)
    sizes = np.geomspace(*_SIZES, 641)
    times = {name: ALL_REDUCES[name](sizes, num_ranks, link) * slowdown for name in algorithms}
    winners = fastest({name: (sizes, seconds) for name, seconds in times.items()})
    heading = title or f"All-reduce among {counted(num_ranks, 'rank')}, {link_words(link)}"
    heading += f", slowed down {slowdown:g} times" if slowdown != 1 else ""
    note = "" if times else "No algorithm is chosen."
    figure = Figure(9.4, 4.5)
    figure.heading(heading, note)
    upwards = (_SECONDS[0] * slowdown, _SECONDS[1] * slowdown)
    chart = CostAxes(figure, list(times), (_SIZES, upwards))
    chart.draw_winners(winners)
    for name, seconds in times.items():
        chart.draw_curve(name, sizes, seconds, "predicted")
    chart.draw_borders(winners, size)
    at_size: dict[str, float] = {}
    if size is not None:
        at_size = {n: float(ALL_REDUCES[n](size, num_ranks, link)) * slowdown for n in times}
        chart.draw_points(size, at_size)
    asides = {name: time_words(at_size[name]) if at_size else "" for name in times}
    chart.draw_key(asides, ["predicted"])
    words = [f"{heading}: predicted time against size.", note,
             winners_in_words(winners, "predicted"), _at_size_in_words(size, at_size)]  # fmt: skip
    figure.alt_text = " ".join(filter(None, words))
    return figure


def _check(num_ranks: int, slowdown: float, algorithms: Sequence[str]) -> None:
    unknown = [name for name in algorithms if name not in ALL_REDUCES]
    if unknown:
        raise ValueError(f"crossover draws {', '.join(ALL_REDUCES)}; not {', '.join(unknown)}")
    if num_ranks < 2 or not slowdown > 0:
        raise ValueError(
            f"crossover needs two or more ranks and a slowdown above 0, "
            f"not {num_ranks} and {slowdown:g}"
        )


def link_words(link: Link) -> str:
    """Describe a link by its latency and bandwidth."""
    return f"links of {time_words(link.latency)} and {byte_words(link.bandwidth)}/s"


def _at_size_in_words(size: float | None, times: Mapping[str, float]) -> str:
    """Say how long each algorithm takes for the marked size."""
    if size is None or not times:
        return ""
    facts = [f"{name} {time_words(seconds)}" for name, seconds in times.items()]
    return f"At {byte_words(size)}: {', '.join(facts)}."


# Bus bandwidth against size: a panel for each collective, with torch.distributed's and ours ------
#
#     B/s  │        ●──●     All panels have the same axes, so they can be compared: bus bandwidth
#          │     ●   ■──■    can be compared with the bandwidth of the link for every collective
#          │  ●  ■           and every number of ranks.
#          └──────────────
#            8 B      64 MB

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
    """Plot bus bandwidth against size, with a panel for each collective.

    `panels` maps a collective and the name of a curve to two columns: sizes in bytes and bus
    bandwidths in bytes/s, both as nccl-tests counts them. A curve's name has one colour in all
    panels. `notes` are written below the names of panels, `note` below the title.
    Raises: ValueError if there is nothing to draw, for columns of different lengths or numbers
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
    figure = Figure(width, height, alt_text=_bandwidth_alt_text(heading, drawn))
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
                chart.draw_curve(name, *_NOTHING, "measured")  # the key covers all panels
            chart.draw_key(dict.fromkeys(names, ""))
    return figure


def _columns(
    panel: str, name: str, pair: tuple[Sequence[float], Sequence[float]]
) -> tuple[Numbers, Numbers]:
    sizes, speeds = (np.asarray(column, dtype=float) for column in pair)
    if sizes.ndim != 1 or sizes.shape != speeds.shape or not len(sizes):
        raise ValueError(f"bus_bandwidths: {name!r} of {panel} has {sizes.size} sizes and "
                         f"{speeds.size} bandwidths; give one for each size.")  # fmt: skip
    if not (np.isfinite(speeds) & (speeds > 0) & (sizes > 0)).all():
        raise ValueError(f"bus_bandwidths: sizes and bandwidths of {name!r} of {panel} must be "
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
    """Return powers of ten between two ends, at most as many as fit on the axis."""
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    step = max(1, -(-len(powers) // _MOST_TICKS))
    return [10.0**power for power in powers[::step]]


def _name(figure: Figure, place: tuple[float, float], words: str, note: str) -> None:
    """Write a panel's name above it, and its note in small letters."""
    width, height = figure.get_size_inches()
    x, y = place[0] / width, place[1] / height
    above = 0.15 / height if note else 0.0
    figure.text(x, y + above, words, fontsize=9, color=INK, weight="bold", gid=f"panel {words}")
    if note:
        figure.text(x, y, f"ours: {note}", fontsize=8, color=MUTED, gid=f"note {words}")


def _bandwidth_alt_text(
    heading: str, drawn: Mapping[str, Mapping[str, tuple[Numbers, Numbers]]]
) -> str:
    """Describe where each curve begins and ends, and its highest point."""
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
