"""What travels between the ranks of a pipeline, and in which order, so that no schedule can hang.

The two ranks of a pair handle their messages, of both directions, in one order that both know: by
the slot of the schedule's clock in which each is made.

    rank 0's list with rank 1     send 0F0, send 0F1, receive 1B0, send 0F2, receive 1B1
    rank 1's list with rank 0     receive 0F0, receive 0F1, send 1B0, receive 0F2, send 1B1

So the k-th operations of the two fit each other, also where a backend takes them strictly in turn
(NCCL). A rank posts all that comes before what it needs, and waits for nothing but

- a message that it needs now, which was made in an earlier slot, and
- a message of its own that the other one has used some slots ago.

Both wait for earlier slots only, so the rank that is furthest behind can always go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dtlab.schedules import Action, Schedule, stage_ranks, validate
from dtlab.schedules.actions import clock

__all__ = ["Layout", "Message", "Plan", "layout_of", "plan_of"]


class Message(NamedTuple):
    """The output of `action`, on its way to another rank: made in one slot, used in another."""

    action: Action
    source: int
    target: int
    made: int
    used: int


class Layout(NamedTuple):
    """What a receiver has to know to make room for a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def layout_of(tensors: tuple[Tensor, ...]) -> tuple[Layout, ...]:
    """The layouts of some tensors."""
    return tuple(Layout(tuple(one.shape), one.dtype) for one in tensors)


@dataclass
class Plan:
    """One rank's part of a schedule.

    `between` has for each peer all messages of the pair in their order. `layouts` has, by a number
    for the shapes of the whole batch, those of each message that this rank sends or receives; it
    fills as batches come.
    """

    schedule: Schedule
    rank: int
    homes: list[int]
    slots: list[int]
    between: dict[int, list[Message]]
    last_gradient: dict[int, int]  # for each stage, the index of its last B or W
    layouts: dict[int, dict[Action, tuple[Layout, ...]]] = field(default_factory=dict)

    @property
    def row(self) -> list[Action]:
        """What this rank does."""
        return self.schedule[self.rank]

    @property
    def last_stage(self) -> int:
        """The number of the stage that has the loss."""
        return len(self.homes) - 1


def plan_of(schedule: Schedule, rank: int) -> Plan:
    """The part of one rank. Raises: ScheduleError for a schedule that cannot run."""
    validate(schedule)
    slots = clock(schedule).slots
    homes = stage_ranks(schedule)
    between: dict[int, list[Message]] = {}
    for message in _messages(schedule, slots, homes):
        if rank in (message.source, message.target):
            peer = message.target if message.source == rank else message.source
            between.setdefault(peer, []).append(message)
    for messages in between.values():
        messages.sort(key=lambda message: (message.made, message.source))
    last = {action.stage: i for i, action in enumerate(schedule[rank]) if action.kind in "BW"}
    own = Schedule(list(row) for row in schedule)  # the caller may change his
    return Plan(own, rank, homes, slots[rank], between, last)


def _messages(schedule: Schedule, slots: list[list[int]], homes: list[int]) -> Iterator[Message]:
    """Outputs for the stage behind, input gradients (as B) for the one before."""
    when = {
        action._replace(kind="B" if action.kind == "I" else action.kind): slots[rank][index]
        for rank, row in enumerate(schedule)
        for index, action in enumerate(row)
    }
    for made in when:
        if made.kind != "W":
            used = made._replace(stage=made.stage + (1 if made.kind == "F" else -1))
            if used in when and homes[made.stage] != homes[used.stage]:
                source, target = homes[made.stage], homes[used.stage]
                yield Message(made, source, target, when[made], when[used])
