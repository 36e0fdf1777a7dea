"""Messages between pipeline stages: the order of sends and receives, and receives posted ahead.

A rank must know the shapes of the tensors that it receives. All shapes follow from the shapes of
the first stage's input. So with each batch the first stage's rank sends all other ranks a number
that identifies the batch's shapes. When a number is new, every output is sent with a header that
contains its shape. After that all ranks know the shapes, and receives are posted before they are
needed. A gradient has the shape of its output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.schedules import Action, Schedule, stage_ranks, validate
from dtlab.schedules.actions import clock

__all__ = ["Layout", "Message", "Plan", "Post", "agree_on_shapes", "layout_of", "plan_of"]

AHEAD = 2  # receives per peer that are posted before they are needed
SLACK = 4  # slots after which the receiver must have used a message
HEADER = 64  # integers: number of tensors, then dtype, number of dims and sizes of each
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
Tensors = tuple[Tensor, ...]


def agree_on_shapes(
    plan: Plan,
    known: dict[tuple[tuple[Layout, ...], ...], int],
    inputs: Sequence[Tensors] | None,
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> int:
    """Return an id of this batch's shapes; the first stage's rank keeps the ids in `known`."""
    first = plan.homes[0]
    shapes_id = torch.zeros(1, dtype=torch.int64, device=device)
    if plan.rank != first:
        dist.recv(shapes_id, group=group, group_src=first)
        return int(shapes_id)
    shapes = tuple(layout_of(tensors) for tensors in inputs or ())
    shapes_id.fill_(known.setdefault(shapes, len(known)))
    receivers = [rank for rank, row in enumerate(plan.schedule) if row and rank != first]
    for work in [dist.isend(shapes_id, group=group, group_dst=rank) for rank in receivers]:
        _wait(work)
    return int(shapes_id)


class Post:
    """Sends and receives one rank's messages of a step whose shapes have the id `shapes_id`."""

    def __init__(
        self, plan: Plan, shapes_id: int, group: dist.ProcessGroup | None, device: torch.device
    ) -> None:
        self._plan, self._group, self._device = plan, group, device
        self._is_new = shapes_id not in plan.layouts
        self._layouts = plan.layouts.setdefault(shapes_id, {})
        self._queues = {peer: deque(messages) for peer, messages in plan.between.items()}
        self._posted: dict[Action, tuple[Tensors, list[dist.Work]]] = {}
        self._ahead = dict.fromkeys(self._queues, 0)
        self._sent: deque[tuple[int, Tensors, list[dist.Work]]] = deque()  # with the slot of use
        self._here: dict[Action, Tensors] = {}  # from one stage of this rank to another
        if not self._is_new:
            for peer in self._queues:
                self._look_ahead(peer)

    def send(self, action: Action, tensors: Tensors) -> None:
        """Send the result of an action to the rank that uses it; for I, pass the action as B."""
        peer = self._peer(action)
        if peer == self._plan.rank:
            self._here[action] = tensors
            return
        self._post_up_to(peer, action)
        message = self._queues[peer].popleft()
        tensors = tuple(tensor.contiguous() for tensor in tensors)
        headers = self._headers(action, tensors)
        works = [
            dist.isend(tensor, group=self._group, group_dst=peer)
            for tensor in (*headers, *tensors)
        ]
        self._sent.append(
            (message.used_slot, (*headers, *tensors), [work for work in works if work])
        )
        if not self._is_new:
            self._look_ahead(peer)

    def take(self, action: Action) -> Tensors:
        """Wait for the result of an action of another stage, and return it."""
        if action in self._here:
            return self._here.pop(action)
        if action not in self._posted:
            peer = self._plan.homes[action.stage]
            self._post_up_to(peer, action)
            self._receive(peer)
        tensors, works = self._posted.pop(action)
        for work in works:
            work.wait()
        peer = self._plan.homes[action.stage]
        self._ahead[peer] -= 1
        if not self._is_new:
            self._look_ahead(peer)
        return tensors

    def wait_for_old_sends(self, slot: float) -> None:
        """Wait for sends used more than `SLACK` slots before this slot, and free their tensors."""
        while self._sent and self._sent[0][0] < slot - SLACK:
            for work in self._sent.popleft()[2]:
                work.wait()

    # ------------------------------------------------------------------ in the order of the plan

    def _peer(self, action: Action) -> int:
        return self._plan.homes[action.stage + (1 if action.kind == "F" else -1)]

    def _post_up_to(self, peer: int, action: Action) -> None:
        """Post the receives that come before an action's message."""
        while self._queues[peer][0].action != action:
            self._receive(peer)

    def _look_ahead(self, peer: int) -> None:
        """Post the next receives, up to `AHEAD` of them."""
        queue = self._queues[peer]
        while queue and queue[0].target == self._plan.rank and self._ahead[peer] < AHEAD:
            self._receive(peer)

    def _receive(self, peer: int) -> None:
        message = self._queues[peer].popleft()
        buffers = tuple(
            torch.empty(layout.shape, dtype=layout.dtype, device=self._device)
            for layout in self._expected(message, peer)
        )
        works = [dist.irecv(buffer, group=self._group, group_src=peer) for buffer in buffers]
        self._posted[message.action] = buffers, [work for work in works if work]
        self._ahead[peer] += 1

    # ------------------------------------------------------------------ shapes

    def _expected(self, message: Message, peer: int) -> tuple[Layout, ...]:
        stage, kind, microbatch = message.action
        if kind == "B":  # the shapes of the floating-point tensors that this rank sent
            sent = self._layouts[Action(stage - 1, "F", microbatch)]
            return tuple(layout for layout in sent if layout.dtype.is_floating_point)
        if self._is_new:
            header = torch.empty(HEADER, dtype=torch.int64, device=self._device)
            dist.recv(header, group=self._group, group_src=peer)
            self._layouts[message.action] = _read(header.tolist())
        return self._layouts[message.action]

    def _headers(self, action: Action, tensors: Tensors) -> Tensors:
        """Return the header of an output; none if its shape is known."""
        if action.kind == "B":
            return ()
        layouts = layout_of(tensors)
        if self._is_new:
            self._layouts[action] = layouts
            return (torch.tensor(_written(layouts), device=self._device),)
        if layouts != self._layouts[action]:
            raise ValueError(
                f"stage {action.stage} returned {_words(layouts)} for microbatch "
                f"{action.microbatch}, but {_words(self._layouts[action])} for an earlier batch "
                "of the same shapes. The shapes of outputs must depend only on those of inputs."
            )
        return ()


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def _written(layouts: Sequence[Layout]) -> list[int]:
    numbers = [len(layouts)]
    for shape, dtype in layouts:
        numbers += [DTYPES.index(dtype), len(shape), *shape]
    if len(numbers) > HEADER:
        raise ValueError(f"a stage's output of {_words(layouts)} does not fit into one header.")
    return numbers + [0] * (HEADER - len(numbers))


def _read(numbers: list[int]) -> tuple[Layout, ...]:
    layouts, at = [], 1
    for _ in range(numbers[0]):
        start, end = at + 2, at + 2 + numbers[at + 1]
        layouts.append(Layout(tuple(numbers[start:end]), DTYPES[numbers[at]]))
        at = end
    return tuple(layouts)


def _words(layouts: Sequence[Layout]) -> str:
    return ", ".join(f"{list(shape)} {str(dtype)[6:]}" for shape, dtype in layouts)


# The order of messages between two ranks of a pipeline, which makes deadlock impossible ----------
#
# Each pair of ranks handles its messages, in both directions, in one order, which both ranks
# compute: by the slot of the schedule's clock in which a message is produced.
#
#     rank 0's list with rank 1     send 0F0, send 0F1, receive 1B0, send 0F2, receive 1B1
#     rank 1's list with rank 0     receive 0F0, receive 0F1, send 1B0, receive 0F2, send 1B1
#
# So the k-th operations of the two ranks match, even on a backend that runs them strictly in order
# (NCCL). A rank posts all operations that precede the message it needs, and waits only for
#
# - a message that it needs now, which was produced in an earlier slot, and
# - a message that it sent and that the peer used some slots ago.
#
# Both messages belong to earlier slots, so the rank that is furthest behind can always proceed.


class Message(NamedTuple):
    """The output of `action`, sent to another rank: produced in one slot, used in another."""

    action: Action
    source: int
    target: int
    sent_slot: int
    used_slot: int


class Layout(NamedTuple):
    """Shape and dtype, which a receiver needs to allocate a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def layout_of(tensors: tuple[Tensor, ...]) -> tuple[Layout, ...]:
    """Return the layout of each tensor."""
    return tuple(Layout(tuple(tensor.shape), tensor.dtype) for tensor in tensors)


@dataclass
class Plan:
    """One rank's part of a schedule.

    `homes` has the rank of each stage, and `slots` the slot of each of this rank's actions.
    `between` lists for each peer all messages of the pair, in order. `layouts` maps the id of a
    batch's shapes to the layouts of all messages that this rank sends or receives; entries are
    added when new shapes occur.
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
        """This rank's actions."""
        return self.schedule[self.rank]

    @property
    def last_stage(self) -> int:
        """The number of the stage that computes the loss."""
        return len(self.homes) - 1


def plan_of(schedule: Schedule, rank: int) -> Plan:
    """Return the plan of one rank. Raises: ScheduleError for an invalid schedule."""
    validate(schedule)
    slots = clock(schedule).slots
    homes = stage_ranks(schedule)
    between: dict[int, list[Message]] = {}
    for message in _messages(schedule, slots, homes):
        if rank in (message.source, message.target):
            peer = message.target if message.source == rank else message.source
            between.setdefault(peer, []).append(message)
    for messages in between.values():
        messages.sort(key=lambda message: (message.sent_slot, message.source))
    last = {action.stage: i for i, action in enumerate(schedule[rank]) if action.kind in "BW"}
    copied = Schedule(list(row) for row in schedule)  # the caller may change the original
    return Plan(copied, rank, homes, slots[rank], between, last)


def _messages(schedule: Schedule, slots: list[list[int]], homes: list[int]) -> Iterator[Message]:
    """Yield outputs for the next stage and input gradients (as B) for the previous stage."""
    when = {
        action._replace(kind="B" if action.kind == "I" else action.kind): slots[rank][index]
        for rank, row in enumerate(schedule)
        for index, action in enumerate(row)
    }
    for action in when:
        if action.kind != "W":
            used = action._replace(stage=action.stage + (1 if action.kind == "F" else -1))
            if used in when and homes[action.stage] != homes[used.stage]:
                source, target = homes[action.stage], homes[used.stage]
                yield Message(action, source, target, when[action], when[used])
