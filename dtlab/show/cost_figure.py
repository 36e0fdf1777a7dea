"""Draws time against size: what was measured, emulated or predicted, and who is fastest where."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dtlab.show.cost_axes import CostAxes, Curve, Kind, Winner
from dtlab.show.style import Figure
from dtlab.show.words import byte_words, list_words, time_words

__all__ = ["Curves", "cost_curves", "fastest", "winners_in_words"]

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def cost_curves(
    measured: Curves | None = None,
    *,
    emulated: Curves | None = None,
    predicted: Curves | None = None,
    title: str | None = None,
    note: str = "",
) -> Figure:
    """Seconds against bytes for several algorithms, with the sizes where the fastest one changes.

    Each argument has, by the algorithm's name, its sizes in bytes and its times in seconds. The
    fastest is found from predictions where there are some, else from emulated times, at sizes that
    all of them cover. Measured times alone tell no fastest: where curves cross differs from run to
    run. `note` stands below the title.
    Raises: ValueError where there is nothing to draw, for numbers that are not above 0, and for
    more than six algorithms.
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
    chart.draw_borders(winners)
    last = {name: times[-1] for curves in given.values() for name, (_, times) in curves.items()}
    highest = sorted(names, key=lambda name: -last[name])
    chart.draw_key(dict.fromkeys(highest, ""), list(given))
    return figure


def _arrays(curves: Curves) -> dict[str, Curve]:
    """The curves as arrays, in order of size."""
    result = {}
    for name, pair in curves.items():
        sizes, seconds = (np.asarray(column, dtype=float) for column in pair)
        if sizes.ndim != 1 or sizes.shape != seconds.shape or not len(sizes):
            raise ValueError(
                f"cost_curves: {name!r} has {sizes.size} sizes and {seconds.size} times; "
                "it needs one time for each size"
            )
        if not (np.concatenate((sizes, seconds)) > 0).all():
            raise ValueError(f"cost_curves: sizes and times of {name!r} have to be above 0")
        order = np.argsort(sizes, kind="stable")
        result[name] = sizes[order], seconds[order]
    return result


def _around(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Limits of an axis with a little room at both ends."""
    return float(values.min()) / 1.6, float(values.max()) * 1.6


def fastest(curves: Mapping[str, Curve]) -> list[Winner]:
    """Which curve is the lowest, range by range, where all of them have values.

    Between the points of a curve its times are taken along a straight line of the logarithms; of
    those that are equal the first counts. Nothing for fewer than two curves.
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
    """Where each curve begins and ends, and which is the lowest where."""
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
    """Which is the fastest, and from which size on."""
    if not winners:
        return ""
    ranges = [f"{each.name} from {byte_words(each.start)}" for each in winners]
    return f"Fastest, as {kind}: {list_words(ranges)}, up to {byte_words(winners[-1].end)}."
