"""Predictions of data parallelism: when buckets are sent, and what waiting costs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from torch import nn

from dtlab.parallel.data.buckets import in_buckets
from dtlab.predict import (
    BucketTime,
    Gradient,
    Link,
    bucket_times,
    exposed_seconds,
    finish_times,
    gradients_per_second,
    mean_delay,
    ring_all_reduce_seconds,
    step_seconds,
)

FREE = Link(0.0, 1.0)  # two ranks: S bytes take S seconds round a ring


# ------------------------------------------------------------------------------- overlap


def test_a_bucket_starts_when_it_is_ready_and_the_one_before_is_there() -> None:
    layers = [Gradient(1, 2), Gradient(1, 2), Gradient(3, 1), Gradient(1, 1)]
    assert bucket_times(layers, 2, 2, FREE) == [
        BucketTime(2, 1, 1, 3), BucketTime(2, 2, 3, 5), BucketTime(2, 6, 6, 8),
    ]  # fmt: skip
    assert exposed_seconds(layers, 2, 2, FREE) == 2
    assert bucket_times(layers, 100, 2, FREE) == [BucketTime(6, 6, 6, 12)]


def test_a_first_bucket_may_be_smaller() -> None:
    layers = [Gradient(1, 1)] * 5
    sizes = [each.nbytes for each in bucket_times(layers, 3, 2, FREE, first_bucket_bytes=1)]
    assert sizes == [1, 3, 1]


@pytest.mark.parametrize("cap", [1, 300, 5_000, 10**6])
def test_buckets_are_those_of_the_library(cap: int) -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 40), nn.Linear(40, 5))
    parameters = list(model.parameters())[::-1]
    made = in_buckets(parameters, cap, cap, 2)
    wanted = [sum(4 * one.numel() for one in bucket.parameters) for bucket in made]
    layers = [Gradient(1, 4 * one.numel()) for one in parameters]
    assert [each.nbytes for each in bucket_times(layers, cap, 2, FREE)] == wanted


def test_the_last_bucket_is_always_exposed() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        layers = [Gradient(*draw.exponential(1, 2)) for _ in range(draw.integers(1, 9))]
        cap, link = float(draw.exponential(2)), Link(float(draw.exponential(0.1)), 2.0)
        buckets = bucket_times(layers, cap, 4, link)
        last = ring_all_reduce_seconds(buckets[-1].nbytes, 4, link)
        exposed = exposed_seconds(layers, cap, 4, link)
        assert exposed >= last - 1e-12
        assert sum(each.nbytes for each in buckets) == pytest.approx(
            sum(each.nbytes for each in layers)
        )
        for one, after in itertools.pairwise(buckets):
            assert after.start >= max(after.ready, one.end)


def test_small_buckets_pay_latency_and_large_ones_do_not_overlap() -> None:
    layers, link = [Gradient(2e-4, 1e6)] * 100, Link(5e-6, 25e9)
    small, middle, large = (exposed_seconds(layers, mb * 1e6, 128, link) for mb in (1, 10, 100))
    assert middle < large < small


def test_one_rank_has_nothing_to_send() -> None:
    assert exposed_seconds([Gradient(1, 5)] * 3, 5, 1, Link(1, 1)) == 0
    assert exposed_seconds([], 5, 2, FREE) == 0


@pytest.mark.parametrize(("layer", "cap"), [((1, 1), 0), ((-1, 1), 1), ((1, -1), 1)])
def test_impossible_arguments_are_refused(layer: tuple[float, float], cap: float) -> None:
    with pytest.raises(ValueError, match=r"bucket|gradients"):
        bucket_times([Gradient(*layer)], cap, 2, FREE)


# ------------------------------------------------------------------------- sync and async


def played_out(seconds: np.ndarray, lead: float) -> np.ndarray:
    """Simulate the same: in a loop, let the worker step that may continue first."""
    workers, steps = seconds.shape
    finish, done, now = np.full(seconds.shape, np.inf), [0] * workers, [0.0] * workers
    while min(done) < steps:
        free = []
        for worker in range(workers):
            step = done[worker]
            if step < steps and step - min(done) <= lead:
                gate = [finish[w, step - 1 - int(lead)] for w in range(workers)] \
                    if step > lead else [0.0]  # fmt: skip
                free.append((max(now[worker], *gate) + seconds[worker, step], worker))
        end, worker = min(free)
        finish[worker, done[worker]] = now[worker] = end
        done[worker] += 1
    return finish


@pytest.mark.parametrize("lead", [0, 1, 3, math.inf])
def test_finish_times_are_those_of_workers_that_wait(lead: float) -> None:
    draw = np.random.default_rng(1)
    for workers, steps in ((1, 5), (2, 7), (4, 9)):
        seconds = draw.exponential(1, (workers, steps))
        np.testing.assert_allclose(finish_times(seconds, lead), played_out(seconds, lead))


def test_closed_forms_of_a_late_worker() -> None:
    seconds = step_seconds(4, 400, 0.1, 0.3)
    assert gradients_per_second(seconds, 0) == pytest.approx(4 / 0.4, rel=0.01)
    assert gradients_per_second(seconds, 2) == pytest.approx(4 / 0.4, rel=0.02)


def test_async_is_as_fast_as_its_workers() -> None:
    steps = np.full((3, 100), 0.1)
    assert gradients_per_second(steps, math.inf) == pytest.approx(30)
    steps[2] = 0.4
    steps = np.pad(steps, ((0, 0), (0, 400)), mode="edge")
    # Until the fast ones are through, 50 s: they do 500 steps each, the late one 125.
    assert gradients_per_second(steps, math.inf) == pytest.approx((1000 + 125) / 50)


def test_a_gradient_is_late_by_the_updates_of_the_others() -> None:
    alike = np.full((5, 40), 0.1)
    assert mean_delay(alike, 0) == 0
    assert mean_delay(alike, math.inf) == pytest.approx(4, abs=0.01)


@pytest.mark.parametrize("turns", [False, True])
def test_waiting_less_is_faster_and_staler(turns: bool) -> None:
    for seed in range(5):
        seconds = step_seconds(6, 300, 0.1, 0.2, turns=turns, seed=seed)
        speeds = [gradients_per_second(seconds, lead) for lead in (0, 1, 4, math.inf)]
        assert speeds == sorted(speeds)
        delays = [mean_delay(seconds, lead) for lead in (0, 1, 4)]
        assert delays == sorted(delays)
    bound_gain = speeds[2] / speeds[0]
    assert bound_gain > 1.3 if turns else bound_gain < 1.05


def test_one_worker_is_late_in_each_step() -> None:
    turns = step_seconds(5, 50, 1, 3, turns=True, seed=2)
    assert (turns == 4).sum(axis=0).tolist() == [1] * 50
    assert len(set(turns.argmax(axis=0).tolist())) > 1
    always = step_seconds(5, 50, 1, 3)
    assert (always[:4] == 1).all()
    assert (always[4] == 4).all()


@pytest.mark.parametrize("lead", [-1, 0.5, math.nan])
def test_a_lead_that_cannot_be_is_refused(lead: float) -> None:
    with pytest.raises(ValueError, match="lead must be a number of steps"):
        finish_times(np.ones((2, 2)), lead)


@pytest.mark.parametrize("arguments", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, -1)])
def test_steps_that_cannot_be_are_refused(arguments: tuple[int, int, float, float]) -> None:
    with pytest.raises(ValueError, match=r"whole number|must be above 0"):
        step_seconds(*arguments)
