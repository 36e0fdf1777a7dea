"""Decides which touches of tensors in use came too early, from the records of all ranks.

    rank 0                       rank 1
    isend(x, 1)  ------------->  recv(x, 0)
    recv(y, 1)   <-------------  send(y, 0)
    x += 1                       correct: rank 0 knows from y that rank 1 has received x

A vector clock of each rank holds the latest time on each other rank of which it knows, from the
messages and collectives that it has waited for. A send is known to be complete if its receive was
over at that time, and a receive if its message had been sent. A receive may also be posted early:
its tensor is free until the other rank, which waits for this one, sends. If the records leave a
doubt, the operation counts as complete, so that no correct program causes a warning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dtlab.ranks.protocol import Touch
from dtlab.trace import Records

__all__ = ["has_open_messages", "too_early"]

_NEVER = 1 << 62  # nanoseconds: later than any time


@dataclass(eq=False)
class _Op:
    """One operation of a rank. `done` is the end of the wait for it, `_NEVER` without a wait."""

    rank: int
    row: int
    name: str
    place: tuple[Any, ...]  # where it is matched: group, for messages also tag, source and target
    start: int
    done: int
    partners: list[_Op] = field(default_factory=list)  # it cannot end before these have begun
    clock: list[int] = field(default_factory=list)  # of its rank, when it began

    @property
    def is_message(self) -> bool:
        return self.name in ("send", "recv")


def too_early(
    records: Sequence[Records], touches: dict[int, list[Touch]]
) -> list[tuple[int, Touch]]:
    """The touches that came before their rank knew that the operation was complete, by rank."""
    if not any(touches.values()) or any(record.dropped for record in records):
        return []
    ops = [op for record in records for op in _ops(record)]
    _match(ops)
    asked = [(rank, touch) for rank in sorted(touches) for touch in touches[rank]]
    clocks = _clocks(ops, asked, records[0].world_size)
    op_at = {(op.rank, op.row): op for op in ops}
    found = []
    for (rank, touch), clock in zip(asked, clocks, strict=True):
        op = op_at[rank, touch.row]
        if touch.kind == "recv":  # what it receives may have been sent after the first arrived
            received = [later for later in _after(ops, rank, touch.time) if later.name == "recv"]
            for sent in received[0].partners if received else ():
                clock = [*map(max, clock, sent.clock)]
        if not _is_known(op, touch, clock, _after(ops, rank, op.start + 1)):
            found.append((rank, touch))
    return found


def has_open_messages(records: Sequence[Records]) -> bool:
    """Whether a rank has posted a message without waiting for it."""
    for record in records:
        is_message = np.isin(np.array(record.names)[record.comm[:, 0]], ("send", "recv"))
        if not np.isin(np.flatnonzero(is_message), record.blocked[:, 0]).all():
            return True
    return False


def _is_known(op: _Op, touch: Touch, clock: list[int], later: list[_Op]) -> bool:
    """Whether a rank whose clock is `clock`, and whose later operations are `later`, knows that
    `op` is complete.
    """
    if not op.is_message:
        return False  # the rank has not waited for this nor for a later collective (buffers.py)
    peer: int = op.place[-1] if op.name == "send" else op.place[-2]
    if peer < 0:
        return True  # from any source: which message it gets is not known
    if not op.partners:
        return touch.kind == "forgotten"  # there is no message
    (partner,) = op.partners
    if op.name == "recv":  # it has arrived, or was sent later than the touch and because of it
        return partner.start <= clock[peer] or partner.clock[op.rank] > touch.time
    over = partner.start if partner.done == _NEVER else partner.done
    in_order = (send.place[-1] == peer and send.done <= touch.time for send in later
                if send.name == "send")  # fmt: skip
    return over <= clock[peer] or any(in_order)


def _after(ops: list[_Op], rank: int, time: int) -> list[_Op]:
    return [op for op in ops if op.rank == rank and op.start >= time]


def _ops(record: Records) -> list[_Op]:
    """The operations of one rank, in the order of their rows."""
    waited: dict[int, int] = {}
    for row, _, end, _ in record.blocked.tolist():
        waited[row] = min(end, waited.get(row, _NEVER))
    ops = []
    for row, (name, group, peer, tag, _, _, start, *_) in enumerate(record.comm.tolist()):
        title, members = record.groups[group]
        place: tuple[Any, ...] = (title, tuple(members))
        if record.names[name] == "send":
            place = (*place, tag, record.rank, peer)
        elif record.names[name] == "recv":
            place = (*place, tag, peer, record.rank)
        done = waited.get(row, _NEVER)
        ops.append(_Op(record.rank, row, record.names[name], place, start, done))
    return ops


def _match(ops: list[_Op]) -> None:
    """Find the partners: the k-th send of a place, and the k-th collective of a group."""
    queues: defaultdict[Any, defaultdict[Any, list[_Op]]] = defaultdict(lambda: defaultdict(list))
    for op in sorted(ops, key=lambda op: op.start):
        queues[op.place][op.name if op.is_message else op.rank].append(op)
    for place, queue in queues.items():
        if "send" in queue or "recv" in queue:
            for send, recv in zip(queue["send"], queue["recv"], strict=False):
                send.partners, recv.partners = [recv], [send]
            continue
        for calls in zip(*(queue[rank] for rank in place[1]), strict=False):
            for op in calls:
                op.partners = list(calls)
                if op.done == _NEVER:  # C++ may have waited for it: at the earliest now
                    op.done = max(call.start for call in calls)


def _clocks(
    ops: list[_Op], asked: list[tuple[int, Touch]], world_size: int
) -> list[list[int]]:
    """Enter the clocks of operations; returns the clock of the rank at each touch."""
    now = [[0] * world_size for _ in range(world_size)]
    answers: list[list[int]] = [[] for _ in asked]
    events: list[tuple[int, int, int, _Op | None]] = []  # at equal times, the beginnings first
    events += [(op.start, 0, place, op) for place, op in enumerate(ops)]
    events += [(op.done, 1, place, op) for place, op in enumerate(ops) if op.done < _NEVER]
    events += [(touch.time, 2, place, None) for place, (_, touch) in enumerate(asked)]
    for time, what, place, op in sorted(events, key=lambda event: event[:3]):
        if op is None:
            answers[place] = now[asked[place][0]].copy()
        elif what == 0:
            now[op.rank][op.rank] = time
            op.clock = now[op.rank].copy()
        elif op.name != "send":
            for partner in op.partners:
                if partner.clock:
                    now[op.rank] = [*map(max, now[op.rank], partner.clock)]
    return answers
