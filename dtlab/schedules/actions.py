"""Actions of a pipeline, schedules made of them, and the slot-by-slot grid of a schedule.

An action is what a rank does with one microbatch on one stage:

    F   forward               needs the output of the previous stage
    B   whole backward        needs the input gradient of the next stage
    I   input gradient        needs the input gradient of the next stage
    W   weight gradient       needs the I of the same stage

B is I and W together. The letters are PyTorch's; the Zero Bubble paper calls our I "B".

`clock` runs a schedule as if every action took one slot and messages took no time. `grid` draws it
as text: a line for each rank, a column for each slot.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

__all__ = [
    "KINDS", "MOST", "Action", "Clock", "Row", "Schedule", "Stuck", "as_schedule", "clock", "grid",
    "needs", "stage_ranks",
]  # fmt: skip

KINDS = "FBIW"
_WRITTEN = re.compile(r"(\d+)([FBIW])(\d+)")


class Action(NamedTuple):
    """One stage's work on one microbatch: kind "F", "B", "I" or "W". `Action.parse("2F0")`."""

    stage: int
    kind: str
    microbatch: int

    @classmethod
    def parse(cls, written: str) -> Action:
        """Parse text such as "2F0". Raises: ValueError for any other text."""
        match = _WRITTEN.fullmatch(written.strip())
        if not match:
            raise ValueError(
                f"{written!r} is no action. Write stage, letter and microbatch, as in 2F0; "
                "the letters are F, B, I and W."
            )
        return cls(int(match[1]), match[2], int(match[3]))

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    def __repr__(self) -> str:
        return str(self)


Row = Sequence[Action | tuple[int, str, int] | str]


class Schedule(list[list[Action]]):
    """A list of actions for each rank, in the order in which the rank runs them."""

    def __str__(self) -> str:
        return grid(self)

    __repr__ = __str__


def as_schedule(rows: Iterable[Row]) -> Schedule:
    """Convert text ("2F0") and tuples in `rows` to actions; `rows` itself is not changed.

    Raises: ValueError if `rows` is not one list of actions for each rank.
    """
    if isinstance(rows, Schedule):
        return rows
    return Schedule(
        [_as_action(action) for action in _as_list(row, f"rank {rank} has {row!r}")]
        for rank, row in enumerate(_as_list(rows, f"{rows!r} is no schedule"))
    )


def _as_list(value: Any, problem: str) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(
            f"{problem}. A schedule has one list of actions for each rank, such as "
            '[["0F0", "0B0"], ["1F0", "1B0"]].'
        )
    return list(value)


def _as_action(written: Any) -> Action:
    if isinstance(written, str):
        return Action.parse(written)
    try:
        return Action(*written)
    except TypeError:
        raise ValueError(
            f'{written!r} is no action. Write it as text, "2F0", or as a tuple, (2, "F", 0).'
        ) from None


def needs(action: Action, last_stage: int) -> Action | None:
    """Return the action that this one needs, or None; a B stands for I if backward is split.

    B and I both compute the input gradient, so B names both. A backward depends directly
    on a forward only on the last stage; on other stages it depends on the next stage's backward.
    """
    stage, kind, microbatch = action
    if kind == "F":
        return Action(stage - 1, "F", microbatch) if stage else None
    if kind == "W":
        return Action(stage, "B", microbatch)
    if stage == last_stage:
        return Action(stage, "F", microbatch)
    return Action(stage + 1, "B", microbatch)


def stage_ranks(schedule: Sequence[Sequence[Action]]) -> list[int]:
    """Return the rank of each stage's first action. Raises: ValueError for a missing stage."""
    homes: dict[int, int] = {}
    for rank, row in enumerate(schedule):
        for action in row:
            homes.setdefault(action[0], rank)
    missing = sorted(set(range(max(homes, default=-1) + 1)) - set(homes))
    if missing:
        raise ValueError(f"No rank has stage {missing[0]}.")
    return [homes[stage] for stage in range(len(homes))]


# Slot by slot -----------------------------------------------------------------------------------


class Stuck(NamedTuple):
    """A cycle of ranks: each waits, in its `index`-th action, for the next rank's `need`."""

    ranks: tuple[int, ...]
    indices: tuple[int, ...]
    needs: tuple[Action, ...]


class Clock(NamedTuple):
    """The slot of each action of each rank, from 0 on, and the cycles that were found."""

    slots: list[list[int]]
    stuck: list[Stuck]


def clock(
    schedule: Sequence[Sequence[Action]], granted: Collection[tuple[int, int]] = ()
) -> Clock:
    """Run a schedule as if every action took one slot, and messages took no time.

    Each rank runs its actions in order, each action as soon as its dependency ran in an earlier
    slot. If ranks wait for each other in a cycle, the cycle is recorded and its ranks proceed.
    Actions at `granted`, as (rank, index), do not wait. A dependency that no rank has is ignored.
    """
    return _SlotRunner(schedule, granted).finish()


class _SlotRunner:
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
        while todo or self._break_cycles(todo):
            self._advance(todo.popleft(), todo)
        return Clock(self.slots, self.stuck)

    def _advance(self, rank: int, todo: deque[int]) -> None:
        """Run the rank until it must wait; append the ranks that it unblocks to `todo`."""
        row, slots = self.rows[rank], self.slots[rank]
        while len(slots) < len(row):
            action, slot = row[len(slots)], slots[-1] + 1 if slots else 0
            need = self._need(rank, len(slots))
            if need is not None and need not in self.done:
                self.waiting.setdefault(need, []).append(rank)
                return
            slots.append(slot if need is None else max(slot, self.done[need] + 1))
            result = _as_needed(action)
            self.done.setdefault(result, slots[-1])
            todo.extend(self.waiting.pop(result, ()))

    def _need(self, rank: int, index: int) -> Action | None:
        if (rank, index) in self.granted:
            return None
        need = needs(self.rows[rank][index], self.last)
        return need if need in self.home else None

    def _break_cycles(self, todo: deque[int]) -> bool:
        """Resolve a deadlock: record each cycle of ranks, and let its ranks proceed."""
        needed = {rank: need for need, ranks in self.waiting.items() for rank in ranks}
        visited: set[int] = set()
        for start in sorted(needed):
            path: list[int] = []
            rank = start
            while rank not in visited:
                visited.add(rank)
                path.append(rank)
                rank = self.home[needed[rank]]
            if rank not in path:  # the path leads into a known cycle
                continue
            ranks = path[path.index(rank) :]
            indices = tuple(len(self.slots[waiter]) for waiter in ranks)
            self.stuck.append(Stuck(tuple(ranks), indices, tuple(needed[w] for w in ranks)))
            self.granted.update(zip(ranks, indices, strict=True))
            for waiter in ranks:
                self.waiting[needed[waiter]].remove(waiter)
            todo.extend(ranks)
        return bool(todo)


def _as_needed(action: Action) -> Action:
    """Name an action as `needs` does: I becomes B, because either computes the input gradient."""
    return Action(action.stage, "B", action.microbatch) if action.kind == "I" else action


# As text ----------------------------------------------------------------------------------------

MOST = 60  # columns that fit on a page


def grid(
    schedule: Iterable[Row],
    *,
    marked: Collection[tuple[int, int]] = (),
    most: int = MOST,
    times: Clock | None = None,
    width: int | None = None,
) -> str:
    """Draw the schedule as if each action took one slot.

    `marked` actions, as (rank, index), are in brackets. A grid of more than `most` slots, or of
    more than `width` characters in a line, is cut. The part shown then begins at slot 0, or
    shortly before the first marked action.
    """
    rows = as_schedule(schedule)
    slots = (times or clock(rows)).slots
    columns = max((row[-1] + 1 for row in slots if row), default=0)
    texts = [[""] * columns for _ in rows]
    for rank, row in enumerate(rows):
        for index, (action, slot) in enumerate(zip(row, slots[rank], strict=True)):
            texts[rank][slot] = f"[{action}]" if (rank, index) in marked else str(action)
    names = [f"rank {rank}" for rank in range(len(rows))]
    left = max(map(len, names), default=0)
    cell = max((len(text) for row in texts for text in row), default=1)
    if width is not None:
        most = max(1, min(most, (width - left) // (cell + 1)))
    first, end = _window(columns, most, [slots[rank][index] for rank, index in marked])
    heads = ["", *names]
    lines = [[str(slot) for slot in range(columns)], *texts]
    drawn = [
        f"{head:{left}} " + " ".join(f"{text:^{cell}}" for text in line[first:end])
        for head, line in zip(heads, lines, strict=True)
    ]
    cut = f"\n(slots {first} to {end - 1} of {columns})" if end - first < columns else ""
    return "\n".join(line.rstrip() for line in drawn) + cut


def _window(columns: int, most: int, marked: list[int]) -> tuple[int, int]:
    """Return the first column shown, and the end of the columns shown."""
    start = min(marked, default=0)
    first = max(0, min(start - most // 4, columns - most)) if start > 3 * most // 4 else 0
    return first, min(columns, first + most)
