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

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
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


@dataclass
class _Question:
    """Whether the rank of `op` knew, when it touched the tensor, that `op` was complete.

    `received` is the receive into the tensor, if that was the touch. `clock` is that of the rank.
    """

    op: _Op
    touch: Touch
    received: _Op | None
    clock: list[int] = field(default_factory=list)


def too_early(
    records: Sequence[Records], touches: dict[int, list[Touch]]
) -> list[tuple[int, Touch]]:
    """The touches that came before their rank knew that the operation was complete, by rank."""
    if not any(touches.values()) or any(record.dropped for record in records):
        return []
    ops = {record.rank: _ops(record) for record in records}
    _match([op for own in ops.values() for op in own])
    asked = [
        _Question(
            ops[rank][touch.row],
            touch,
            _begun(ops[rank], "recv", touch.time) if touch.kind == "recv" else None,
        )
        for rank in sorted(touches)
        for touch in touches[rank]
    ]
    _answer(asked, ops, records[0].world_size)
    return [(one.op.rank, one.touch) for one in asked if not _is_known(one, ops[one.op.rank])]


def has_open_messages(records: Sequence[Records]) -> bool:
    """Whether a rank has posted a message without waiting for it."""
    for record in records:
        is_message = np.isin(np.array(record.names)[record.comm[:, 0]], ("send", "recv"))
        if not np.isin(np.flatnonzero(is_message), record.blocked[:, 0]).all():
            return True
    return False


def _is_known(asked: _Question, own: list[_Op]) -> bool:
    """Whether the rank, with operations `own`, knew that the operation was complete."""
    op, touch, clock = asked.op, asked.touch, asked.clock
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
    if touch.kind == "recv":  # what it receives may have been sent after the first arrived
        for sent in asked.received.partners if asked.received else ():
            clock = [*map(max, clock, sent.clock)]
    over = partner.start if partner.done == _NEVER else partner.done
    between = takewhile(lambda later: later.start < touch.time, islice(own, op.row + 1, None))
    later_sends = (later for later in between if later.name == "send" and later.place[-1] == peer)
    return over <= clock[peer] or any(later.done <= touch.time for later in later_sends)


def _begun(own: list[_Op], name: str, time: int) -> _Op | None:
    """The first operation with that name that a rank began at that time or later."""
    first = bisect_left(own, time, key=lambda op: op.start)
    return next((op for op in islice(own, first, None) if op.name == name), None)


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


def _answer(asked: list[_Question], ops: dict[int, list[_Op]], world_size: int) -> None:
    """Enter the clocks of the questions, and of all operations that matter for them."""
    now = [[0] * world_size for _ in range(world_size)]
    needed = [op for one in asked for op in (one.op, one.received) if op is not None]
    times = [one.touch.time for one in asked]
    times += [partner.start for op in needed if op.is_message for partner in op.partners]
    last = max(times)
    events: list[tuple[int, int, _Op | _Question]] = []  # at equal times, the beginnings first
    for own in ops.values():
        events += [(op.start, 0, op) for op in own if op.start <= last]
        events += [(op.done, 1, op) for op in own if op.done <= last]
    events += [(one.touch.time, 2, one) for one in asked]
    for time, _, event in sorted(events, key=lambda event: event[:2]):
        if isinstance(event, _Question):
            event.clock = now[event.op.rank].copy()
        elif time == event.start and not event.clock:
            now[event.rank][event.rank] = time
            event.clock = now[event.rank].copy()
        elif event.name != "send":
            for partner in event.partners:
                if partner.clock:
                    now[event.rank] = [*map(max, now[event.rank], partner.clock)]
