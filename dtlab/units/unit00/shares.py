"""Reference results of 00/efficiency_of and 00/scaling_report: the causes of a run's lost time.

Ideally N ranks take f T(1), with f = 1/N in strong scaling and f = 1 in weak. The time lost is

    T(N) - f T(1)  =  input + cores + serial + imbalance + latency + bandwidth

Each term is the mean seconds of a rank on N ranks, minus f times the seconds on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dtlab.units.unit00.jobs import CAUSES

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["efficiencies", "latency_share", "lost_seconds", "speedup_without"]

Traces = Mapping[int, "Trace"]

_COMPUTE = ("forward", "backward")


def efficiencies(seconds: Mapping[int, float], scaling: str) -> dict[int, tuple[float, float]]:
    """Speed-up and efficiency on each number of ranks, relative to the smallest number."""
    fewest = min(seconds)
    result = {}
    for ranks, taken in seconds.items():
        more, faster = ranks / fewest, seconds[fewest] / taken
        speedup = faster if scaling == "strong" else faster * more
        result[ranks] = speedup, speedup / more
    return result


def lost_seconds(traces: Traces, scaling: str) -> dict[str, float]:
    """Seconds lost to each cause on the largest number of ranks, relative to one rank."""
    ranks = max(traces)
    part = 1 / ranks if scaling == "strong" else 1.0
    here, alone = _used(traces[ranks]), _used(traces[1])
    return {cause: here[cause] - part * alone[cause] for cause in CAUSES}


def _used(trace: Trace) -> dict[str, float]:
    """Mean seconds that a rank spends on each cause."""
    used = dict.fromkeys(CAUSES, 0.0)
    for event in trace.events:
        if event.kind == "compute":
            name = "cores" if event.name in _COMPUTE else event.name
            name = name if name in ("cores", "input") else "serial"
            used[name] += (event.end - event.start) / trace.world_size
    ranks, share = range(trace.world_size), latency_share(trace)
    used["imbalance"] = sum(map(trace.idle, ranks)) / trace.world_size
    exposed = sum(map(trace.exposed_comm, ranks)) / trace.world_size
    return used | {"latency": exposed * share, "bandwidth": exposed * (1 - share)}


def latency_share(trace: Trace) -> float:
    """The fraction of the collectives' time that does not grow with their bytes."""
    calls: dict[int, list[tuple[float, float, int]]] = {}
    for rank in range(trace.world_size):
        events = [event for event in trace.events if event.rank == rank and event.kind == "comm"]
        for number, event in enumerate(events):
            calls.setdefault(number, []).append((event.start, event.end, event.bytes))
    if not calls:
        return 0.0
    taken = [max(end for _, end, _ in call) - max(start for start, _, _ in call)
             for call in calls.values()]  # fmt: skip
    sizes = [call[0][2] for call in calls.values()]
    _, fixed = np.polyfit(sizes, taken, 1)
    return float(fixed) * len(taken) / sum(taken)


def speedup_without(traces: Traces, scaling: str, seconds: float) -> float:
    """The speed-up that the run would reach if these `seconds` were not lost."""
    ranks = max(traces)
    faster = traces[1].duration / (traces[ranks].duration - seconds)
    return faster if scaling == "strong" else faster * ranks
