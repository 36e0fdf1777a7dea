"""Synchronous, asynchronous and bounded-staleness training: step times and staleness.

    sync       worker 0 |====|...........|====|...........|       everybody is in the same step
               worker 1 |================|================|
    bounded    worker 0 |====|====|......|====|...........|       1 step ahead at most
    async      worker 0 |====|====|====|====|====|====|====|      without limit

A worker that is ahead by `lead` steps waits for the slowest: 0 for sync, infinite for async. In
between: Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server". What pulls and pushes take is not counted.
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
    """How long each step of each worker takes, [workers, steps]: `seconds`, and one has a `delay`.

    The same worker has it in every step; with `turns` it is in each step another one, drawn
    from `seed`.
    Raises: ValueError for counts below 1 or times below 0.
    """
    if not (seconds > 0 and delay >= 0):
        raise ValueError(f"A step takes time, and a delay 0 or more; not {seconds!r}, {delay!r}.")
    times = np.full((check_count("workers", workers), check_count("steps", steps)), float(seconds))
    late = np.random.default_rng(seed).integers(workers, size=steps) if turns else workers - 1
    times[late, np.arange(steps)] += delay
    return times


def finish_times(seconds: Times, lead: float) -> Times:
    """When each worker finishes each step, [workers, steps], in seconds from the start.

    A worker begins step k when it has finished its own step k-1, and all have step k-1-lead.
    Raises: ValueError for a `lead` that is no whole number from 0 on, and not infinite.
    """
    return _begin_and_finish(seconds, lead)[1]


def _begin_and_finish(seconds: Times, lead: float) -> tuple[Times, Times]:
    if not (lead >= 0 and (math.isinf(lead) or float(lead).is_integer())):
        raise ValueError(f"lead is a number of steps from 0 on, or infinite, not {lead!r}.")
    begin, finish = np.zeros_like(seconds), np.zeros_like(seconds)
    for step in range(seconds.shape[1]):
        own = finish[:, step - 1] if step else 0.0
        slowest = finish[:, step - 1 - int(lead)].max() if step > lead else 0.0
        begin[:, step] = np.maximum(own, slowest)
        finish[:, step] = begin[:, step] + seconds[:, step]
    return begin, finish


def gradients_per_second(seconds: Times, lead: float) -> float:
    """Gradients of all workers together per second, as long as every one is still at work.

    With one late worker of N, over many steps: N / (t + d) for sync, (N - 1) / t + 1 / (t + d) for
    async, and in the long run what sync has for any bound.
    """
    finish = finish_times(seconds, lead)
    end = finish[:, -1].min()
    return float((finish <= end).sum() / end)


def mean_delay(seconds: Times, lead: float) -> float:
    """Updates by other workers between the start of a gradient and its own update, on average.

    0 for sync, where the gradients of a step are one update. Over the time in which every worker
    is at work.
    """
    begin, finish = _begin_and_finish(seconds, lead)
    if lead == 0:
        return 0.0
    order = np.sort(finish, axis=None)
    upto, since = (np.searchsorted(order, each, side="right") for each in (finish, begin))
    counted = finish <= finish[:, -1].min()
    return float((upto - since - 1)[counted].mean())
