"""Draws what the alpha-beta model says of all-reduce algorithms, and which is fastest where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from dtlab.predict.communication import (
    Link,
    halving_doubling_all_reduce_seconds,
    naive_all_reduce_seconds,
    recursive_doubling_all_reduce_seconds,
    ring_all_reduce_seconds,
    tree_all_reduce_seconds,
)
from dtlab.show.cost_axes import CostAxes
from dtlab.show.cost_figure import fastest, winners_in_words
from dtlab.show.style import Figure
from dtlab.show.words import byte_words, time_words

__all__ = ["ALL_REDUCES", "crossover"]

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
_SECONDS: Final = (3e-7, 3e2)  # the fastest one is in view for every link of today


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
    """The predicted time of an all-reduce among `num_ranks` ranks against its size, by algorithm.

    `latency` in seconds and `bandwidth` in bytes/s one way are those of every link; `slowdown`
    multiplies all times, as on an emulated wire. `size` in bytes is marked, with the times there.
    `algorithms` are names of `ALL_REDUCES`, or none. Formulas: `dtlab.predict.communication`.
    Raises: ValueError for another name, fewer than two ranks, or a link that cannot be.
    """
    _check(num_ranks, slowdown, algorithms)
    link = Link(latency, bandwidth)
    sizes = np.geomspace(*_SIZES, 641)
    times = {name: ALL_REDUCES[name](sizes, num_ranks, link) * slowdown for name in algorithms}
    winners = fastest({name: (sizes, seconds) for name, seconds in times.items()})
    heading = title or f"All-reduce among {num_ranks} ranks, {link_words(link)}"
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
        raise ValueError(f"crossover knows {', '.join(ALL_REDUCES)}; not {', '.join(unknown)}")
    if num_ranks < 2 or not slowdown > 0:
        raise ValueError(
            f"crossover needs two or more ranks and a slowdown above 0, "
            f"not {num_ranks} and {slowdown:g}"
        )


def link_words(link: Link) -> str:
    """A link by its two numbers."""
    return f"links of {time_words(link.latency)} and {byte_words(link.bandwidth)}/s"


def _at_size_in_words(size: float | None, times: Mapping[str, float]) -> str:
    """What each algorithm takes for the marked size."""
    if size is None or not times:
        return ""
    facts = [f"{name} {time_words(seconds)}" for name, seconds in times.items()]
    return f"At {byte_words(size)}: {', '.join(facts)}."
