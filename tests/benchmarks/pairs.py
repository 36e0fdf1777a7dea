"""Time two things in turn, A B A B ..., so that a machine that slows down slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


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
    ratio = statistics.median(a / b for a, b in times)
    return statistics.median(mine), statistics.median(theirs), ratio
