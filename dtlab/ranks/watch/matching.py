"""Matches operations of all ranks: do they fit together, and can they complete?

A small machine that follows what each rank did, in its order, under the rules that every backend
keeps: a collective is complete when all members have called it; a message, when its send and its
receive have both been posted. (gloo keeps this even for four bytes. A backend that buffers small
messages lets a send return earlier; a program that needs that hangs as soon as they grow.)

Because the rules leave nothing to chance, where nobody can go on in the machine nobody will ever
go on: no time limit is involved. The machine knows nothing of processes or clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dtlab.ranks.watch.board import (
    CALL,
    COLLECTIVE,
    ISSUE,
    LEFT,
    NEW_GROUP,
    QUEUE,
    RECV,
    SEND,
    SOURCE,
    STRANGER,
    WAIT,
    Record,
)

Kind = Literal["collective", "send", "recv", "new_group"]
Channel = tuple[int, int, int, int]  # group, from, to, tag
Inbox = tuple[int, int, int]  # group, to, tag
KINDS: dict[int, Kind] = {
    COLLECTIVE: "collective", SEND: "send", RECV: "recv", NEW_GROUP: "new_group"
}  # fmt: skip


@dataclass(eq=False)
class Op:
    """One operation of one rank."""

    rank: int
    record: Record
    name: str  # "all_reduce", "send", ...
    members: tuple[int, ...]  # of its group
    description: str  # "all_reduce(float32[4], SUM)"
    file: str
    complete: bool = False
    waiter: Actor | None = None

    @property
    def kind(self) -> Kind:
        """How it is matched."""
        return KINDS[self.record.role]

    @property
    def line(self) -> int:
        """The learner's line, 0 if unknown."""
        return self.record.place & 0xFFFFFF

    @property
    def partners(self) -> tuple[int, ...]:
        """The ranks that it needs."""
        if self.record.peer >= 0:
            return (self.record.peer,)
        return tuple(rank for rank in self.members if rank != self.rank)


@dataclass(eq=False)
class Actor:
    """One thread of one rank, as far as the machine has followed it."""

    rank: int
    thread: int
    blocked: Op | None = None
    left: bool = False


@dataclass(frozen=True)
class Misfit:
    """Operations of different ranks that belong together and do not fit."""

    reason: Literal["collective", "message", "stranger", "new_group"]
    ops: tuple[Op, ...]


class Machine:
    """Feed it the records of all ranks; ask whether they fit and whether anybody can go on.

    `describe(rank, record)` looks up what the numbers in a record stand for, as an `Op`.
    """

    def __init__(self, world_size: int, describe: Callable[[int, Record], Op]) -> None:
        self.world_size = world_size
        self.misfit: Misfit | None = None
        self._describe = describe
        self.actors = {(rank, 0): Actor(rank, 0) for rank in range(world_size)}
        self._queues: list[deque[Record]] = [deque() for _ in range(world_size)]  # to be followed
        self._ops: dict[tuple[int, int], Op] = {}  # by rank and index, until waited for
        self._rounds: dict[tuple[int, int], int] = {}  # (group, rank): collectives called
        self._meetings: dict[tuple[int, int], dict[int, Op]] = {}  # (group, number): who is there
        self._latest: dict[tuple[int, int], dict[int, Op]] = {}  # (group, rank): of each thread
        self._sends: dict[Channel, deque[Op]] = {}
        self._receives: dict[Channel, deque[Op]] = {}
        self._from_anybody: dict[tuple[int, int], Op] = {}  # by rank and number
        self._taken: list[Op] = []  # sends that some receive from anybody has surely taken

    # ------------------------------------------------------------------ feeding

    def feed(self, rank: int, records: Iterable[Record]) -> None:
        """Take what a rank did, in its order, and follow everybody as far as possible."""
        self._queues[rank].extend(records)
        self._follow(rank)

    def _follow(self, rank: int) -> None:
        ready = deque([rank])
        while ready:
            rank = ready.popleft()
            queue = self._queues[rank]
            while queue and self.misfit is None:
                actor = self._actor(rank, queue[0].thread)
                waits = actor.blocked is not None and queue[0].kind != SOURCE
                # A thread that did more has not been waiting any longer, but what it waited for
                # is not followed as far yet. What the rank did later, in any thread, comes later.
                if waits and not self._has_gone_on(actor):
                    break
                ready.extend(freed.rank for freed in self._step(actor, queue.popleft()))

    def _actor(self, rank: int, thread: int) -> Actor:
        actor = self.actors.get((rank, thread))
        if actor is None:
            actor = self.actors[rank, thread] = Actor(rank, thread)
        return actor

    def _step(self, actor: Actor, record: Record) -> Sequence[Actor]:
        """One record. Returns the actors that can go on because of it."""
        rank, kind = actor.rank, record.kind
        if kind in (ISSUE, CALL, QUEUE):
            op = self._describe(rank, record)
            freed = self._post(op)
            if kind == CALL and not op.complete:
                self._block(actor, op)
            elif kind != CALL and not op.complete:
                self._ops[rank, record.number] = op
            return freed
        if kind == WAIT:
            waited = self._ops.pop((rank, record.number), None)
            if waited is not None and not waited.complete:
                self._block(actor, waited)
        elif kind == SOURCE:
            return self._settle_source(actor, record)
        elif kind == STRANGER:
            self.misfit = Misfit("stranger", (self._describe(rank, record),))
        elif kind == LEFT:
            actor.left = True
        return ()

    def _block(self, actor: Actor, op: Op) -> None:
        actor.blocked, op.waiter = op, actor

    # ------------------------------------------------------------------ matching

    def _post(self, op: Op, again: bool = False) -> Sequence[Actor]:
        """Look for its counterpart. `again`: it comes before what was posted since."""
        if op.kind == "collective" or op.kind == "new_group":
            self._latest.setdefault((op.record.group, op.rank), {})[op.record.thread] = op
            return self._meet(op)
        record = op.record
        if op.kind == "recv" and record.peer < 0:
            self._from_anybody[op.rank, record.number] = op
            return self._senders_to(_inbox(op))
        channel = _channel(op)
        mine, theirs = self._sends, self._receives
        if op.kind == "recv":
            mine, theirs = theirs, mine
        if channel not in theirs:
            queue = mine.setdefault(channel, deque())
            queue.appendleft(op) if again else queue.append(op)
            return ()
        other = self._remove_first(theirs, channel)
        self._compare_messages(*((op, other) if op.kind == "send" else (other, op)))
        return [*self._complete(op), *self._complete(other)]

    def _meet(self, op: Op) -> Sequence[Actor]:
        """A collective: the n-th call of each member on its group belongs together."""
        record = op.record
        number = self._rounds.get((record.group, op.rank), 0)
        self._rounds[record.group, op.rank] = number + 1
        meeting = self._meetings.setdefault((record.group, number), {})
        for other in meeting.values():
            if other.record.signature != record.signature:
                reason: Literal["collective", "new_group"] = "collective"
                if op.kind == other.kind == "new_group":
                    reason = "new_group"
                self.misfit = Misfit(reason, tuple({**meeting, op.rank: op}.values()))
                return ()
            break
        meeting[op.rank] = op
        if len(meeting) < len(op.members):
            return ()
        del self._meetings[record.group, number]
        return [actor for each in meeting.values() for actor in self._complete(each)]

    def _complete(self, op: Op) -> Sequence[Actor]:
        op.complete = True
        self._ops.pop((op.rank, op.record.number), None)
        actor, op.waiter = op.waiter, None
        if actor is None:
            return ()
        actor.blocked = None
        return (actor,)

    # A receive from anybody takes some message that is there; which one is known only when it has
    # been waited for. Until then its senders are held for blocked, unless they have done more
    # since, and `could_come` speaks for them, so that there is no verdict that would have to be
    # taken back.

    def _has_gone_on(self, actor: Actor) -> bool:
        """Whether a rank that waited for a send has done more since: then somebody took it."""
        send = actor.blocked
        if send is None or send.kind != "send":
            return False
        if self._takers(_inbox(send)) <= len(self._taken_from(_inbox(send))):
            return False  # it was another receive, which is not known yet
        queue = self._sends[_channel(send)]
        if queue[0] is not send:
            return False  # an earlier message comes first
        self._remove_first(self._sends, _channel(send))
        self._taken.append(send)
        self._complete(send)
        return True

    def _takers(self, inbox: Inbox) -> int:
        return sum(_inbox(receive) == inbox for receive in self._from_anybody.values())

    def _taken_from(self, inbox: Inbox) -> list[Op]:
        return [send for send in self._taken if _inbox(send) == inbox]

    def _senders_to(self, inbox: Inbox) -> Sequence[Actor]:
        """Who waits for a message of its own to be received there."""
        ops = (op for queue in self._sends.values() for op in queue if _inbox(op) == inbox)
        return [op.waiter for op in ops if op.waiter is not None]

    def _settle_source(self, actor: Actor, record: Record) -> Sequence[Actor]:
        """A receive from anybody has got its message: from now on it is one from that sender."""
        actor.blocked = None
        receive = self._from_anybody.pop((actor.rank, record.number), None)
        if receive is None:
            return ()
        receive.record = receive.record._replace(peer=record.peer)
        receive.waiter = None
        taken = [one for one in self._taken if _channel(one) == _channel(receive)]
        if taken:
            self._taken.remove(taken[0])
            self._compare_messages(taken[0], receive)
            return self._complete(receive)
        freed = [*self._post(receive)]
        if not receive.complete:  # the sender is not followed as far as that yet
            self._block(actor, receive)
        return [*freed, *self._give_back(_inbox(receive))]

    def _give_back(self, inbox: Inbox) -> Sequence[Actor]:
        """Messages to `inbox` that, as it turns out, receives from a known sender have taken."""
        freed: list[Actor] = []
        for send in reversed(self._taken_from(inbox)[self._takers(inbox) :]):
            self._taken.remove(send)
            freed += self._post(send, again=True)
        return freed

    def _remove_first(self, queues: dict[Channel, deque[Op]], channel: Channel) -> Op:
        op = queues[channel].popleft()
        if not queues[channel]:
            del queues[channel]
        return op

    def _compare_messages(self, send: Op, receive: Op) -> None:
        if send.record.signature != receive.record.signature:
            self.misfit = Misfit("message", (send, receive))

    def likely_misfit(self) -> Misfit | None:
        """What does not fit, also where it is only likely which message was received."""
        if self.misfit is not None:
            return self.misfit
        for receive in self._from_anybody.values():
            for send in self._under_way(_inbox(receive)):
                if send.record.signature != receive.record.signature:
                    return Misfit("message", (send, receive))
        return None

    def several_threads(self, group: int) -> bool:
        """Whether collectives on a group were called in different threads, in one rank or in two.

        A second thread that a rank has not announced yet may have been met in another rank.
        """
        threads = {
            thread for (on, _), latest in self._latest.items() if on == group for thread in latest
        }
        return len(threads) > 1

    def crossed_threads(self) -> Misfit | None:
        """After a failure: collectives of different threads in one group that do not fit.

        Two threads of a rank may announce their operations in one order and start them in the
        other. Then the operations match here, and do not match in the backend.
        """
        for (group, rank), latest in self._latest.items():
            for other in range(rank + 1, self.world_size):
                for mine in latest.values():
                    for op in self._latest.get((group, other), {}).values():
                        threads = {*latest, *self._latest[group, other]}
                        if len(threads) > 1 and mine.record.signature != op.record.signature:
                            return Misfit("collective", (mine, op))
        return None

    def _under_way(self, inbox: Inbox) -> list[Op]:
        """Messages that a receive from anybody there may be taking."""
        taken = self._taken_from(inbox)
        if len(taken) >= self._takers(inbox):
            return taken
        return taken + [queue[0] for queue in self._sends.values() if _inbox(queue[0]) == inbox]

    def take_part(self, ranks: Sequence[int]) -> None:
        """These ranks go on, and all others do nothing more."""
        self._latest.clear()  # threads of an earlier turn prove nothing about this one
        for rank in range(self.world_size):
            self.actors[rank, 0].left = rank not in ranks

    # ------------------------------------------------------------------ asking

    def blocked(self) -> list[Op]:
        """What each blocked thread waits for, in the order of the ranks."""
        ops = [actor.blocked for actor in self.actors.values() if actor.blocked is not None]
        return sorted(ops, key=lambda op: (op.rank, op.record.thread))

    def free(self) -> set[int]:
        """Ranks that may still do something: neither blocked nor gone."""
        busy = set()
        for rank in range(self.world_size):
            main = self.actors[rank, 0]
            if main.blocked is None and not main.left:
                busy.add(rank)
        return busy

    def unmatched(self, rank: int) -> list[Op]:
        """Operations of a rank that are posted and not complete, the oldest first."""
        queues = [*self._sends.values(), *self._receives.values()]
        ops = [op for queue in queues for op in queue if op.rank == rank]
        ops += [meeting[rank] for meeting in self._meetings.values() if rank in meeting]
        return sorted(ops, key=lambda op: op.record.number)

    def could_come(self, op: Op) -> bool:
        """Whether a blocked message may be under way, to or from a receive from anybody."""
        if op.kind == "recv" and op.record.peer < 0:
            return bool(self._under_way(_inbox(op)))
        takers = self._from_anybody.values() if op.kind == "send" else ()
        return any(_inbox(receive) == _inbox(op) for receive in takers)


def _channel(op: Op) -> Channel:
    """What a message and its receive have in common."""
    record = op.record
    ends = (op.rank, record.peer) if op.kind == "send" else (record.peer, op.rank)
    return record.group, *ends, record.tag


def _inbox(op: Op) -> Inbox:
    """Where a message goes."""
    target = op.record.peer if op.kind == "send" else op.rank
    return op.record.group, target, op.record.tag
