"""Synthetic training jobs with a known bottleneck, as the trace events of a few steps.

    rank 0   input | forward | backward ......... |        | optimizer | log |
    wire                          bucket 0 | bucket 1 ......|

A bucket is ready after its part of the backward pass. The wire carries one bucket after another,
and the all-reduce of a bucket begins when the bucket is ready on all ranks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtlab.trace import Event

__all__ = ["CAUSES", "Job", "Row", "draw_job", "rows_of", "trace_events"]

Row = tuple[int, str, str, int, float, float]  # rank, kind, name, bytes, start, end
_Plain = Sequence[Any]  # a row as it is serialized between processes

_SERIAL = ("optimizer", 0.75), ("log", 0.25)  # the parts of a job's serial work
CAUSES = ("input", "cores", "serial", "imbalance", "latency", "bandwidth")


@dataclass(frozen=True)
class Job:
    """A data-parallel job. Times are in seconds, of one step on one rank; buckets in bytes.

    N ranks divide the samples of the step; with `weak` each processes as many as a single rank.
    The other fields set the bottleneck. With `input_shared` each rank reads only its part of the
    input, otherwise all of it. Up to `cores` ranks compute at full speed. One rank computes
    `uneven` times as long.
    """

    forward: float = 0.1
    input: float = 0.004
    serial: float = 0.004  # for the optimizer and the log: the same on any number of ranks
    latency: float = 2e-5  # of a message; a ring on N ranks sends 2(N-1) of them in a row
    bandwidth: float = 4e9
    buckets: tuple[int, ...] = (4_000_000, 9_000_000, 1_500_000)
    input_shared: bool = True
    cores: int = 64
    uneven: float = 1.0
    overlap: bool = True
    weak: bool = False
    steps: int = 3
    seed: int = 0

    @property
    def scaling(self) -> str:
        """The name of the kind of scaling, which is passed to the learner's function."""
        return "weak" if self.weak else "strong"


def rows_of(job: Job, ranks: int) -> list[Row]:
    """The events of a run on `ranks` ranks."""
    draw = random.Random(job.seed * 100 + ranks)
    rows: list[Row] = []
    now = [0.0] * ranks
    for _ in range(job.steps):
        ready = [_computed(job, ranks, rank, now, rows, draw) for rank in range(ranks)]
        for number, size in enumerate(job.buckets if ranks > 1 else ()):
            starts = [max(ready[rank][number], ready[rank][-1]) for rank in range(ranks)]
            taken = 2 * (ranks - 1) * (job.latency + size / ranks / job.bandwidth)
            end = max(starts) + taken
            for rank in range(ranks):
                rows.append((rank, "comm", "all_reduce", size, starts[rank], end))
                ready[rank][-1] = end
        for rank in range(ranks):
            now[rank] = max(now[rank], ready[rank][-1])
            for name, share in _SERIAL:
                begin, now[rank] = now[rank], now[rank] + share * job.serial
                rows.append((rank, "compute", name, 0, begin, now[rank]))
    return rows


def _computed(
    job: Job, ranks: int, rank: int, now: list[float], rows: list[Row], draw: random.Random
) -> list[float]:
    """Add input, forward and backward of one rank to `rows`.

    Returns the time at which each bucket is ready, and last the time at which the wire is free.
    """
    part = 1.0 if job.weak else 1 / ranks
    slow = max(1.0, ranks / job.cores) * (
        job.uneven if ranks > 1 and rank == job.seed % ranks else 1.0
    )
    slow *= 1 + 0.01 * draw.random()
    reading = job.input * (part if job.input_shared else 1.0)
    durations = {"input": reading, "forward": part * slow * job.forward}
    durations["backward"] = 2 * durations["forward"]
    for name, seconds in durations.items():
        rows.append((rank, "compute", name, 0, now[rank], now[rank] + seconds))
        now[rank] += seconds
    count = len(job.buckets)
    early = [
        durations["backward"] * (1 - (n + 1) / count) if job.overlap else 0 for n in range(count)
    ]
    return [*(now[rank] - seconds for seconds in early), 0.0]


def trace_events(rows: Sequence[_Plain]) -> list[Event]:
    """The rows as the events of a trace."""
    from dtlab.trace import Event

    ranks = {int(row[0]) for row in rows}
    return [
        Event(rank, kind, name, tuple(sorted(ranks - {rank})) if kind == "comm" else (), size,
              start, end)
        for rank, kind, name, size, start, end in rows
    ]  # fmt: skip


# Draws ------------------------------------------------------------------------------------------


def draw_job(draw: random.Random, cause: str, second: str, weak: bool = False) -> Job:
    """A job that usually loses most time to `cause` on six to eight ranks, then to `second`."""
    job = Job(
        forward=draw.uniform(0.08, 0.12),
        input=draw.uniform(0.002, 0.005),
        serial=draw.uniform(0.0004, 0.001),
        latency=draw.uniform(1e-5, 3e-5),
        bandwidth=draw.uniform(4e9, 7e9),
        buckets=tuple(250_000 * size for size in draw.sample(range(4, 30), 3)),
        weak=weak,
        seed=draw.randrange(1000),
    )
    return replace(job, **(_caused(draw, second, 0.4, weak) | _caused(draw, cause, 1.0, weak)))


def _caused(draw: random.Random, cause: str, strength: float, weak: bool) -> dict[str, Any]:
    """The fields of `Job` that differ from the default in a job with this cause."""
    times = strength * (3.0 if weak else 1.0)  # with `weak`, a step on N ranks does more work
    changes: dict[str, dict[str, Any]] = {
        "input": {"input": draw.uniform(0.025, 0.04) * times, "input_shared": False},
        "cores": {"cores": draw.randint(3, 4) if strength == 1.0 else 5},
        "serial": {"serial": draw.uniform(0.025, 0.04) * times},
        "imbalance": {"uneven": 1 + draw.uniform(0.5, 0.8) * strength},
        "latency": {"latency": draw.uniform(8e-4, 1.6e-3) * times, "overlap": False},
        "bandwidth": {"bandwidth": draw.uniform(3e8, 5e8) / times, "overlap": False},
    }
    return changes[cause]
