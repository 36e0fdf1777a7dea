"""The part of the benchmark that runs on each rank: checks every collective once, then times it.

    first call      uses known numbers and compares the result with the expected one; it also opens
                    the connections
    one call        determines how many calls make a sample of about a millisecond, and how many
                    samples there is time for
    3-25 samples    each: synchronise the ranks, start the clock, run the calls, stop the clock

A sample is the time of the slowest rank divided by the number of calls, and a measurement is the
median of the samples. The calls of a sample follow each other without a pause, as in nccl-tests: a
call can start before the previous call has ended on other ranks. All ranks base their decisions on
the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.bench.diary import write
from dtlab.bench.names import BETWEEN_NODES
from dtlab.bench.results import Measurement
from dtlab.bench.subjects import Buffers, Subject

__all__ = ["Plan", "measure"]

_SAMPLE: Final = 1e-3  # approximate seconds; in shorter samples the synchronisation is noticeable
_MOST_CALLS: Final = 50  # in a sample
_SAMPLES: Final = (3, 25)
_CALLS_AT_LEAST: Final = 2 + _SAMPLES[0]
_LARGE, _SLOW = 2**20, 100e6  # bytes, bytes/s
_COPIES: Final = 4  # tensors of this size on a rank: input, output, expected result, scratch
_SHARE: Final = 0.5  # of the free memory


@dataclass(frozen=True)
class Plan:
    """The measurements to take; the same on every rank.

    `sizes` are bytes, in increasing order. A curve takes about `seconds`; with `open_end` it stops
    before the first size that would exceed this time, else all sizes are measured. `functions`,
    keyed by collective, are measured beside the built-in ones. `backend` is "gloo", "nccl", or
    None, which means NCCL if the process group has it.
    """

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    world_size: int
    ranks_per_node: int
    backend: str | None = None
    seconds: float = 2.0
    open_end: bool = True
    check: bool = True
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def subjects(self) -> list[Subject]:
        """Return the curves, in the order in which they are measured."""
        subjects = []
        for name in self.collectives:
            if name == "send_recv":
                subjects += self._ping_pongs()
                continue
            subjects.append(Subject(name))
            if name in self.functions:
                subjects.append(Subject(name, self.functions[name]))
        return subjects

    def _ping_pongs(self) -> list[Subject]:
        """Return ping-pongs within a node and between two nodes; none for a single rank."""
        pairs = [Subject("send_recv", partner=1)] if self.ranks_per_node > 1 else []
        if self.ranks_per_node < self.world_size:
            pairs.append(Subject(BETWEEN_NODES, partner=self.ranks_per_node))
        return pairs


def measure(plan: Plan, diary: Path | None = None) -> list[Measurement]:
    """Run all measurements on this rank; rank 0 also writes each one to `diary` at once."""
    device = _device(plan.backend)
    per_node = torch.tensor(plan.ranks_per_node, device=device)
    dist.broadcast(per_node, 0)  # nodes may have different numbers of ranks
    plan = replace(plan, ranks_per_node=int(per_node))
    measurements = []
    for subject in plan.subjects():
        for measurement in _curve(plan, subject, device):
            measurements.append(measurement)
            if diary is not None and dist.get_rank() == 0:
                write(diary, measurement)
    return measurements


def _device(backend: str | None) -> torch.device:
    """Return the device of tensors for `backend`. Raises ValueError if the group lacks it."""
    config = str(dist.get_backend_config())
    if backend is not None and backend not in config:
        raise ValueError(
            f"the process group was created with {config!r}, which has no {backend!r}. Leave the "
            f"backend out, or initialise the group with it."
        )
    if "nccl" in config and backend != "gloo":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _curve(plan: Plan, subject: Subject, device: torch.device) -> Iterator[Measurement]:
    """Measure one implementation of one collective at all sizes that fit in memory and time."""
    ranks, left, before = dist.get_world_size(), plan.seconds, (0, 0.0)
    largest = _largest_size(plan.ranks_per_node, device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    for number, wanted in enumerate(plan.sizes):
        size = subject.rounded(wanted, ranks)
        if size == before[0]:
            continue  # rounded up to the same size
        too_long = number > 0 and _CALLS_AT_LEAST * _likely(size, *before) > left
        if size > largest or (plan.open_end and too_long):
            return
        trial = _Trial(subject, size, device)
        wrong = trial.first_call(plan.check)
        left -= trial.spent()
        samples = trial.samples(max(left, 0.0) / (len(plan.sizes) - number))
        left -= trial.spent()
        before = size, min(samples)
        kind = subject.collective, subject.implementation, backend
        yield Measurement(*kind, ranks, size, median(samples) / subject.trips, wrong)


def _likely(size: int, smaller: int, seconds: float) -> float:
    """Estimate the seconds for `size` bytes if `smaller` bytes took `seconds`.

    Below `_LARGE` bytes most of the time is latency, so the bandwidth is assumed to be at least
    `_SLOW` there.
    """
    bandwidth = smaller / seconds if smaller >= _LARGE else max(_SLOW, smaller / seconds)
    return seconds + (size - smaller) / bandwidth


class _Trial:
    """One size of one curve on this rank."""

    def __init__(self, subject: Subject, size: int, device: torch.device) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.subject, self.device = subject, device
        self.begun = time.perf_counter()
        self.buffers: Buffers = subject.buffers(size, self.rank, self.ranks, device)

    def first_call(self, check: bool) -> int | None:
        """Call the collective once; if `check`, return the number of wrong elements on all ranks.

        Sets the buffers to zero afterwards.
        """
        self._call(1)
        wrong = None
        if check:
            expected = self.subject.expected(self.buffers, self.rank, self.ranks)
            count = (self.buffers.output != expected).sum()
            dist.all_reduce(count)
            wrong = int(count)
        self.buffers.input.zero_()
        self.buffers.output.zero_()
        return wrong

    def spent(self) -> float:
        """Return the seconds since the previous call, or since the beginning."""
        since, self.begun = self.begun, time.perf_counter()
        return self._slowest([self.begun - since])[0]

    def samples(self, budget: float) -> list[float]:
        """Take samples for about `budget` seconds; return the seconds per call of each."""
        once = self._slowest([self._sample(1)])[0]
        calls = max(1, min(_MOST_CALLS, round(_SAMPLE / once)))
        least, most = _SAMPLES
        count = max(least, min(most, int(budget / (once * calls))))
        return self._slowest([self._sample(calls) for _ in range(count)])

    def _sample(self, calls: int) -> float:
        self._meet()
        start = time.perf_counter()
        self._call(calls)
        return (time.perf_counter() - start) / calls

    def _call(self, times: int) -> None:
        for _ in range(times):
            self.subject.call(self.buffers, self.rank)
        self._finish()

    def _meet(self) -> None:
        """Synchronise the ranks: an all-reduce ends only after all ranks have started it."""
        dist.all_reduce(torch.zeros(1, device=self.device))
        self._finish()

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _slowest(self, seconds: list[float]) -> list[float]:
        """Return the maximum over all ranks for each time; the result is the same on each rank."""
        times = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        return [float(each) for each in times.tolist()]


def _largest_size(ranks_per_node: int, device: torch.device) -> int:
    """Return the largest size, in bytes, for which every rank has memory; equal on all ranks."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = psutil.virtual_memory().available // ranks_per_node
    least: Tensor = torch.tensor(int(free * _SHARE / _COPIES), device=device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return int(least)
