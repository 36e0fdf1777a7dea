"""A data-parallel step and the levers that make it fast or slow: seconds by the formulas.

    step   input | forward | backward | input | forward | backward ──┐                 | optimizer
           └────── microbatch 1 ──────┘                 buckets: all-reduce ─ all-reduce ┘

`emulated_job.py` runs the same job on an emulated cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtlab.predict.communication import (
    Gradient,
    bucket_times,
    flat_ring_all_reduce_seconds,
    hierarchical_all_reduce_seconds,
)
from dtlab.predict.hardware import Cluster, Link

__all__ = ["Job", "Levers", "exposed_seconds", "predicted_seconds"]

_MIB = 2**20


@dataclass(frozen=True)
class Job:
    """What a training step costs on one GPU: seconds, and bytes of gradients.

    `gradients` are the bytes of each layer's fp32 gradients, the first layer first. A layer's
    forward is a kernel of `kernel` seconds plus a share of `sample` seconds for each sample; its
    backward is a kernel and twice that share. `load` is the time to load a sample.
    """

    gradients: tuple[int, ...] = (100_000_000,) * 4
    kernel: float = 1e-3
    sample: float = 2e-3
    load: float = 0.0
    optimizer: float = 2e-3
    shrink: int = 10_000

    def forward(self, samples: int) -> float:
        """The seconds of a layer's forward."""
        return self.kernel + samples * self.sample / len(self.gradients)

    def backward(self, samples: int) -> float:
        """The seconds of a layer's backward."""
        return self.kernel + 2 * samples * self.sample / len(self.gradients)

    def on(self, cluster: Cluster, slowdown: float = 1.0) -> Cluster:
        """The cluster on which the few real gradients take as long as the job's."""
        intra, inter = (
            Link(link.latency, link.bandwidth / self.shrink)
            for link in (cluster.intra, cluster.inter)
        )
        words = f"{cluster}, with messages {self.shrink:,} times smaller"
        return replace(cluster, intra=intra, inter=inter, slowdown=slowdown, words=words)


@dataclass(frozen=True)
class Levers:
    """Settings of a step that do not change what is trained, except for the batch size.

    `samples` is the microbatch of a rank. An optimizer step follows `accumulate` microbatches, and
    only the last one averages gradients. `overlap` starts the all-reduce of a bucket of
    `bucket_mb` MiB during backward. `sixteen_bit` sends gradients in bf16. `hierarchical` reduces
    inside nodes first. `prefetch` is the number of batches that a thread loads ahead.
    """

    samples: int = 8
    accumulate: int = 1
    overlap: bool = False
    bucket_mb: float = 25.0
    sixteen_bit: bool = False
    hierarchical: bool = False
    prefetch: int = 0

    @property
    def per_step(self) -> int:
        """The samples of a rank in an optimizer step."""
        return self.samples * self.accumulate


def predicted_seconds(job: Job, levers: Levers, cluster: Cluster) -> float:
    """Return the seconds of a step on the full cluster, without its slowdown.

    `cluster` is the result of `Job.on`. With a prefetch, loading hides behind the rest of the
    step, or the rest behind loading.
    """
    layers = len(job.gradients)
    compute = layers * (job.forward(levers.samples) + job.backward(levers.samples))
    rest = levers.accumulate * compute + exposed_seconds(job, levers, cluster) + job.optimizer
    load = levers.per_step * job.load
    return max(rest, load) if levers.prefetch else rest + load


def exposed_seconds(job: Job, levers: Levers, cluster: Cluster) -> float:
    """Return the seconds from the end of the last backward to that of the last all-reduce."""
    if cluster.size == 1:
        return 0.0
    share = 0.5 if levers.sixteen_bit else 1.0
    seconds = job.backward(levers.samples)
    gradients = [Gradient(seconds, share * each / job.shrink) for each in job.gradients[::-1]]
    limit = share * levers.bucket_mb * _MIB / job.shrink
    buckets = bucket_times(gradients, limit, cluster.size, _as_ring(levers, cluster))
    if levers.overlap:
        return buckets[-1].end - buckets[-1].ready
    return sum(bucket.end - bucket.start for bucket in buckets)


def _as_ring(levers: Levers, cluster: Cluster) -> Link:
    """Return the link with which a ring of all ranks takes as long as the chosen all-reduce."""
    form = hierarchical_all_reduce_seconds if levers.hierarchical else flat_ring_all_reduce_seconds
    rounds = 2 * (cluster.size - 1)
    latency, per_byte = form(0.0, cluster), form(1.0, cluster) - form(0.0, cluster)
    return Link(latency / rounds, rounds / cluster.size / per_byte)
