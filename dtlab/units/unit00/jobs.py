"""Training jobs of known causes: what each rank does in a few steps, as the events of a trace.

    rank 0   input | forward | backward ......... |        | optimizer |
    wire                          bucket 0 | bucket 1 ......|

A bucket is ready after its part of the backward pass; the wire takes one bucket after another, and
each from when all ranks have come to it.
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
_Plain = Sequence[Any]  # a row, as it travels

CAUSES = ("input", "cores", "serial", "imbalance", "latency", "bandwidth")


@dataclass(frozen=True)
class Job:
    """A job in data parallelism. Times in seconds, of one step on one rank; buckets in bytes.

    On several ranks each has its part of the samples, or as many of them (`weak`). What the cause
    is follows from the others: `input_shared` ranks read as much as one, `cores` ranks compute as
    fast as one, one of several ranks takes `uneven` times as long.
    """

    forward: float = 0.1
    input: float = 0.004
    optimizer: float = 0.004
    latency: float = 2e-5  # of a message: a ring on N ranks has 2(N-1) of them in a row
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
        """How it grows, as the learner's function is told."""
        return "weak" if self.weak else "strong"


def rows_of(job: Job, ranks: int) -> list[Row]:
    """The events of a run on so many ranks."""
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
            begin = max(now[rank], ready[rank][-1])
            now[rank] = begin + job.optimizer
            rows.append((rank, "compute", "optimizer", 0, begin, now[rank]))
    return rows


def _computed(
    job: Job, ranks: int, rank: int, now: list[float], rows: list[Row], draw: random.Random
) -> list[float]:
    """Input, forward and backward of one rank; when its buckets are ready, and the wire is."""
    part = 1.0 if job.weak else 1 / ranks
    slow = max(1.0, ranks / job.cores) * (
        job.uneven if ranks > 1 and rank == job.seed % ranks else 1.0
    )
    slow *= 1 + 0.01 * draw.random()
    reading = job.input * (part if job.input_shared else 1.0)
    took = {"input": reading, "forward": part * slow * job.forward}
    took["backward"] = 2 * took["forward"]
    for name, seconds in took.items():
        rows.append((rank, "compute", name, 0, now[rank], now[rank] + seconds))
        now[rank] += seconds
    count = len(job.buckets)
    early = [took["backward"] * (1 - (n + 1) / count) if job.overlap else 0 for n in range(count)]
    return [*(now[rank] - one for one in early), 0.0]


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
    """A job that `cause` caps on six to eight ranks, and after it `second`."""
    job = Job(
        forward=draw.uniform(0.08, 0.12),
        input=draw.uniform(0.002, 0.005),
        optimizer=draw.uniform(0.0004, 0.001),
        latency=draw.uniform(1e-5, 3e-5),
        bandwidth=draw.uniform(4e9, 7e9),
        buckets=tuple(250_000 * size for size in draw.sample(range(4, 30), 3)),
        weak=weak,
        seed=draw.randrange(1000),
    )
    return replace(job, **(_caused(draw, second, 0.4, weak) | _caused(draw, cause, 1.0, weak)))


def _caused(draw: random.Random, cause: str, strength: float, weak: bool) -> dict[str, Any]:
    """What is other in a job with this cause."""
    times = strength * (3.0 if weak else 1.0)  # there is more to a step
    changes: dict[str, dict[str, Any]] = {
        "input": {"input": draw.uniform(0.025, 0.04) * times, "input_shared": False},
        "cores": {"cores": draw.randint(3, 4) if strength == 1.0 else 5},
        "serial": {"optimizer": draw.uniform(0.025, 0.04) * times},
        "imbalance": {"uneven": 1 + draw.uniform(0.5, 0.8) * strength},
        "latency": {"latency": draw.uniform(8e-4, 1.6e-3) * times, "overlap": False},
        "bandwidth": {"bandwidth": draw.uniform(3e8, 5e8) / times, "overlap": False},
    }
    return changes[cause]
