"""Generators of schedules. Rank r of p has stage r, or with chunks stages r, r + p, ...

                 idle slots of each rank     activations held at once
    naive        all but its own             1
    GPipe        p - 1 forward and backward  all microbatches
    1F1B         the same                    at most p
    interleaved  that, divided by chunks     a little more than 1F1B
    ZB-H1        about a third of 1F1B       p
    ZB-H2        none in the middle          2p - 1

naive, GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2019 and 2021), interleaved (Narayanan et
al. 2021, section 2.2), zero bubble (Qi et al. 2024, section 3).
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from itertools import accumulate, chain, repeat
from typing import ParamSpec

from dtlab.schedules.actions import Action, Schedule

__all__ = ["gpipe", "interleaved", "naive", "one_f_one_b", "zb_h1", "zb_h2"]

P = ParamSpec("P")


def _uncollected(make: Callable[P, Schedule]) -> Callable[P, Schedule]:
    """Half of the time of a million actions would go to the collector, and they make no cycles."""

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Schedule:
        was_on = gc.isenabled()
        gc.disable()
        try:
            return make(*args, **kwargs)
        finally:
            if was_on:
                gc.enable()

    return made


def naive(num_stages: int, num_microbatches: int) -> Schedule:
    """One microbatch after the other goes all the way forward, and all the way back.

            0   1   2   3   4   5   6   7
    rank 0 0F0         0B0 0F1         0B1
    rank 1     1F0 1B0         1F1 1B1
    """
    _check(num_stages, num_microbatches)
    return Schedule(
        [Action(rank, kind, k) for k in range(num_microbatches) for kind in "FB"]
        for rank in range(num_stages)
    )


def gpipe(num_stages: int, num_microbatches: int) -> Schedule:
    """All microbatches forward, then all backward.

            0   1   2   3   4   5   6   7
    rank 0 0F0 0F1 0F2         0B0 0B1 0B2
    rank 1     1F0 1F1 1F2 1B0 1B1 1B2
    """
    _check(num_stages, num_microbatches)
    return Schedule(
        [one for kind in "FB" for one in _actions(rank, kind, range(num_microbatches))]
        for rank in range(num_stages)
    )


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """Forward until the first gradient is due, then one forward, one backward in turns.

            0   1   2   3   4   5   6   7
    rank 0 0F0 0F1     0B0 0F2 0B1     0B2
    rank 1     1F0 1B0 1F1 1B1 1F2 1B2
    """
    return interleaved(num_stages, num_microbatches, 1)


@_uncollected
def interleaved(num_stages: int, num_microbatches: int, num_chunks: int) -> Schedule:
    """1F1B with `num_chunks` stages on each rank; `num_stages` is the number of ranks.

            0   1   2   3   4   5   6   7   8   9
    rank 0 0F0 0F1 2F0 2F1     2B0     2B1 0B0 0B1
    rank 1     1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1

    The model has num_stages * num_chunks stages. Microbatches go in rounds of about `num_stages`,
    and each round goes through all chunks of a rank before the next one begins. Megatron-LM asks
    for rounds of exactly that size; here the last rounds may be smaller.
    """
    _check(num_stages, num_microbatches, num_chunks)
    num_rounds = max(1, num_microbatches // num_stages)
    sizes = [(num_microbatches + k) // num_rounds for k in reversed(range(num_rounds))]
    ends = list(accumulate(sizes))
    rounds = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    schedule = Schedule()
    for rank in range(num_stages):
        stages = range(rank, num_stages * num_chunks, num_stages)
        forward = [one for some in rounds for s in stages for one in _actions(s, "F", some)]
        backward = [one for some in rounds for s in stages[::-1] for one in _actions(s, "B", some)]
        behind = num_stages - 1 - rank
        warm_up = behind if num_chunks == 1 else 2 * behind + (num_chunks - 1) * sizes[0]
        schedule.append(_in_turns(forward, backward, warm_up))
    return schedule


def zb_h1(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B whose weight gradients come later, where a rank would wait: no more memory than 1F1B.

            0   1   2   3   4   5   6   7   8   9  10  11  12
    rank 0 0F0 0F1     0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0I3 0W3
    rank 1     1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3
    """
    return _zero_bubble(num_stages, num_microbatches, lambda rank: (num_stages - 1 - rank, rank))


def zb_h2(num_stages: int, num_microbatches: int) -> Schedule:
    """More forwards at first, and weight gradients later still: hardly a bubble, twice the memory.

            0   1   2   3   4   5   6   7   8   9  10  11  12
    rank 0 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
    rank 1     1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3
    """
    return _zero_bubble(
        num_stages, num_microbatches, lambda rank: (2 * (num_stages - 1 - rank), 2 * rank)
    )


@_uncollected
def _zero_bubble(
    num_stages: int, num_microbatches: int, of_rank: Callable[[int], tuple[int, int]]
) -> Schedule:
    """`of_rank` gives the forwards before the first I, and by how many I's a W comes later."""
    _check(num_stages, num_microbatches)
    schedule = Schedule()
    for rank in range(num_stages):
        warm_up, lag = of_rank(rank)
        forward = _actions(rank, "F", range(num_microbatches))
        backward = _actions(rank, "I", range(num_microbatches))
        row = []
        for action in _in_turns(forward, backward, warm_up):
            row.append(action)
            if action.kind == "I" and action.microbatch >= lag:
                row.append(Action(rank, "W", action.microbatch - lag))
        left = range(max(0, num_microbatches - lag), num_microbatches)
        schedule.append(row + [Action(rank, "W", k) for k in left])
    return schedule


def _actions(stage: int, kind: str, microbatches: range) -> list[Action]:
    """A stage's actions of one kind. Made by `tuple` itself: in half of the constructor's time."""
    fields = zip(repeat(stage), repeat(kind), microbatches, strict=False)
    return list(map(tuple.__new__, repeat(Action), fields))


def _in_turns(forward: list[Action], backward: list[Action], warm_up: int) -> list[Action]:
    """So many forwards, then one forward and one backward in turns, then the backwards left."""
    steady = zip(forward[warm_up:], backward, strict=False)
    turns = max(0, len(forward) - warm_up)
    return [*forward[:warm_up], *chain.from_iterable(steady), *backward[turns:]]


def _check(*numbers: int) -> None:
    for name, number in zip(("stage", "microbatch", "chunk"), numbers, strict=False):
        if number < 1:
            raise ValueError(f"A schedule has at least one {name}, not {number!r}.")
