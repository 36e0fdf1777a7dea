"""Layers of 07/one_slow_stage: an even split of them that is slow, and the trace that it leaves.

    layers   12 of about 4 ms    36 others of about 0.5 ms    four ranks, twelve layers each
    stages   48  6  6  5         sum / max = 1.35             the most that this cut can bring
    cut anew 17 16 16 16         sum / max = 3.8

A trace has three steps of GPipe. In the first one another rank takes far longer than ever after,
as ranks do that compile their kernels; so what is added up over all steps says little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, Final

from dtlab.predict import Costs, balance_stages, simulate
from dtlab.schedules import gpipe

if TYPE_CHECKING:
    from dtlab.trace import Event

__all__ = ["STEPS", "Cut", "Layers", "Row", "draw_layers", "events_of", "filled", "rows_of"]

STEPS: Final = 3
_BEGUN: Final = 4  # microbatches of the run that is slow
_MESSAGE: Final = 1e-4  # seconds
_GAP: Final = 5e-3  # seconds between steps
_EACH: Final = 12  # layers of a stage in the even split

Cut = list[list[int]]
Row = tuple[int, str, str, tuple[int, ...], float, float, dict[str, Any]]


@dataclass(frozen=True)
class Layers:
    """Seconds of each layer for a microbatch, forward and backward; `goal` is what is to be had.

    `compiles` is the rank that takes longest in the first step.
    """

    seconds: tuple[float, ...]
    ranks: int
    goal: float
    compiles: int

    @property
    def even(self) -> Cut:
        """As many layers on each rank."""
        each = len(self.seconds) // self.ranks
        return [list(range(each * rank, each * (rank + 1))) for rank in range(self.ranks)]

    def times(self, cut: Sequence[Sequence[int]]) -> list[float]:
        """Seconds of each stage for a microbatch."""
        return [math.fsum(self.seconds[layer] for layer in part) for part in cut]

    def ceiling(self, cut: Sequence[Sequence[int]]) -> float:
        """How many times as fast as one rank this can be at most."""
        return sum(self.seconds) / max(self.times(cut))

    def speedup(self, cut: Sequence[Sequence[int]], num_microbatches: int) -> float:
        """How many times as fast as one rank it is, as simulated."""
        step = simulate(gpipe(self.ranks, num_microbatches), self.costs(cut)).duration
        return num_microbatches * sum(self.seconds) / step

    def fewest(self, cut: Sequence[Sequence[int]]) -> int | None:
        """The fewest microbatches that reach the goal with a cut; None where none do."""
        limit = self.ceiling(cut)
        if limit <= self.goal:
            return None
        return math.ceil(self.goal * (limit - 1) / (limit - self.goal) - 1e-9)

    def costs(self, cut: Sequence[Sequence[int]], message: float = 0.0) -> Costs:
        """Of the stages: a third each for F, I and W."""
        thirds = [each / 3 for each in self.times(cut)]
        return Costs(thirds, thirds, thirds, message)

    @property
    def slow(self) -> int:
        """The stage that caps the even split."""
        times = self.times(self.even)
        return times.index(max(times))

    @cached_property
    def best(self) -> Cut:
        """The cut whose slowest stage is fastest."""
        return [list(part) for part in balance_stages(self.seconds, self.ranks)]


def filled(seconds: Sequence[float], ranks: int) -> Cut:
    """The cut of a greedy rule: a stage is full once it has its share of the time."""
    cut: Cut = [[]]
    for layer, each in enumerate(seconds):
        over = sum(seconds[one] for one in cut[-1]) + each / 2 > sum(seconds) / ranks
        if cut[-1] and over and len(cut) < ranks:
            cut.append([])
        cut[-1].append(layer)
    return cut


# The trace --------------------------------------------------------------------------------------


def rows_of(layers: Layers) -> list[Row]:
    """The events of the slow run, as plain data: rank, kind, name, peers, start, end, extra."""
    rows: list[Row] = []
    begin = 0.0
    for step in range(STEPS):
        trace = simulate(gpipe(layers.ranks, _BEGUN), _of_step(layers, step))
        for one in trace.events:
            own = (one.rank, one.kind, one.name, one.peers)
            rows.append((*own, begin + one.start, begin + one.end, dict(one.extra)))
            if one.kind == "compute":
                rows += _layers_in(layers, one, begin, step)
        begin += trace.duration + _GAP
    return rows


def _of_step(layers: Layers, step: int) -> Costs:
    """In the first step the rank that compiles takes longer than the slow one in all three."""
    costs = layers.costs(layers.even, _MESSAGE)
    thirds = list(layers.times(layers.even))
    if step == 0:
        thirds[layers.compiles] = 1.5 * STEPS * max(thirds)
    thirds = [each / 3 for each in thirds]
    return Costs(thirds, thirds, thirds, costs.communication)


def _layers_in(layers: Layers, span: Event, begin: float, step: int) -> Iterator[Row]:
    """The layers within a stage's forward, or its backward, last layer first and in two pieces."""
    own = layers.even[span.extra["stage"]]
    times = [layers.seconds[layer] for layer in own]
    pieces = list(zip(own, times, strict=True))
    if span.name == "backward":
        pieces = [(layer, each / 2) for layer, each in reversed(pieces) for _ in range(2)]
    stretch = (span.end - span.start) / sum(times)
    at = begin + span.start
    for layer, each in pieces:
        end = at + stretch * each
        yield span.rank, "compute", "layer", (), at, end, {"layer": layer, "step": step}
        at = end


def events_of(rows: Sequence[Sequence[Any]]) -> list[Event]:
    """The events of such rows, which may have come from another process."""
    from dtlab.trace import Event

    return [
        Event(rank, kind, name, tuple(peers), 0, start, end, dict(extra))
        for rank, kind, name, peers, start, end, extra in rows
    ]


# Draws ------------------------------------------------------------------------------------------


def draw_layers(draw: Random, ranks: int, goal: float) -> Layers:
    """Layers of which an even split brings little, and a greedy cut is not the best one."""
    for _ in range(5000):
        slow = draw.randrange(ranks)
        others = [rank for rank in range(ranks) if rank != slow]
        most = 8 if ranks > 3 else 12
        seconds = [
            1e-4 * (draw.randint(30, 50) if layer // _EACH == slow else draw.randint(2, most))
            for layer in range(ranks * _EACH)
        ]
        one = Layers(tuple(seconds), ranks, goal, draw.choice(others))
        if _teaches(one):
            return one
    raise AssertionError("no draw has a best cut that a greedy rule misses")


def _teaches(one: Layers) -> bool:
    """Slow at first; the greedy cut reaches the goal, yet another one is better."""
    even, greedy = one.ceiling(one.even), one.ceiling(filled(one.seconds, one.ranks))
    at_first = _BEGUN * even / (even + _BEGUN - 1)
    if not 1.15 < at_first < 1.25 or greedy <= 1.01 * one.goal:
        return False
    fewest = one.fewest(one.best)
    return fewest is not None and fewest <= 30 and greedy < 0.99 * one.ceiling(one.best)
