"""A data-parallel job whose speed depends on a few levers, on an emulated cluster.

    step   input | forward | backward | input | forward | backward ──┐                 | optimizer
           └────── microbatch 1 ──────┘                 buckets: all-reduce ─ all-reduce ┘

Kernels and input take time without using a core; gradients, buckets and messages are real. A rank
holds `shrink` times fewer gradients than the job, and `Job.on` makes the links slower by the same
factor, so that a message takes as long as in the job:

    cluster = job.on(Cluster(nodes=8, gpus_per_node=1), slowdown=10)
    run = dtlab.launch(train, job, levers, dtlab.compute, cluster=cluster)
    min(run.values[0]) / cluster.slowdown        # seconds of a step, measured
    predicted_seconds(job, levers, cluster)      # by the formulas in `levers.py`
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from queue import Queue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from dtlab.parallel.data.data_parallel import DataParallel
from dtlab.trace import span
from dtlab.units.unit09.levers import Job, Levers

__all__ = ["train"]

Compute = Callable[[float], None]


def train(job: Job, levers: Levers, compute: Compute, steps: int = 3) -> list[float]:
    """Train on all ranks, and return the measured seconds of each step but the first.

    `compute` takes the time of a kernel: `dtlab.compute`. The first step also fills the prefetch
    queue. On an emulated cluster, divide by its `slowdown`.
    """
    layers = nn.Sequential(*[_Layer(job, index, levers.samples, compute)
                             for index in range(len(job.gradients))])  # fmt: skip
    cap = levers.bucket_mb / job.shrink
    model = DataParallel(layers, cap, all_reduce=_all_reduce(levers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    batches = _batches(job, levers, compute, steps * levers.accumulate)
    begins = [time.perf_counter()]
    for _ in range(steps):
        for micro in range(levers.accumulate):
            with span("input"):
                batch = next(batches)
            averages = micro == levers.accumulate - 1
            with contextlib.nullcontext() if averages else model.no_sync():
                model(batch).sum().backward()
        with span("optimizer"):
            compute(job.optimizer)
            optimizer.step()
            optimizer.zero_grad()
        begins.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(begins[1:])]


class _Kernel(torch.autograd.Function):
    """Takes a layer's time; the gradient of its weight is the batch's value, on each element."""

    @staticmethod
    def forward(ctx: Any, batch: Tensor, weight: Tensor, layer: _Layer) -> Tensor:
        ctx.layer = layer
        with span("forward", layer=layer.index):
            layer.compute(layer.job.forward(layer.samples))
        ctx.save_for_backward(batch)
        return batch.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        layer: _Layer = ctx.layer
        with span("backward", layer=layer.index):
            layer.compute(layer.job.backward(layer.samples))
        (batch,) = ctx.saved_tensors
        return gradient, batch.mean().expand_as(layer.weight).contiguous(), None


class _Layer(nn.Module):
    def __init__(self, job: Job, index: int, samples: int, compute: Compute) -> None:
        super().__init__()
        self.job, self.index, self.samples, self.compute = job, index, samples, compute
        self.weight = nn.Parameter(torch.zeros(job.gradients[index] // 4 // job.shrink))

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = _Kernel.apply(batch, self.weight, self)  # type: ignore[no-untyped-call]
        return out


# Input -------------------------------------------------------------------------------------------


def _batches(job: Job, levers: Levers, compute: Compute, count: int) -> Iterator[Tensor]:
    """Yield `count` batches, each loaded on demand or ahead by a thread."""

    def load() -> Tensor:
        compute(levers.samples * job.load)
        return torch.full((levers.samples,), float(dist.get_rank()), requires_grad=True)

    if levers.prefetch == 0:
        yield from (load() for _ in range(count))
        return
    queue: Queue[Tensor] = Queue(levers.prefetch)

    def load_ahead() -> None:
        for _ in range(count):
            queue.put(load())

    threading.Thread(target=load_ahead, name="input", daemon=True).start()
    yield from (queue.get() for _ in range(count))


# The all-reduce of a bucket ----------------------------------------------------------------------


def _all_reduce(levers: Levers) -> Callable[..., Any]:
    """Return the all-reduce that `DataParallel` calls for each bucket."""
    plain = _hierarchical() if levers.hierarchical else dist.all_reduce

    def reduce(flat: Tensor, group: Any = None) -> None:
        sent = flat.bfloat16() if levers.sixteen_bit else flat
        plain(sent)
        flat.copy_(sent)

    def later(flat: Tensor, group: Any = None, async_op: bool = True) -> _AtWait:
        return _AtWait(lambda: reduce(flat, group))

    return reduce if levers.overlap else later


def _hierarchical() -> Callable[[Tensor], None]:
    """Return `hierarchical_all_reduce` made of torch's collectives: three calls, few messages."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    mesh = init_device_mesh("cpu", (dist.get_world_size() // local, local),
                            mesh_dim_names=("across", "inside"))  # fmt: skip
    inside, across = mesh.get_group("inside"), mesh.get_group("across")

    def reduce(flat: Tensor) -> None:
        padded = nn.functional.pad(flat, (0, -len(flat) % local))
        share = padded.new_empty(len(padded) // local)
        dist.reduce_scatter_single(share, padded, group=inside)
        dist.all_reduce(share, group=across)
        dist.all_gather_single(padded, share, group=inside)
        flat.copy_(padded[: len(flat)])

    return reduce


class _AtWait:
    """A Work whose operation runs in `wait`, which `DataParallel` calls after backward."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.wait = do
