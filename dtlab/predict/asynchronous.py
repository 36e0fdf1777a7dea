"""Synchronous, asynchronous and bounded-staleness training: step times and staleness.

    sync       worker 0 |====|...........|====|...........|       all workers are in the same step
               worker 1 |================|================|
    bounded    worker 0 |====|====|......|====|...........|       at most 1 step ahead
    async      worker 0 |====|====|====|====|====|====|====|      no limit

A worker that is `lead` steps ahead of the slowest worker waits. `lead` is 0 for sync, and infinite
for async.
For values in between see Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
Parallel Parameter Server". Pulls and pushes are assumed to take no time.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dtlab.predict.units import check_count

__all__ = ["finish_times", "gradients_per_second", "mean_delay", "step_seconds"]

Times = npt.NDArray[np.float64]  # [workers, steps]


def step_seconds(
    workers: int,
    steps: int,
    seconds: float,
    delay: float,
    *,
    turns: bool = False,
    seed: int = 0,
) -> Times:
    """Return the seconds of each step, [workers, steps]: `seconds`, plus `delay` for one worker.

    The same worker has the delay in every step. With `turns`, a random worker, drawn from `seed`,
    has the delay in each step.
    Raises: ValueError for counts below 1, `seconds` not above 0, or `delay` below 0.
    """
    if not (seconds > 0 and delay >= 0):
        raise ValueError(
            f"seconds must be above 0 and delay 0 or more, not {seconds!r}, {delay!r}."
        )
    times = np.full((check_count("workers", workers), check_count("steps", steps)), float(seconds))
    late = np.random.default_rng(seed).integers(workers, size=steps) if turns else workers - 1
    times[late, np.arange(steps)] += delay
    return times


def finish_times(seconds: Times, lead: float) -> Times:
    """Return when each worker finishes each step, [workers, steps], in seconds from the start.

    A worker begins step k when it has finished step k-1, and all workers have finished step
    k-1-lead. Raises: ValueError if `lead` is neither a whole number of 0 or more, nor infinite.
    """
    return _begin_and_finish(seconds, lead)[1]


def _begin_and_finish(seconds: Times, lead: float) -> tuple[Times, Times]:
    if not (lead >= 0 and (math.isinf(lead) or float(lead).is_integer())):
        raise ValueError(f"lead must be a number of steps, 0 or more, or infinite, not {lead!r}.")
    begin, finish = np.zeros_like(seconds), np.zeros_like(seconds)
    for step in range(seconds.shape[1]):
        previous = finish[:, step - 1] if step else 0.0
        slowest = finish[:, step - 1 - int(lead)].max() if step > lead else 0.0
        begin[:, step] = np.maximum(previous, slowest)
        finish[:, step] = begin[:, step] + seconds[:, step]
    return begin, finish


def gradients_per_second(seconds: Times, lead: float) -> float:
    """Return the gradients of all workers per second, while every worker is still running.

    With steps of t seconds on N workers, of which one is late by d in every step, the limit is
    N / (t + d) for sync, and (N - 1) / t + 1 / (t + d) for async. With any bound, the limit is
    that of sync.
    """
    finish = finish_times(seconds, lead)
    end = finish[:, -1].min()
    return float((finish <= end).sum() / end)


def mean_delay(seconds: Times, lead: float) -> float:
    """Return the mean number of other workers' updates between a gradient's start and its update.

    It is 0 for sync, because the gradients of a step are one update. The mean is over the time in
    which every worker is running.
    """
    begin, finish = _begin_and_finish(seconds, lead)
    if lead == 0:
        return 0.0
    order = np.sort(finish, axis=None)
    upto, since = (np.searchsorted(order, each, side="right") for each in (finish, begin))
    counted = finish <= finish[:, -1].min()
    return float((upto - since - 1)[counted].mean())
