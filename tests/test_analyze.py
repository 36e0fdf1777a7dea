"""`dtlab analyze` names the cause that was planted in a job, and says so in plain sentences."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

import dtlab
from dtlab.trace import Trace
from dtlab.trace.diagnosis import diagnose

STEPS = 6
ETHERNET = dtlab.Link(latency=1e-3, bandwidth=50e6)  # slow enough that a rank's own delays vanish
FAST = dtlab.Link(latency=1e-6, bandwidth=1e12)


@dataclass(frozen=True)
class Job:
    """A training step made of stand-ins; a rank in `late` needs these seconds more for a part."""

    ranks: int = 4
    link: dtlab.Link = FAST
    input: float = 0.002
    forward: float = 0.02
    buckets: int = 1
    bucket: int = 1000  # elements
    backward: float = 0.04
    overlap: bool = False
    unmarked: float = 0.0
    messages: bool = False  # a ring of send and recv
    late: tuple[tuple[int, str, float], ...] = ()

    def seconds(self, part: str) -> float:
        """The seconds of a part on this rank."""
        import torch.distributed as dist

        here = dist.get_rank(), part
        more = sum(more for rank, name, more in self.late if (rank, name) == here)
        return float(getattr(self, part)) + more


def train(job: Job) -> None:
    """Run on each rank."""
    import torch
    import torch.distributed as dist

    from dtlab.collectives import ring_all_reduce

    buckets = [torch.ones(job.bucket) for _ in range(job.buckets)]
    for _ in range(STEPS):
        with dtlab.span("input"):
            dtlab.compute(job.seconds("input"))
        with dtlab.span("forward"):
            dtlab.compute(job.seconds("forward"))
        works = []
        for bucket in buckets:
            with dtlab.span("backward"):
                dtlab.compute(job.seconds("backward") / job.buckets)
            if job.messages:
                ring_all_reduce(bucket)
            elif job.overlap:
                works.append(dist.all_reduce(bucket, async_op=True))
            else:
                dist.all_reduce(bucket)
        for work in works:
            work.wait()
        time.sleep(job.seconds("unmarked"))
        with dtlab.span("optimizer"):
            dtlab.compute(0.002)


JOBS = {
    "compute": ("compute-bound", Job(forward=0.1)),
    "compute, two ranks": ("compute-bound", Job(ranks=2, forward=0.1)),
    "compute over the wire": (
        "compute-bound",
        Job(link=ETHERNET, bucket=100_000, buckets=2, backward=0.16, overlap=True),
    ),
    "large buckets": ("exposed communication", Job(link=ETHERNET, bucket=800_000)),
    "overlap, and too much": (
        "exposed communication",
        Job(link=ETHERNET, bucket=500_000, buckets=2, overlap=True),
    ),
    "a ring of messages": (
        "exposed communication", Job(link=ETHERNET, bucket=800_000, messages=True)
    ),
    "slow rank": ("straggler", Job(late=((2, "backward", 0.1),))),
    "rank 0 logs": ("straggler", Job(late=((0, "unmarked", 0.1),))),
    "slow rank, messages": ("straggler", Job(messages=True, late=((1, "forward", 0.1),))),
    "slow input": ("input pipeline", Job(input=0.1)),
    "slow input of one rank": ("input pipeline", Job(late=((3, "input", 0.1),))),
    "slow input, some wire": (
        "input pipeline", Job(input=0.1, link=ETHERNET, bucket=200_000)
    ),
}  # fmt: skip


def run_of(job: Job) -> Trace:
    cluster = dtlab.Cluster(nodes=1, gpus_per_node=job.ranks, intra=job.link)
    run = dtlab.launch(train, job, world_size=job.ranks, cluster=cluster)
    assert run.trace is not None
    return run.trace


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", JOBS)
def test_the_planted_cause_is_named(name: str) -> None:
    planted, job = JOBS[name]
    found = diagnose(run_of(job))
    print(found)
    assert found.verdict == planted
    for rank, _, _ in job.late:
        assert found.causes[0].ranks == (rank,)
        assert f"Rank {rank} " in found.message
