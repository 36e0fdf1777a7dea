"""Generators of schedules: the order of the actions of each rank.

`0F1` is stage 0, forward, microbatch 1. B is a backward; its two halves are I (gradients of
inputs) and W (gradients of weights). p is the number of ranks. Rank r has stage r; with chunks it
has stages r, r + p, r + 2p, ... A microbatch is counted once for all chunks of a rank.

                 idle time of each rank                 microbatches held at once
    naive        while another rank computes            1
    GPipe        p - 1 forwards and p - 1 backwards     all
    1F1B         as GPipe                               at most p - r
    interleaved  1F1B's, divided by chunks              a little more than 1F1B
    ZB-H1        a third of 1F1B's, if F = I = W        p
    ZB-H2        only at start and end, if F = I = W    2p - 1

Sources: Huang et al. 2019 (GPipe), Narayanan et al. 2019 and 2021 (1F1B), Narayanan et al. 2021,
section 2.2 (interleaved), Qi et al. 2024, section 3 (zero bubble: ZB-H1 and ZB-H2).
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


def _without_gc(make: Callable[P, Schedule]) -> Callable[P, Schedule]:
    """Switch the garbage collector off while a schedule is built.

    A schedule of a million actions has no reference cycles, and the collector would take half of
    the time.
    """

    @functools.wraps(make)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Schedule:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return make(*args, **kwargs)
        finally:
            if was_enabled:
                gc.enable()

    return wrapper


def naive(num_stages: int, num_microbatches: int) -> Schedule:
    """Return a schedule that takes one microbatch at a time through all stages and back.

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
    """Return a schedule with all forwards first, then all backwards.

            0   1   2   3   4   5   6   7
    rank 0 0F0 0F1 0F2         0B0 0B1 0B2
    rank 1     1F0 1F1 1F2 1B0 1B1 1B2
    """
    _check(num_stages, num_microbatches)
    return Schedule(
        [action for kind in "FB" for action in _actions(rank, kind, range(num_microbatches))]
        for rank in range(num_stages)
    )


@_without_gc
def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """Return 1F1B: forwards until the first gradient arrives, then F and B alternately.

            0   1   2   3   4   5   6   7
    rank 0 0F0 0F1     0B0 0F2 0B1     0B2
    rank 1     1F0 1B0 1F1 1B1 1F2 1B2
    """
    _check(num_stages, num_microbatches)
    schedule = Schedule()
    for rank in range(num_stages):
        forward, backward = (_actions(rank, kind, range(num_microbatches)) for kind in "FB")
        # This rank first runs a forward for each later rank: the first gradient takes that long.
        # Then it runs a forward and a backward in turns, and finally the remaining backwards.
        schedule.append(_in_turns(forward, backward, warm_up=num_stages - 1 - rank))
    return schedule


@_without_gc
def interleaved(num_ranks: int, num_microbatches: int, num_chunks: int) -> Schedule:
    """Return 1F1B with `num_chunks` stages on each rank, so with num_ranks * num_chunks stages.

            0   1   2   3   4   5   6   7   8   9
    rank 0 0F0 0F1 2F0 2F1     2B0     2B1 0B0 0B1
    rank 1     1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1

    Microbatches run in rounds, and each round runs through all chunks of a rank before the next
    round begins. Megatron-LM requires rounds of exactly `num_ranks` microbatches. Here a round has
    at least `num_ranks` microbatches, or all if there are fewer. The sizes of rounds differ by at
    most 1, and larger rounds come first.
    """
    _check(num_ranks, num_microbatches, num_chunks)
    num_rounds = max(1, num_microbatches // num_ranks)
    sizes = [(num_microbatches + k) // num_rounds for k in reversed(range(num_rounds))]
    ends = list(accumulate(sizes))
    rounds = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    schedule = Schedule()
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * num_chunks, num_ranks)
        forward = [a for group in rounds for s in stages for a in _actions(s, "F", group)]
        backward = [a for group in rounds for s in stages[::-1] for a in _actions(s, "B", group)]
        # A rank warms up with a round through all chunks but its last, and 2 more forwards for
        # each later rank: the messages to the last rank and back. So it need not wait for the
        # first gradient. With one chunk the schedule is 1F1B: the rank waits for the first
        # gradient, and holds fewer activations.
        later_ranks = num_ranks - 1 - rank
        warm_up = later_ranks if num_chunks == 1 else 2 * later_ranks + (num_chunks - 1) * sizes[0]
        schedule.append(_in_turns(forward, backward, warm_up))
    return schedule


def zb_h1(num_stages: int, num_microbatches: int) -> Schedule:
    """Return 1F1B with weight gradients in slots in which ranks would wait; needs no more memory.

            0   1   2   3   4   5   6   7   8   9  10  11  12
    rank 0 0F0 0F1     0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0I3 0W3
    rank 1     1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3
    """
    return _zero_bubble(num_stages, num_microbatches, lambda rank: (num_stages - 1 - rank, rank))


def zb_h2(num_stages: int, num_microbatches: int) -> Schedule:
    """Return a schedule with almost no bubble: more forwards first, W later, twice 1F1B's memory.

            0   1   2   3   4   5   6   7   8   9  10  11  12
    rank 0 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
    rank 1     1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3
    """
    return _zero_bubble(
        num_stages, num_microbatches, lambda rank: (2 * (num_stages - 1 - rank), 2 * rank)
    )


@_without_gc
def _zero_bubble(
    num_stages: int, num_microbatches: int, of_rank: Callable[[int], tuple[int, int]]
) -> Schedule:
    """Build a schedule of F, I and W.

    `of_rank` returns the number of forwards before F and I alternate, and the lag of W: the W of
    microbatch k runs after the I of microbatch k + lag.
    """
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
        remaining = range(max(0, num_microbatches - lag), num_microbatches)
        schedule.append(row + [Action(rank, "W", k) for k in remaining])
    return schedule


def _actions(stage: int, kind: str, microbatches: range) -> list[Action]:
    """Return a stage's actions of one kind; `tuple.__new__` takes half the constructor's time."""
    fields = zip(repeat(stage), repeat(kind), microbatches, strict=False)
    return list(map(tuple.__new__, repeat(Action), fields))


def _in_turns(forward: list[Action], backward: list[Action], warm_up: int) -> list[Action]:
    """Return `warm_up` forwards, then F and B alternately, then the remaining backwards."""
    steady = zip(forward[warm_up:], backward, strict=False)
    turns = max(0, len(forward) - warm_up)
    return [*forward[:warm_up], *chain.from_iterable(steady), *backward[turns:]]


def _check(*numbers: int) -> None:
    for name, number in zip(("stage", "microbatch", "chunk"), numbers, strict=False):
        if number < 1:
            raise ValueError(f"A schedule needs at least one {name}, not {number!r}.")
