"""A schedule as if every action took one slot, and messages none.

Each rank does its actions in order, each as soon as what it needs was done in an earlier slot.
Where ranks wait for each other in vain, one of them is let go, and that is noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dtlab.schedules.actions import Action, needs

__all__ = ["Clock", "Stuck", "clock"]


class Stuck(NamedTuple):
    """Ranks that wait in a circle: each, in its `index`-th action, for the next one's `need`."""

    ranks: tuple[int, ...]
    indices: tuple[int, ...]
    needs: tuple[Action, ...]


class Clock(NamedTuple):
    """The slot of each rank's each action, from 0 on, and the circles found on the way."""

    slots: list[list[int]]
    stuck: list[Stuck]


def clock(
    schedule: Sequence[Sequence[Action]], granted: Collection[tuple[int, int]] = ()
) -> Clock:
    """Run a schedule slot by slot. Actions at `granted`, as (rank, index), wait for nothing.

    Neither does anybody for what no rank does at all.
    """
    return _Run(schedule, granted).finish()


class _Run:
    def __init__(
        self, schedule: Sequence[Sequence[Action]], granted: Collection[tuple[int, int]]
    ) -> None:
        self.rows = schedule
        self.last = max((action.stage for row in schedule for action in row), default=0)
        self.home = {
            _as_needed(action): rank for rank, row in enumerate(schedule) for action in row
        }
        self.granted = set(granted)
        self.slots: list[list[int]] = [[] for _ in schedule]
        self.done: dict[Action, int] = {}
        self.waiting: dict[Action, list[int]] = {}
        self.stuck: list[Stuck] = []

    def finish(self) -> Clock:
        todo = deque(range(len(self.rows)))
        while todo or self._let_go(todo):
            self._advance(todo.popleft(), todo)
        return Clock(self.slots, self.stuck)

    def _advance(self, rank: int, todo: deque[int]) -> None:
        """As far as the rank can get; ranks that it sets free are to do."""
        row, slots = self.rows[rank], self.slots[rank]
        while len(slots) < len(row):
            action, slot = row[len(slots)], slots[-1] + 1 if slots else 0
            need = self._need(rank, len(slots))
            if need is not None and need not in self.done:
                self.waiting.setdefault(need, []).append(rank)
                return
            slots.append(slot if need is None else max(slot, self.done[need] + 1))
            gives = _as_needed(action)
            self.done.setdefault(gives, slots[-1])
            todo.extend(self.waiting.pop(gives, ()))

    def _need(self, rank: int, index: int) -> Action | None:
        if (rank, index) in self.granted:
            return None
        need = needs(self.rows[rank][index], self.last)
        return need if need in self.home else None

    def _let_go(self, todo: deque[int]) -> bool:
        """Nobody can move: note each circle of ranks, and let its ranks go on."""
        heads = {rank: need for need, ranks in self.waiting.items() for rank in ranks}
        seen: set[int] = set()
        for start in sorted(heads):
            path: list[int] = []
            rank = start
            while rank not in seen:
                seen.add(rank)
                path.append(rank)
                rank = self.home[heads[rank]]
            if rank not in path:  # it leads into a circle that is known
                continue
            ranks = path[path.index(rank) :]
            indices = tuple(len(self.slots[one]) for one in ranks)
            self.stuck.append(Stuck(tuple(ranks), indices, tuple(heads[one] for one in ranks)))
            self.granted.update(zip(ranks, indices, strict=True))
            for one in ranks:
                self.waiting[heads[one]].remove(one)
            todo.extend(ranks)
        return bool(todo)


def _as_needed(action: Action) -> Action:
    """As `needs` writes it: whoever waits for an input gradient takes that of I or of B."""
    return Action(action.stage, "B", action.microbatch) if action.kind == "I" else action
