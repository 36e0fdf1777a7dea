"""The emulated job of unit 09: each lever saves the time that its formula predicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import dtlab
from dtlab.predict import Cluster, Link
from dtlab.units.unit09.emulated_job import _all_reduce, train
from dtlab.units.unit09.levers import Job, Levers, predicted_seconds
from tests.marks import first, retried
from tests.staying import on_ranks

pytestmark = pytest.mark.unit("09")
SLOWDOWN = 8.0
JOB = Job(load=2e-3)
TWO_NODES = Cluster(2, 4, intra=Link(2e-6, 300e9), inter=Link(30e-6, 12.5e9))
PLAIN = Levers()
PULLED = {
    "overlap": replace(PLAIN, overlap=True),
    "all": Levers(16, 2, True, 25.0, True, True, 2),
    "samples": replace(PLAIN, samples=16),
    "accumulate": replace(PLAIN, accumulate=2),
    "large buckets": replace(PLAIN, overlap=True, bucket_mb=200.0),
    "sixteen_bit": replace(PLAIN, sixteen_bit=True),
    "hierarchical": replace(PLAIN, hierarchical=True),
    "prefetch": replace(PLAIN, prefetch=2),
}


def seconds_of(levers: Levers, cluster: Cluster, job: Job = JOB) -> float:
    """The measured seconds of the fastest step."""
    run = dtlab.launch(train, job, levers, dtlab.compute, 3, cluster=cluster)
    return float(min(run.values[0])) / cluster.slowdown


@pytest.mark.slow
@retried
@pytest.mark.parametrize("name", ["plain", *first(PULLED, 2)])
def test_a_step_takes_the_predicted_time(name: str) -> None:
    levers = PULLED.get(name, PLAIN)
    cluster = JOB.on(TWO_NODES, SLOWDOWN)
    predicted = predicted_seconds(JOB, levers, cluster)
    assert seconds_of(levers, cluster) == pytest.approx(predicted, rel=0.1)


def test_figures_name_the_links_of_the_job_not_the_emulated_ones() -> None:
    words = str(JOB.on(TWO_NODES, SLOWDOWN))
    assert "300 GB/s" in words
    assert words.endswith("with messages 10,000 times smaller, slowed down 8 times")


@pytest.mark.slow
@retried
def test_one_rank_waits_for_no_message() -> None:
    alone = JOB.on(Cluster(1, 1), SLOWDOWN)
    predicted = predicted_seconds(JOB, PLAIN, alone)
    assert seconds_of(PLAIN, alone) == pytest.approx(predicted, rel=0.1)
    per_layer = JOB.forward(8) + JOB.backward(8)
    assert predicted == pytest.approx(4 * per_layer + JOB.optimizer + 8 * JOB.load)


@pytest.mark.parametrize("name", PULLED)
def test_each_lever_alone_makes_a_sample_cheaper(name: str) -> None:
    cluster = JOB.on(TWO_NODES)
    plain = predicted_seconds(JOB, PLAIN, cluster) / PLAIN.per_step
    pulled = predicted_seconds(JOB, PULLED[name], cluster) / PULLED[name].per_step
    assert pulled < 0.96 * plain


def test_loading_that_takes_longer_than_the_rest_is_the_step() -> None:
    job, levers = replace(JOB, load=50e-3), replace(PLAIN, prefetch=1)
    assert predicted_seconds(job, levers, job.on(TWO_NODES)) == pytest.approx(8 * 50e-3)


def summed(levers: Levers) -> torch.Tensor:
    flat = torch.full((7,), 1.0 + dist.get_rank())
    result = _all_reduce(levers)(flat)
    if result is not None:
        result.wait()
    return flat


@pytest.mark.slow
@pytest.mark.parametrize("levers", [PLAIN, PULLED["hierarchical"], PULLED["all"]])
def test_every_all_reduce_sums(levers: Levers) -> None:
    for flat in on_ranks(summed, levers, world_size=4).values:
        assert flat.tolist() == [10.0] * 7


@pytest.mark.slow
def test_the_spans_of_a_step_are_in_the_trace() -> None:
    cluster = JOB.on(Cluster(1, 2))
    levers = replace(PLAIN, accumulate=2)
    trace = dtlab.launch(train, JOB, levers, dtlab.compute, 2, cluster=cluster).trace
    assert trace is not None
    names = [event.name for event in trace.events if event.rank == 0 and event.name != "compute"]
    once = ["input", *["forward"] * 4, *["backward"] * 4]
    step = [*once, *once, *["all_reduce"] * 4, "optimizer"]
    assert names[-2 * len(step) :] == step * 2  # before them, `DataParallel` broadcasts
