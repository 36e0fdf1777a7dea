"""The claimed effects of lesson 09: which link, lever, compressor or slow part costs how much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import dtlab
from dtlab.parallel.data import DataParallel
from dtlab.predict import LINKS, Cluster
from dtlab.profiling.diagnosis import diagnose
from dtlab.training.compression import Compressor, PowerSGD, TopK
from dtlab.training.datasets import digits
from dtlab.training.models import MLP
from dtlab.units.unit09.emulated_job import train
from dtlab.units.unit09.levers import Job, Levers
from tests.marks import first, retried
from tests.staying import on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.unit("09")]

SLOWDOWN = 3.0
JOB = Job(gradients=(350_000_000,) * 4, sample=1.8e-3, kernel=1e-4)
PLAIN = Levers(samples=16, sixteen_bit=True, bucket_mb=2000)
WIRES = {"NVLink 4": 1.05, "InfiniBand NDR": 1.3, "100 Gb Ethernet": 2.1}  # times one GPU's step


def step(
    levers: Levers, cluster: Cluster, job: Job = JOB, compute: Any = dtlab.compute
) -> tuple[float, dtlab.Trace]:
    """Seconds of the fastest step, and the trace."""
    on = job.on(cluster, SLOWDOWN)
    run = dtlab.launch(train, job, levers, compute, cluster=on)
    assert run.trace is not None
    return min(run.values[0]) / SLOWDOWN, run.trace


def eight(name: str) -> Cluster:
    return Cluster(8, 1, inter=LINKS[name])


@retried
def test_eight_gpus_lose_hardly_any_two_or_four_of_themselves_by_the_link() -> None:
    seconds = {name: step(PLAIN, eight(name))[0] for name in WIRES}
    for name, times in WIRES.items():
        assert seconds[name] / 0.089 == pytest.approx(times, rel=0.15)


def log_on_rank_0(seconds: float) -> None:
    dtlab.compute(seconds)
    if dist.get_rank() == 0 and seconds == JOB.optimizer:
        dtlab.compute(30e-3)


@retried
def test_a_rank_that_does_more_costs_its_time_on_a_fast_link_too() -> None:
    seconds, trace = step(PLAIN, eight("NVLink 4"), compute=log_on_rank_0)
    assert seconds - step(PLAIN, eight("NVLink 4"))[0] == pytest.approx(30e-3, abs=12e-3)
    assert trace.idle(7) > trace.idle(0)


@retried
def test_two_levels_and_overlap_shorten_a_step() -> None:
    nodes = Cluster(2, 4, intra=LINKS["NVLink 4"], inter=LINKS["InfiniBand NDR"])
    flat, _ = step(PLAIN, nodes)
    for levers in (
        replace(PLAIN, hierarchical=True),
        replace(PLAIN, overlap=True, bucket_mb=200),
    ):
        assert step(levers, nodes)[0] < 0.95 * flat


def share(trace: dtlab.Trace, *names: str) -> float:
    """The share of a rank's last step in events of these names."""
    mine = [event for event in trace.events if event.rank == 7]
    begin = max(event.start for event in mine if event.name == "input")
    spent = (e.end - e.start for e in mine if e.name in names and e.start >= begin)
    return sum(spent) / (max(event.end for event in mine) - begin)


@retried
def test_waiting_for_the_wire_looks_busy_and_waiting_for_input_does_not() -> None:
    kernels = "forward", "backward", "optimizer", "all_reduce"  # what nvidia-smi counts
    _, wire = step(PLAIN, eight("100 Gb Ethernet"))
    fed = replace(JOB, load=5.6e-3)
    slow, hungry = step(PLAIN, eight("NVLink 4"), fed)
    assert share(wire, *kernels) > 0.9
    assert share(wire, "all_reduce") > 0.4
    assert share(hungry, *kernels) < 0.65
    assert diagnose(hungry).verdict == "input pipeline"
    assert diagnose(wire).verdict == "exposed communication"
    assert step(replace(PLAIN, prefetch=2), eight("NVLink 4"), fed)[0] < 0.65 * slow


# Compression -------------------------------------------------------------------------------------

STEPS = 120
WAYS: dict[str, Callable[..., Compressor]] = {
    "top": partial(TopK, 0.01),
    "power": partial(PowerSGD, 1),
}


def learn(compression: Compressor | None, rate: float, momentum: float) -> float:
    """The error on test images after some steps of four ranks."""
    torch.set_num_threads(1)
    data = digits()
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    images, labels = data.train[order]
    model = DataParallel(MLP(64, 128, 128, 10), compression=compression)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    for number in range(STEPS):
        begin = 128 * number % 12800 + 32 * dist.get_rank()
        optimizer.zero_grad()
        batch = slice(begin, begin + 32)
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    test_images, test_labels = data.test.tensors
    return float((model.module(test_images).argmax(1) != test_labels).float().mean())


def error_of(*arguments: Any) -> float:
    return float(on_ranks(learn, *arguments, world_size=4).values[0])


@pytest.mark.parametrize("way", first(WAYS))
def test_without_momentum_error_feedback_keeps_training_on_course(way: str) -> None:
    make = WAYS[way]
    whole = error_of(None, 0.3, 0.0)
    assert error_of(make(), 0.3, 0.0) < whole + 0.15
    assert error_of(make(error_feedback=False), 0.3, 0.0) > whole + 0.25


def test_with_momentum_top_k_learns_worse_even_with_error_feedback() -> None:
    assert error_of(TopK(0.01), 0.1, 0.9) > 2 * error_of(None, 0.1, 0.9)
