"""Time several things in turn, A B A B ..., so that a slow moment of the machine slows all."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from dtlab.bench.measure import seconds_per_call


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def interleaved(
    ours: Callable[[], object], peer: Callable[[], object], pairs: int
) -> tuple[float, float, float]:
    """Median seconds of `ours` and of `peer`, and the median of the ratios ours / peer."""
    times = [(seconds(ours), seconds(peer)) for _ in range(pairs)]
    mine, theirs = zip(*times, strict=True)
    return statistics.median(mine), statistics.median(theirs), ratio(mine, theirs)


def time_in_turns(
    steps: Mapping[str, Callable[[], object]], count: int, warm: int = 0, calls: int = 1
) -> dict[str, list[float]]:
    """Seconds of each step on the slowest rank, `count` for each name, equal on all ranks.

    All ranks call this together. A step's seconds are the mean of `calls` in a row. The first
    `warm` turns do not count. The order changes from turn to turn, so that no step always finds
    its own tensors in the cache.
    """
    order = random.Random(0)  # the same on all ranks
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(warm + count):
        for name in order.sample(list(steps), len(steps)):
            measured = seconds_per_call(steps[name], calls)
            if turn >= warm:
                times[name].append(measured)
    return times


def ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """The median of the ratios ours / peer, turn by turn."""
    return statistics.median(a / b for a, b in zip(ours, peer, strict=True))
