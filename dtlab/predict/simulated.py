"""A schedule as columns of numbers, and its times: all ranks advance together, an action a round.

round   0   1   2   3 ...        in each round, every rank whose next action has all it needs
rank 0  0F0 0F1 0F2 .            does it, in its own seconds; ranks are one NumPy vector
rank 1  .   1F0 1F1 1B0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from dtlab.schedules import Action
from dtlab.schedules.actions import KINDS
from dtlab.trace.columns import Floats, Ints

__all__ = ["Actions", "Times", "tabulate"]

_F, _B, _I, _W = range(4)


class Times(NamedTuple):
    """Of each action, in seconds; `delay` is what a message took that it had to wait for."""

    start: Floats
    end: Floats
    delay: Floats


@dataclass(frozen=True)
class Actions:
    """One entry per action, rank by rank. `need` is the place of what it needs, -1 for nothing."""

    rank: Ints
    stage: Ints
    kind: Ints
    microbatch: Ints
    need: Ints
    lengths: Ints
    num_stages: int

    def run(self, costs: Floats) -> Times | None:
        """The times with these costs (F, B, I, W, communication by stage); None if it sticks."""
        row_ends = np.arange(len(self.rank)) + self.rank  # each row gets one entry more: its end
        padded = len(self.rank) + len(self.lengths)
        never, nothing = padded, padded + 1
        end = np.full(padded + 2, np.inf)
        end[nothing] = 0.0
        need = np.full(padded, never)
        need[row_ends] = np.where(self.need < 0, nothing, self.need + self.rank[self.need])
        away = (self.need >= 0) & (self.rank[self.need] != self.rank)
        delay = np.where(away, costs[4, self.stage[self.need]], 0.0)
        later, seconds = np.zeros((2, padded))
        later[row_ends], seconds[row_ends] = delay, costs[self.kind, self.stage]
        stop = np.cumsum(self.lengths + 1) - 1
        at, free = stop - self.lengths, np.zeros(len(stop))
        can = free == 0
        while can.any():
            until = np.maximum(end[need[at]] + later[at], free) + seconds[at]
            end[at] = until
            can = until < np.inf
            np.copyto(free, until, where=can)
            at += can
        if (at < stop).any():
            return None
        begun = np.maximum(end[need[row_ends]] + delay, self._before(end[row_ends]))
        return Times(begun, end[row_ends], delay)

    def _before(self, end: Floats) -> Floats:
        """When the action before it on the same rank ended; 0 for the first."""
        before = np.roll(end, 1)
        before[(np.cumsum(self.lengths) - self.lengths)[self.lengths > 0]] = 0.0
        return before


def tabulate(rows: Sequence[Sequence[Action]]) -> Actions | None:
    """Columns of a schedule; None where an action is missing, doubled or unknown."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    if not lengths.sum():
        return None
    stage, microbatch = (_column(rows, number) for number in (0, 2))
    letters = "".join(map(itemgetter(1), chain.from_iterable(rows)))
    if not set(letters) <= set(KINDS) or min(stage.min(), microbatch.min()) < 0:
        return None
    codes = np.frombuffer(letters.encode(), dtype=np.uint8)
    kind = np.array([KINDS.find(chr(code)) for code in range(128)])[codes]
    rank = np.repeat(np.arange(len(rows)), lengths)
    num_stages, num_microbatches = int(stage.max()) + 1, int(microbatch.max()) + 1
    cell = stage * num_microbatches + microbatch
    place = np.full((4, num_stages * num_microbatches), -1)
    place[kind, cell] = np.arange(len(cell))
    if not _complete(place, len(cell)) or not _one_rank(stage, rank, num_stages):
        return None
    gradient = np.where(place[_B] >= 0, place[_B], place[_I])
    need = np.where(kind == _W, place[_I][cell], -1)
    back = (kind == _B) | (kind == _I)
    behind = gradient[(cell + num_microbatches) % place.shape[1]]
    need = np.where(back, np.where(stage == num_stages - 1, place[_F][cell], behind), need)
    ahead = (kind == _F) & (stage > 0)
    need = np.where(ahead, place[_F][cell - num_microbatches], need)
    if (place[_F][cell[back]] > np.flatnonzero(back)).any():
        return None  # a backward before its own forward
    return Actions(rank, stage, kind, microbatch, need, lengths, num_stages)


def _column(rows: Sequence[Sequence[Action]], number: int) -> Ints:
    return np.fromiter(map(itemgetter(number), chain.from_iterable(rows)), np.int64)


def _complete(place: Ints, count: int) -> bool:
    """Every stage has each microbatch once: F, and either B or both of I and W."""
    there = place >= 0
    halves = (there[_I] == there[_W]).all() and (there[_B] != there[_I]).all()
    return bool(there[_F].all() and halves and there.sum() == count)


def _one_rank(stage: Ints, rank: Ints, num_stages: int) -> bool:
    home = np.zeros(num_stages, dtype=np.int64)
    home[stage] = rank
    return bool((home[stage] == rank).all())
