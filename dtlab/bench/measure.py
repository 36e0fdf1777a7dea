"""The part of the benchmark that runs on each rank: checks every collective once, then times it.

The meaning of S, the bytes of a measurement, on each of N ranks, as in nccl-tests:

    collective                  input    output
    all_reduce, broadcast       S        in place
    reduce_scatter              S        S/N
    all_gather                  S/N      S
    all_to_all                  S        S
    send_recv                   S        S         one way of a ping-pong, half of the round trip

Each size of each collective takes three steps:

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

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

import dtlab.collectives as collectives
from dtlab.bench.results import BETWEEN_NODES, BUILT_IN, Measurement

__all__ = ["ELEMENT", "OURS", "Plan", "Subject", "measure", "seconds_per_call"]

ELEMENT: Final = 4  # bytes of a float32
_CPU: Final = torch.device("cpu")
_Functions = tuple[Callable[..., Any], Callable[..., None]]
_IMPLEMENTATIONS: Final[Mapping[str, _Functions]] = {  # torch.distributed's, and ours
    "all_reduce": (dist.all_reduce, collectives.ring_all_reduce),
    "reduce_scatter": (dist.reduce_scatter_single, collectives.ring_reduce_scatter),
    "all_gather": (dist.all_gather_single, collectives.ring_all_gather),
    "broadcast": (dist.broadcast, collectives.tree_broadcast),
    "all_to_all": (dist.all_to_all_single, collectives.pairwise_all_to_all),
}
OURS: Final[Mapping[str, Callable[..., None]]] = MappingProxyType(
    {collective: ours for collective, (_, ours) in _IMPLEMENTATIONS.items()}
)
_IN_PIECES: Final = ("reduce_scatter", "all_gather", "all_to_all")  # N must divide S in elements
_PERIOD: Final = 7
_BLOCK: Final = 2**20  # elements that are compared at a time

_SAMPLE: Final = 1e-3  # approximate seconds; in shorter samples the synchronisation is noticeable
_MOST_CALLS: Final = 50  # in a sample
_SAMPLES: Final = (3, 25)
_CALLS_AT_LEAST: Final = 2 + _SAMPLES[0]
_LARGE, _SLOW = 2**20, 100e6  # bytes, bytes/s
_COPIES: Final = 4  # tensors of this size on a rank: input, output, and their scratch
_SHARE: Final = 0.5  # of the free memory


# What is measured --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """One implementation of one collective.

    `function` is None for the built-in implementation. `partner` is the rank with which rank 0
    exchanges messages in a ping-pong; None for a collective.
    """

    collective: str
    function: Callable[..., Any] | None = None
    partner: int | None = None

    @property
    def implementation(self) -> str:
        """`built-in`, or the name of the function."""
        if self.function is None:
            return BUILT_IN
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def rounded(self, nbytes: int, ranks: int) -> int:
        """Round `nbytes` up to a size that this collective can divide among the ranks."""
        step = ELEMENT * (ranks if self.collective in _IN_PIECES else 1)
        return -(-nbytes // step) * step

    def buffers(
        self, nbytes: int, rank: int, ranks: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Create the output and the input for S = `nbytes`, one tensor if the call is in place.

        The output is zero. The input of each rank is filled with different numbers, so the check
        detects a chunk that is missing, comes from the wrong rank, or is in the wrong place.
        """
        count = nbytes // ELEMENT
        sent = count // ranks if self.collective == "all_gather" else count
        data = _input(torch.arange(sent, device=device), rank)
        if self.collective in ("all_reduce", "broadcast"):
            return data, data
        received = count // ranks if self.collective == "reduce_scatter" else count
        return torch.zeros(received, device=device), data

    def call(self, output: Tensor, data: Tensor) -> None:
        """Run the collective once on the tensors of `buffers`."""
        if self.partner is not None:
            _ping_pong(output, data, self.partner)
            return
        function = self.function or _IMPLEMENTATIONS[self.collective][0]
        if self.collective == "all_reduce":
            function(output)
        elif self.collective == "broadcast":
            function(output, 0)
        else:
            function(output, data)

    def expected(self, places: Tensor, length: int, rank: int, ranks: int) -> Tensor:
        """Return the correct elements at `places` of the output, which has `length` elements."""
        piece = max(1, length // ranks)
        mean = (ranks - 1) / 2  # the inputs' sum is N times the input of this "rank"
        if self.collective == "all_reduce":
            return ranks * _input(places, mean)
        if self.collective == "reduce_scatter":
            return ranks * _input(places + rank * length, mean)
        if self.collective == "all_gather":
            return _input(places % piece, places // piece)
        if self.collective == "all_to_all":
            return _input(places % piece + rank * piece, places // piece)
        if self.partner is not None and rank not in (0, self.partner):
            return torch.zeros(len(places), device=places.device)
        return _input(places, 0)


def _input(places: Tensor, rank: float | Tensor) -> Tensor:
    """Return element i of rank r's input, i mod 7 + 1 + r. All sums are exact in float32."""
    return (places % _PERIOD).float().add_(rank + 1)


def _ping_pong(output: Tensor, data: Tensor, partner: int) -> None:
    """Send a tensor from rank 0 to `partner` and back; other ranks take no part."""
    if dist.get_rank() == 0:
        dist.send(data, partner)
        dist.recv(output, partner)
    elif dist.get_rank() == partner:
        dist.recv(output, 0)
        dist.send(output, 0)


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
        """Return the curves, in the order in which they are measured.

        Messages are measured within a node and between two nodes; there are none for one rank.
        """
        subjects = []
        for name in self.collectives:
            if name != "send_recv":
                subjects.append(Subject(name))
            if name in self.functions:
                subjects.append(Subject(name, self.functions[name]))
            if name == "send_recv" and self.ranks_per_node > 1:
                subjects.append(Subject(name, partner=1))
            if name == "send_recv" and self.ranks_per_node < self.world_size:
                subjects.append(Subject(BETWEEN_NODES, partner=self.ranks_per_node))
        return subjects


# How it is measured ------------------------------------------------------------------------------


def measure(plan: Plan, log: Path | None = None) -> list[Measurement]:
    """Run all measurements on this rank; rank 0 also appends each to the file `log` at once."""
    device = _device(plan.backend)
    per_node = torch.tensor(plan.ranks_per_node, device=device)
    dist.broadcast(per_node, 0)  # nodes may have different numbers of ranks
    plan = replace(plan, ranks_per_node=int(per_node))
    measurements = []
    for subject in plan.subjects():
        for measurement in _curve(plan, subject, device):
            measurements.append(measurement)
            if log is not None and dist.get_rank() == 0:
                with log.open("a") as file:
                    file.write(json.dumps(asdict(measurement)) + "\n")
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
    rank, ranks, begun = dist.get_rank(), dist.get_world_size(), time.perf_counter()
    backend = "nccl" if device.type == "cuda" else "gloo"
    largest = _largest_size(plan.ranks_per_node, device)
    previous, fastest = 0, 0.0
    for number, wanted in enumerate(plan.sizes):
        size = subject.rounded(wanted, ranks)
        if size == previous:
            continue  # rounded up to the same size
        left = plan.seconds - _slowest(time.perf_counter() - begun, device)
        too_long = number > 0 and _CALLS_AT_LEAST * _likely(size, previous, fastest) > left
        if size > largest or (plan.open_end and too_long):
            return
        output, data = subject.buffers(size, rank, ranks, device)
        call = partial(subject.call, output, data)
        call()
        wrong = _wrong_elements(subject, output, rank, ranks) if plan.check else None
        for buffer in (output, data):
            buffer.zero_()
        left = plan.seconds - _slowest(time.perf_counter() - begun, device)
        samples = _samples(call, max(left, 0.0) / (len(plan.sizes) - number), device)
        previous, fastest = size, min(samples)
        seconds = median(samples) / (1 if subject.partner is None else 2)  # one way of two
        key = subject.collective, subject.implementation, backend
        yield Measurement(*key, ranks, size, seconds, wrong)


def _wrong_elements(subject: Subject, output: Tensor, rank: int, ranks: int) -> int:
    """Return the number of wrong elements on all ranks.

    The tensors are compared in blocks, because integers of their size would not fit in memory.
    """
    count = torch.zeros((), dtype=torch.int64, device=output.device)
    for start in range(0, len(output), _BLOCK):
        found = output[start : start + _BLOCK]
        places = torch.arange(start, start + len(found), device=output.device)
        count += (found != subject.expected(places, len(output), rank, ranks)).sum()
    dist.all_reduce(count)
    return int(count)


def _samples(call: Callable[[], Any], budget: float, device: torch.device) -> list[float]:
    """Take samples for about `budget` seconds; return the seconds per call of each."""
    once = seconds_per_call(call, 1, device)
    calls = max(1, min(_MOST_CALLS, round(_SAMPLE / once)))
    least, most = _SAMPLES
    count = max(least, min(most, int(budget / (once * calls))))
    return [seconds_per_call(call, calls, device) for _ in range(count)]


def seconds_per_call(call: Callable[[], Any], calls: int, device: torch.device = _CPU) -> float:
    """Run `calls` calls without a pause; return the seconds per call of the slowest rank.

    All ranks call it together and get the same number. `device` is where `call` computes.
    """
    _slowest(0.0, device)  # synchronises: an all-reduce ends only after all ranks have started it
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return _slowest((time.perf_counter() - start) / calls, device)


def _slowest(seconds: float, device: torch.device) -> float:
    """Return the maximum over all ranks, which is the same on each rank."""
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def _likely(size: int, smaller: int, seconds: float) -> float:
    """Estimate the seconds for `size` bytes if `smaller` bytes took `seconds`.

    Below `_LARGE` bytes most of the time is latency, so the bandwidth is assumed to be at least
    `_SLOW` there.
    """
    bandwidth = smaller / seconds if smaller >= _LARGE else max(_SLOW, smaller / seconds)
    return seconds + (size - smaller) / bandwidth


def _largest_size(ranks_per_node: int, device: torch.device) -> int:
    """Return the largest size, in bytes, for which every rank has memory; equal on all ranks."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = psutil.virtual_memory().available // ranks_per_node
    least = torch.tensor(int(free * _SHARE / _COPIES), device=device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return int(least)
