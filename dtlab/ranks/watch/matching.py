"""Matches the operations of all ranks: do they agree, and can they complete?

A state machine that processes the operations of each rank in order, under rules that hold for
every backend: a collective is complete when all members have called it; a message is complete when
its send and its receive have both been posted. (gloo does this even for four bytes. A backend
that buffers small messages lets a send return earlier, but a program that relies on it hangs as
soon as the messages grow.)

The rules are deterministic. So if no rank can make progress in the machine, none ever will, and no
time limit is needed. The machine uses neither processes nor clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from dtlab.ranks.watch.board import (
    CALL,
    COLLECTIVE,
    ISSUE,
    LEFT,
    NEW_GROUP,
    POLL,
    QUEUE,
    RECV,
    SEND,
    SIZES,
    SIZES_AT_ONCE,
    SOURCE,
    STRANGER,
    WAIT,
    Record,
)

Kind = Literal["collective", "send", "recv", "new_group"]
Channel = tuple[int, int, int, int]  # group, from, to, tag
Inbox = tuple[int, int, int]  # group, to, tag
MOST_SIZES = 1 << 16
KINDS: dict[int, Kind] = {
    COLLECTIVE: "collective", SEND: "send", RECV: "recv", NEW_GROUP: "new_group"
}  # fmt: skip


class Sized(Protocol):
    """An operation that has sizes by rank: an `Op`, or an `OpInfo`."""

    @property
    def rank(self) -> int: ...
    @property
    def members(self) -> tuple[int, ...]: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...


@dataclass(eq=False)
class Op:
    """One operation of one rank."""

    rank: int
    record: Record
    name: str  # "all_reduce", "send", ...
    members: tuple[int, ...]  # ranks of its group
    description: str  # "all_reduce(float32[4], SUM)"
    file: str
    complete: bool = False
    waiter: Actor | None = None
    wait_place: int = 0  # as `Record.place`, of the wait or poll for it; 0 if none is known
    sizes: tuple[int, ...] = ()  # of an all-to-all, as in `Extra` (record/layouts.py)

    @property
    def kind(self) -> Kind:
        """How the operation is matched."""
        return KINDS[self.record.role]

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.kind in ("send", "recv")

    @property
    def line(self) -> int:
        """The line in the learner's code; 0 if unknown."""
        return self.record.place & 0xFFFFFF

    @property
    def partners(self) -> tuple[int, ...]:
        """The ranks that the operation waits for."""
        if self.record.peer >= 0:
            return (self.record.peer,)
        return tuple(rank for rank in self.members if rank != self.rank)


@dataclass(eq=False)
class Actor:
    """The state of one thread of one rank, after the records processed so far."""

    rank: int
    thread: int
    blocked: Op | None = None
    left: bool = False


@dataclass(frozen=True)
class Misfit:
    """Operations of different ranks that belong together but do not match."""

    reason: Literal["collective", "message", "stranger", "new_group", "sizes"]
    ops: tuple[Op, ...]


class Machine:
    """Takes the records of all ranks; tells whether they match and which ranks are blocked.

    `describe(rank, record)` converts a record to an `Op`, with names instead of numbers.
    """

    def __init__(self, world_size: int, describe: Callable[[int, Record], Op]) -> None:
        self.world_size = world_size
        self.misfit: Misfit | None = None
        self._describe = describe
        self.actors = {(rank, 0): Actor(rank, 0) for rank in range(world_size)}
        self._queues: list[deque[Record]] = [deque() for _ in range(world_size)]  # unprocessed
        # By rank and index: messages until waited for, collectives until complete.
        self._ops: dict[tuple[int, int], Op] = {}
        self._polled: dict[int, Op] = {}  # by rank, until waited for
        self.exchanged = False  # whether a message was complete
        self._sizes: dict[int, list[int]] = {}  # by rank: of the all-to-all that comes next
        self._rounds: dict[tuple[int, int], int] = {}  # (group, rank): number of collectives
        self._meetings: dict[tuple[int, int], dict[int, Op]] = {}  # (group, number): op by rank
        self._last_meeting: dict[int, dict[int, Op]] = {}  # by group: the latest complete one
        self._latest: dict[tuple[int, int], dict[int, Op]] = {}  # (group, rank): op by thread
        self._sends: dict[Channel, deque[Op]] = {}
        self._receives: dict[Channel, deque[Op]] = {}
        self._any_source: dict[tuple[int, int], Op] = {}  # any-source receives
        self._taken: list[Op] = []  # sends that some any-source receive must have taken

    # ------------------------------------------------------------------ feeding

    def feed(self, rank: int, records: Iterable[Record]) -> None:
        """Add records of a rank, in order, and process all ranks as far as possible."""
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
                # A thread with further records is no longer blocked in reality, but the machine
                # has not yet processed the operation that it waited for. All later records of the
                # rank, from any thread, stay in the queue until then.
                if waits and not self._has_gone_on(actor):
                    break
                ready.extend(freed.rank for freed in self._step(actor, queue.popleft()))

    def _actor(self, rank: int, thread: int) -> Actor:
        actor = self.actors.get((rank, thread))
        if actor is None:
            actor = self.actors[rank, thread] = Actor(rank, thread)
        return actor

    def _step(self, actor: Actor, record: Record) -> Sequence[Actor]:
        """Process one record. Returns the actors that it unblocks."""
        rank, kind = actor.rank, record.kind
        if kind in (ISSUE, CALL, QUEUE):
            op = self._describe(rank, record)
            if op.name == "all_to_all":
                op.sizes = self._sizes_of(op)
            freed = self._post(op)
            if kind == CALL and not op.complete:
                self._block(actor, op)
            elif kind != CALL and (op.is_message or not op.complete):
                self._ops[rank, record.number] = op
            return freed
        if kind == WAIT:
            waited = self._ops.pop((rank, record.number), None)
            if waited is self._polled.get(rank):
                self._polled.pop(rank, None)
            if waited is not None and not waited.complete:
                waited.wait_place = record.place
                self._block(actor, waited)
        elif kind == SIZES:
            sizes = self._sizes.setdefault(rank, [record.number])
            if sizes[0] != record.number or len(sizes) > MOST_SIZES:
                sizes[:] = [record.number]
            sizes.extend(record[3 : 3 + SIZES_AT_ONCE])
        elif kind == POLL:
            if polled := self._ops.get((rank, record.number)):
                polled.wait_place = record.place
                self._polled[rank] = polled
        elif kind == SOURCE:
            return self._settle_source(actor, record)
        elif kind == STRANGER:
            self.misfit = Misfit("stranger", (self._describe(rank, record),))
        elif kind == LEFT:
            actor.left = True
        return ()

    def _sizes_of(self, op: Op) -> tuple[int, ...]:
        """The sizes that were announced for an all-to-all; empty if there are none."""
        count = len(op.members)
        if op.record.tag > 0:
            return (0, *[op.record.tag - 1] * 2 * count)
        number, *sizes = self._sizes.pop(op.rank, [-1])
        fits = number == op.record.number and len(sizes) > 2 * count
        return tuple(sizes[: 2 * count + 1]) if fits else ()

    def _block(self, actor: Actor, op: Op) -> None:
        actor.blocked, op.waiter = op, actor

    # ------------------------------------------------------------------ matching

    def _post(self, op: Op, again: bool = False) -> Sequence[Actor]:
        """Post an operation and match it. `again`: put it before operations posted since."""
        if op.kind == "collective" or op.kind == "new_group":
            self._latest.setdefault((op.record.group, op.rank), {})[op.record.thread] = op
            return self._meet(op)
        record = op.record
        if op.kind == "recv" and record.peer < 0:
            self._any_source[op.rank, record.number] = op
            return self._senders_to(_inbox(op))
        channel = _channel(op)
        mine, theirs = self._sends, self._receives
        if op.kind == "recv":
            mine, theirs = theirs, mine
        if channel not in theirs:
            queue = mine.setdefault(channel, deque())
            queue.appendleft(op) if again else queue.append(op)
            return ()
        self.exchanged = True
        other = self._remove_first(theirs, channel)
        self._compare_messages(*((op, other) if op.kind == "send" else (other, op)))
        return [*self._complete(op), *self._complete(other)]

    def _meet(self, op: Op) -> Sequence[Actor]:
        """Match a collective: the n-th calls of all members on a group belong together."""
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
        for other in meeting.values() if op.sizes else ():
            if other.sizes and unequal_sizes(op, other):
                self.misfit = Misfit("sizes", (op, other))
                return ()
        meeting[op.rank] = op
        if len(meeting) < len(op.members):
            return ()
        del self._meetings[record.group, number]
        self._last_meeting[record.group] = meeting
        return [actor for member in meeting.values() for actor in self._complete(member)]

    def _complete(self, op: Op) -> Sequence[Actor]:
        op.complete = True
        if not op.is_message:
            self._ops.pop((op.rank, op.record.number), None)
        actor, op.waiter = op.waiter, None
        if actor is None:
            return ()
        actor.blocked = None
        return (actor,)

    # An any-source receive (`recv` without `src`) takes one of the posted messages. Which one is
    # known only after a wait for it. Until then, the machine treats possible senders as blocked,
    # unless they have further records. `could_come` is true for them, so that no deadlock is
    # reported too early.

    def _has_gone_on(self, actor: Actor) -> bool:
        """Whether a thread blocked in a send has continued: an any-source receive took it."""
        send = actor.blocked
        if send is None or send.kind != "send":
            return False
        if self._takers(_inbox(send)) <= len(self._taken_from(_inbox(send))):
            return False  # another receive took it, which is not processed yet
        queue = self._sends[_channel(send)]
        if queue[0] is not send:
            return False  # an earlier message comes first
        self._remove_first(self._sends, _channel(send))
        self._taken.append(send)
        self._complete(send)
        return True

    def _takers(self, inbox: Inbox) -> int:
        return sum(_inbox(receive) == inbox for receive in self._any_source.values())

    def _taken_from(self, inbox: Inbox) -> list[Op]:
        return [send for send in self._taken if _inbox(send) == inbox]

    def _senders_to(self, inbox: Inbox) -> Sequence[Actor]:
        """The actors that wait for a send to this inbox."""
        ops = (op for queue in self._sends.values() for op in queue if _inbox(op) == inbox)
        return [op.waiter for op in ops if op.waiter is not None]

    def _settle_source(self, actor: Actor, record: Record) -> Sequence[Actor]:
        """Turn an any-source receive, which has got its message, into one from its sender."""
        actor.blocked = None
        receive = self._any_source.pop((actor.rank, record.number), None)
        if receive is None:
            return ()
        receive.record = receive.record._replace(peer=record.peer)
        receive.waiter = None
        taken = [send for send in self._taken if _channel(send) == _channel(receive)]
        if taken:
            self._taken.remove(taken[0])
            self._compare_messages(taken[0], receive)
            return self._complete(receive)
        freed = [*self._post(receive)]
        if not receive.complete:  # the send has not been processed yet
            self._block(actor, receive)
        return [*freed, *self._give_back(_inbox(receive))]

    def _give_back(self, inbox: Inbox) -> Sequence[Actor]:
        """Post again the sends to `inbox` that no any-source receive has taken after all."""
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
        """The mismatch, even one with a message that an any-source receive has probably taken."""
        if self.misfit is not None:
            return self.misfit
        for receive in self._any_source.values():
            for send in self._under_way(_inbox(receive)):
                if send.record.signature != receive.record.signature:
                    return Misfit("message", (send, receive))
        return None

    def apart(self, op: Op) -> list[Op]:
        """The collective before `op`, its rank's latest, if ranks called it in different lines."""
        group = op.record.group
        number = self._rounds.get((group, op.rank), 0) - 1
        before = self._meetings.get((group, number - 1)) or self._last_meeting.get(group, {})
        lines = {(each.file, each.line) for each in before.values()}
        return list(before.values()) if len(lines) > 1 else []

    def several_threads(self, group: int) -> bool:
        """Whether collectives on a group were called in different threads, of one rank or of two.

        A rank may not yet have announced its second thread, while another rank already has.
        """
        threads = {
            thread for (on, _), latest in self._latest.items() if on == group for thread in latest
        }
        return len(threads) > 1

    def crossed_threads(self) -> Misfit | None:
        """After a failure: mismatched collectives that several threads called on one group.

        Two threads of a rank may announce their operations in one order and issue them in the
        other. Then the operations match here but not in the backend.
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
        """The sends that an any-source receive at this inbox may take."""
        taken = self._taken_from(inbox)
        if len(taken) >= self._takers(inbox):
            return taken
        return taken + [queue[0] for queue in self._sends.values() if _inbox(queue[0]) == inbox]

    def take_part(self, ranks: Sequence[int]) -> None:
        """Mark these ranks as running, and all others as returned."""
        self._latest.clear()  # threads of an earlier turn do not matter in this one
        self._polled.clear()
        for rank in range(self.world_size):
            self.actors[rank, 0].left = rank not in ranks

    def lose(self, rank: int) -> None:
        """Count a rank that died as one that has returned, and waits for nothing."""
        for (number, _), actor in self.actors.items():
            if number == rank:
                actor.left, actor.blocked = True, None

    # ------------------------------------------------------------------ queries

    def blocked(self) -> list[Op]:
        """The operation that each blocked thread waits for, in the order of the ranks."""
        ops = [actor.blocked for actor in self.actors.values() if actor.blocked is not None]
        return sorted(ops, key=lambda op: (op.rank, op.record.thread))

    def free(self) -> set[int]:
        """Ranks whose main thread is not blocked and has not returned."""
        busy = set()
        for rank in range(self.world_size):
            main = self.actors[rank, 0]
            if main.blocked is None and not main.left:
                busy.add(rank)
        return busy

    def unmatched(self, rank: int) -> list[Op]:
        """Operations of a rank that are posted but not complete, the oldest first."""
        queues = [*self._sends.values(), *self._receives.values()]
        ops = [op for queue in queues for op in queue if op.rank == rank]
        ops += [meeting[rank] for meeting in self._meetings.values() if rank in meeting]
        return sorted(ops, key=lambda op: op.record.number)

    def polled(self) -> list[tuple[Op, list[int]]]:
        """For each rank that polls an operation: the operation, and the ranks that it lacks.

        gloo completes a message only in wait(), so a message may lack no rank.
        """
        found = []
        for op in self._polled.values():
            if op.is_message:
                is_here = op.complete or self.could_come(op)
                found.append((op, [] if is_here else [*op.partners]))
            elif not op.complete:
                found.append((op, self.lacks(op)))
        return found

    def lacks(self, op: Op) -> list[int]:
        """The members of the group that have not called this collective yet."""
        if op.is_message or op.complete:
            return []
        came = next((each for each in self._meetings.values() if op in each.values()), None)
        return [] if came is None else [rank for rank in op.members if rank not in came]

    def could_come(self, op: Op) -> bool:
        """Whether a blocked send or receive may complete through an any-source receive."""
        if op.kind == "recv" and op.record.peer < 0:
            return bool(self._under_way(_inbox(op)))
        takers = self._any_source.values() if op.kind == "send" else ()
        return any(_inbox(receive) == _inbox(op) for receive in takers)


AnySized = TypeVar("AnySized", bound=Sized)


def unequal_sizes(
    first: AnySized, second: AnySized
) -> tuple[AnySized, AnySized, int, int] | None:
    """A sender, a receiver, and two different sizes: sent and expected. None if all are equal."""
    for sender, receiver in (first, second), (second, first):
        sent = sender.sizes[1 + sender.members.index(receiver.rank)]
        count = len(receiver.members)
        expected = receiver.sizes[1 + count + receiver.members.index(sender.rank)]
        if sent != expected:
            return sender, receiver, sent, expected
    return None


def _channel(op: Op) -> Channel:
    """The channel of a send or receive: both ends of a message have the same."""
    record = op.record
    ends = (op.rank, record.peer) if op.kind == "send" else (record.peer, op.rank)
    return record.group, *ends, record.tag


def _inbox(op: Op) -> Inbox:
    """The inbox that a message goes to."""
    target = op.record.peer if op.kind == "send" else op.rank
    return op.record.group, target, op.record.tag
