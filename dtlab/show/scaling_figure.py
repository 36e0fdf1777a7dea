"""Draws how much faster a job gets with more ranks: measured, emulated and predicted.

The dashed line is what everybody hopes for: N ranks, N times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from dtlab.show.charts import KEY, Axis, Chart, Kind, Numbers
from dtlab.show.style import Figure

__all__ = ["scaling_chart"]

Times = Mapping[str, Mapping[int, float]]
_WIDTH, _HEIGHT = 9.4, 3.9
_LEFT, _TOP, _BOTTOM = 0.8, 0.85, 0.6
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
    figure = Figure(_WIDTH, _HEIGHT, alt_text=_alt_text(heading, drawn))
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
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - KEY, _HEIGHT - _TOP - _BOTTOM)
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


def _alt_text(heading: str, drawn: Mapping[tuple[Kind, str], tuple[Numbers, Numbers]]) -> str:
    """How many times as fast each job is on each number of ranks."""
    facts = []
    for (kind, name), (ranks, speedups) in drawn.items():
        pairs = zip(ranks, speedups, strict=True)
        told = ", ".join(f"{times:.3g} on {n:g}" for n, times in pairs)
        facts.append(f"{name}, {kind}: {told}")
    return f"{heading}: times the work of one rank per second. {'; '.join(facts)}."
