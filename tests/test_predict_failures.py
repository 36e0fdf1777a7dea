"""Checkpoint intervals and the cost of failures: closed forms against runs drawn at random."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dtlab.predict as predict

HOUR = 3600.0


def test_young_balances_saves_and_repeated_work() -> None:
    assert predict.young_interval(100, 20_000) == 2000
    assert predict.young_interval(0, 20_000) == 0


def test_daly_is_closer_to_the_exact_optimum_than_young() -> None:
    for save, between in ((60, 3.1 * HOUR), (600, 3.1 * HOUR), (2000, HOUR)):
        exact = predict.best_interval(save, between)
        daly, young = predict.daly_interval(save, between), predict.young_interval(save, between)
        assert abs(daly - exact) < abs(young - exact)
    assert predict.daly_interval(2 * HOUR, HOUR) == HOUR


def test_best_interval_has_the_highest_goodput() -> None:
    best = predict.best_interval(300, 2 * HOUR)
    shares = [predict.goodput(best * factor, 300, 2 * HOUR, 60) for factor in (0.99, 1, 1.01)]
    assert max(shares) == shares[1]
    assert predict.goodput(best, 300, 2 * HOUR, 60) < predict.goodput(best, 300, 2 * HOUR)


@pytest.mark.parametrize(
    ("work", "interval", "save", "between", "restart"),
    [(1000, 100, 5, 400, 30), (1000, 300, 20, 250, 0), (50, 100, 5, 40, 60)],
)
def test_expected_seconds_are_the_mean_of_random_runs(
    work: float, interval: float, save: float, between: float, restart: float
) -> None:
    job = (work, interval, save, between, restart)
    runs = np.array([predict.simulated_seconds(*job, seed=seed) for seed in range(4000)])
    error = runs.std() / math.sqrt(len(runs))
    assert abs(runs.mean() - predict.expected_seconds(*job)) < 4 * error


def test_without_failures_only_saves_cost() -> None:
    assert predict.expected_seconds(1000, 300, 5, 1e15) == pytest.approx(1020)
    assert predict.simulated_seconds(1000, 300, 5, 1e15) == 1020
    assert predict.goodput(300, 5, 1e15) == pytest.approx(300 / 305)


def test_a_job_of_many_parts_fails_often() -> None:
    one = 5.8 * 365 * 24 * HOUR
    assert predict.seconds_between_failures(one, 16_384) / HOUR == pytest.approx(3.1, abs=0.02)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: predict.young_interval(-1, 10), "save must be 0 or more seconds, not -1"),
        (lambda: predict.best_interval(1, 0), "between_failures must be above 0 seconds, not 0"),
        (lambda: predict.goodput(0, 1, 10), "interval must be above 0 seconds, not 0"),
        (lambda: predict.goodput(math.nan, 1, 10), "interval must be above 0 seconds, not nan"),
        (lambda: predict.seconds_between_failures(10, 0), "parts must be 1 or more, not 0"),
    ],
)
def test_bad_numbers_are_named(call: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()  # type: ignore[operator]
