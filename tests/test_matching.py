"""Deadlocks, mismatches and correct programs in the machine of `watch/matching.py`.

A scenario is written as what the ranks do, in the order in which the machine hears of it:

    ranks = Ranks(2)
    ranks.does(0, recv(1))          # rank 0 waits for a message from rank 1
    ranks.does(1, recv(0))          # and rank 1 for one from rank 0
    assert ranks.stand_still
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count

import pytest

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
    Board,
    Record,
    number_of,
)
from dtlab.ranks.watch.matching import Machine, Misfit, Op
from dtlab.ranks.watch.watcher import Watcher

_numbers = count(1)
ROLES = {"send": SEND, "recv": RECV, "new_group": NEW_GROUP}


@dataclass(frozen=True)
class Call:
    """An operation, as a rank announces it."""

    name: str
    content: str
    number: int
    kind: int = CALL
    peer: int = -1
    tag: int = 0
    group: tuple[int, ...] = ()  # the world

    @property
    def wait(self) -> Call:
        """The wait for it."""
        return Call("", "", self.number, WAIT)

    def got(self, source: int) -> Call:
        """The record that a receive from any source got its message from `source`."""
        return Call("", "", self.number, SOURCE, source)


def send(peer: int, content: str = "float32 x 4", tag: int = 0, kind: int = CALL) -> Call:
    return Call("send", content, next(_numbers), kind, peer, tag)


def recv(peer: int = -1, content: str = "float32 x 4", tag: int = 0, kind: int = CALL) -> Call:
    """A receive; without a peer it is from any source."""
    return Call("recv", content, next(_numbers), kind, peer, tag)


def all_reduce(
    content: str = "float32[4], SUM", group: tuple[int, ...] = (), kind: int = CALL
) -> Call:
    return Call("all_reduce", content, next(_numbers), kind, group=group)


def barrier(group: tuple[int, ...] = ()) -> Call:
    return Call("barrier", "", next(_numbers), group=group)


def new_group(ranks: str) -> Call:
    return Call("new_group", ranks, next(_numbers), ISSUE)


LEAVES = Call("", "", 0, LEFT)


class Ranks:
    """Ranks whose machine gets the operations that they do."""

    def __init__(self, world_size: int) -> None:
        self.machine = Machine(world_size, self._describe)
        self._world = tuple(range(world_size))
        self._calls: dict[int, Call] = {}

    def does(self, rank: int, *calls: Call, thread: int = 0) -> None:
        for call in calls:
            if call.name:
                self._calls[call.number] = call
        self.machine.feed(rank, [self._record(call, thread) for call in calls])

    def all_do(self, *calls: Call) -> None:
        for rank in self._world:
            self.does(rank, *calls)

    def _record(self, call: Call, thread: int) -> Record:
        message = call.name in ("send", "recv")
        text = f"{'message' if message else call.name}({call.content})"
        group = number_of(str(call.group or self._world) + (call.name == "new_group") * " made")
        return Record(
            call.kind, call.number, thread, group, 0, number_of(text), 0, call.peer, call.tag, 0,
            ROLES.get(call.name, COLLECTIVE),
        )  # fmt: skip

    def _describe(self, rank: int, record: Record) -> Op:
        call = self._calls.get(record.number, Call("barrier", "", 0))
        members = call.group or self._world
        return Op(rank, record, call.name, members, f"{call.name}({call.content})", "program.py")

    @property
    def misfit(self) -> Misfit | None:
        return self.machine.misfit

    @property
    def stand_still(self) -> bool:
        """Whether no rank can continue although all operations fit."""
        blocked = self.machine.blocked()
        on_its_way = any(self.machine.could_come(op) for op in blocked)
        fits = self.misfit is None
        return fits and bool(blocked) and not self.machine.free() and not on_its_way

    @property
    def waiting(self) -> list[tuple[int, str, tuple[int, ...]]]:
        """Rank, operation and partners of all that is blocked."""
        return [(op.rank, op.name, op.partners) for op in self.machine.blocked()]


# ----------------------------------------------------------------------- messages


def test_all_ranks_receive_before_any_rank_sends() -> None:
    ranks = Ranks(2)
    ranks.does(0, recv(1))
    assert not ranks.stand_still  # rank 1 may still send
    ranks.does(1, recv(0))
    assert ranks.stand_still
    assert ranks.waiting == [(0, "recv", (1,)), (1, "recv", (0,))]


def test_all_ranks_send_before_any_rank_receives() -> None:
    """However small the message is: a program must not rely on the backend's buffer."""
    ranks = Ranks(2)
    ranks.does(0, send(1), recv(1))
    ranks.does(1, send(0), recv(0))
    assert ranks.stand_still
    assert [name for _, name, _ in ranks.waiting] == ["send", "send"]


@pytest.mark.parametrize("first", [send, recv])
@pytest.mark.parametrize("n", [2, 3, 6])
def test_a_ring_in_which_all_ranks_do_the_same_first(n: int, first: object) -> None:
    ranks = Ranks(n)
    for rank in range(n):
        calls = send((rank + 1) % n), recv((rank - 1) % n)
        assert not ranks.stand_still
        ranks.does(rank, *(calls if first is send else calls[::-1]))
    assert ranks.stand_still
    assert len(ranks.waiting) == n


@pytest.mark.parametrize("n", [2, 3, 6])
def test_a_ring_that_posts_its_sends_first_finishes(n: int) -> None:
    ranks = Ranks(n)
    for rank in range(n):
        posted = send((rank + 1) % n, kind=ISSUE)
        ranks.does(rank, posted, recv((rank - 1) % n), posted.wait, LEAVES)
    assert not ranks.waiting and not ranks.machine.free() and ranks.misfit is None


def test_one_rank_of_a_ring_breaks_the_cycle() -> None:
    ranks = Ranks(3)
    ranks.does(0, recv(2), send(1))
    for rank in (1, 2):
        ranks.does(rank, send((rank + 1) % 3), recv(rank - 1))
    assert not ranks.waiting


def test_tags_that_differ_never_meet() -> None:
    ranks = Ranks(2)
    ranks.does(0, send(1, tag=1))
    ranks.does(1, recv(0, tag=2))
    assert ranks.stand_still
    (receive,) = ranks.machine.unmatched(1)
    assert (receive.name, receive.record.tag) == ("recv", 2)


def test_tags_let_messages_pass_each_other() -> None:
    ranks = Ranks(2)
    ranks.does(0, send(1, tag=1, kind=ISSUE), send(1, tag=2))
    ranks.does(1, recv(0, tag=2), recv(0, tag=1))
    assert not ranks.waiting


def test_messages_with_one_tag_come_in_the_order_in_which_they_were_sent() -> None:
    ranks = Ranks(2)
    ranks.does(0, send(1, "int64 x 1", kind=ISSUE), send(1, "float32 x 8", kind=ISSUE))
    ranks.does(1, recv(0, "int64 x 1"), recv(0, "float32 x 8"))
    assert ranks.misfit is None and not ranks.waiting


def test_a_message_that_does_not_fit_its_receive() -> None:
    ranks = Ranks(2)
    ranks.does(1, recv(0, "float32 x 8"))
    ranks.does(0, send(1, "float32 x 4"))
    assert ranks.misfit is not None and ranks.misfit.reason == "message"
    assert [op.name for op in ranks.misfit.ops] == ["send", "recv"]


def test_an_unreceived_message_blocks_only_a_rank_that_waits_for_it() -> None:
    ranks = Ranks(2)
    ranks.does(0, send(1, kind=ISSUE), LEAVES)
    ranks.does(1, LEAVES)
    assert not ranks.stand_still
    assert [op.name for op in ranks.machine.unmatched(0)] == ["send"]


# ----------------------------------------------------------------------- collectives


def test_one_rank_leaves_without_the_last_collective() -> None:
    ranks = Ranks(3)
    ranks.all_do(all_reduce())
    assert not ranks.waiting
    ranks.does(0, all_reduce())
    ranks.does(1, all_reduce())
    assert not ranks.stand_still  # rank 2 is on its way, for all that is known
    ranks.does(2, LEAVES)
    assert ranks.stand_still
    assert [rank for rank, _, _ in ranks.waiting] == [0, 1]


@pytest.mark.parametrize(
    "other", ["float32[4], MAX", "float64[4], SUM", "float32[2, 2], SUM", "float32[5], SUM"]
)
def test_collectives_that_meet_must_have_equal_arguments(other: str) -> None:
    """This also holds where the backend would return wrong numbers without an error."""
    ranks = Ranks(2)
    ranks.does(0, all_reduce())
    ranks.does(1, all_reduce(other))
    assert ranks.misfit is not None and ranks.misfit.reason == "collective"
    assert {op.description for op in ranks.misfit.ops} == {
        "all_reduce(float32[4], SUM)",
        f"all_reduce({other})",
    }


def test_collectives_in_another_order() -> None:
    ranks = Ranks(2)
    ranks.does(0, barrier(), all_reduce())
    ranks.does(1, all_reduce(), barrier())
    assert ranks.misfit is not None


def test_groups_in_another_order_deadlock_without_a_mismatch() -> None:
    ranks = Ranks(3)
    ranks.does(0, barrier(), barrier((0, 1)))
    ranks.does(1, barrier((0, 1)), barrier())
    ranks.does(2, barrier())
    assert ranks.stand_still
    assert ranks.waiting[0] == (0, "barrier", (1, 2))


def test_a_collective_under_way_blocks_only_ranks_that_wait_for_it() -> None:
    ranks = Ranks(2)
    reduction = all_reduce(kind=ISSUE)
    ranks.does(0, reduction)
    assert ranks.machine.free() == {0, 1}
    ranks.does(0, reduction.wait)
    assert ranks.machine.free() == {1}
    ranks.does(1, all_reduce())
    assert ranks.machine.free() == {0, 1}


def test_a_collective_on_a_group_that_the_rank_is_not_in() -> None:
    ranks = Ranks(2)
    ranks.does(0, Call("all_reduce", "float32[4], SUM", next(_numbers), STRANGER, group=(1,)))
    assert ranks.misfit is not None and ranks.misfit.reason == "stranger"


def test_all_ranks_must_make_the_same_groups() -> None:
    ranks = Ranks(2)
    ranks.all_do(new_group("[0]"))
    assert ranks.misfit is None
    ranks.does(0, new_group("[0, 1]"))
    ranks.does(1, new_group("[1]"))
    assert ranks.misfit is not None and ranks.misfit.reason == "new_group"


# ----------------------------------------------------------------------- from any source


def test_a_receive_from_any_source_completes_when_a_message_arrives() -> None:
    ranks = Ranks(2)
    receive = recv()
    ranks.does(0, receive)
    assert ranks.waiting and not ranks.stand_still
    ranks.does(1, send(0))
    assert not ranks.stand_still
    ranks.does(0, receive.got(1))
    assert not ranks.waiting


def test_a_receive_from_any_source_to_which_no_rank_sends() -> None:
    ranks = Ranks(3)
    ranks.does(0, recv())
    ranks.does(1, recv(2))
    ranks.does(2, LEAVES)
    assert ranks.stand_still
    assert ranks.waiting[0] == (0, "recv", (1, 2))


def test_a_message_must_fit_a_receive_from_any_source_too() -> None:
    ranks = Ranks(2)
    receive = recv(content="int64 x 4")
    ranks.does(1, send(0, "float32 x 4"))
    ranks.does(0, receive, receive.got(1))
    assert ranks.misfit is not None and ranks.misfit.reason == "message"


def test_the_source_may_be_known_before_the_senders_events_are() -> None:
    ranks = Ranks(2)
    receive = recv()
    ranks.does(0, receive, receive.got(1))
    assert not ranks.stand_still
    ranks.does(1, send(0))
    assert not ranks.stand_still


def test_a_receive_from_any_source_posted_ahead_unblocks_its_sender() -> None:
    """Rank 0 reaches its wait only after the barrier, and rank 1 the barrier after its send."""
    ranks = Ranks(2)
    receive = recv(kind=ISSUE)
    ranks.does(0, receive, barrier())
    ranks.does(1, send(0))
    assert not ranks.stand_still
    ranks.does(1, barrier())
    ranks.does(0, receive.wait, receive.got(1))
    assert not ranks.stand_still


# ----------------------------------------------------------------------- threads


def test_a_rank_is_free_while_its_main_thread_is() -> None:
    ranks = Ranks(2)
    ranks.does(0, recv(1), thread=7)
    ranks.does(1, barrier())
    assert ranks.machine.free() == {0} and not ranks.stand_still


def test_a_thread_frees_the_main_thread_of_another_rank() -> None:
    ranks = Ranks(2)
    ranks.does(0, recv(1, tag=1))
    ranks.does(1, recv(0, tag=2))
    assert ranks.stand_still
    ranks.does(0, send(1, tag=2), thread=7)
    assert not ranks.stand_still and ranks.machine.free() == {1}


@pytest.mark.parametrize("threads", [(1, 2, 3), (1, 1, 2), (0, 1, 0), (3, 2, 1), (1, 2, 1)])
def test_threads_that_take_turns_are_followed_in_their_order(threads: tuple[int, ...]) -> None:
    """As if each step ran in a fresh thread: its operations follow those of earlier threads."""
    ranks = Ranks(2)
    contents = [f"float32[{size}], SUM" for size in (1, 2, 3)]
    for content, thread in zip(contents, threads, strict=True):
        ranks.does(0, all_reduce(content), thread=thread)
    for content in contents:
        ranks.does(1, all_reduce(content))
        assert ranks.misfit is None
    assert ranks.waiting == []


def test_two_ranks_that_begin_with_different_threads_have_several() -> None:
    ranks = Ranks(2)
    ranks.does(0, all_reduce("float32[1], SUM"), thread=7)
    assert not ranks.machine.several_threads(0)
    ranks.does(1, all_reduce("float32[1000], SUM"))
    misfit = ranks.misfit
    assert misfit is not None
    assert ranks.machine.several_threads(misfit.ops[0].record.group)


def test_a_wait_in_a_separate_thread() -> None:
    ranks = Ranks(2)
    receive = recv(1, kind=ISSUE)
    ranks.does(0, receive)
    ranks.does(0, receive.wait, thread=7)
    assert ranks.machine.free() == {0, 1}
    assert ranks.waiting == [(0, "recv", (1,))]
    ranks.does(1, send(0))
    assert not ranks.stand_still


# ----------------------------------------------------------------------- GPUs


def test_an_operation_in_a_gpus_queue_blocks_no_rank() -> None:
    ranks = Ranks(2)
    ranks.does(0, all_reduce(kind=QUEUE), send(1, kind=QUEUE))
    ranks.does(1, recv(0, kind=QUEUE))
    assert ranks.machine.free() == {0, 1} and not ranks.waiting
    assert [op.name for op in ranks.machine.unmatched(0)] == ["all_reduce"]


def test_operations_in_gpus_queues_must_fit_too() -> None:
    ranks = Ranks(2)
    ranks.does(0, all_reduce("float32[4], SUM", kind=QUEUE))
    ranks.does(1, all_reduce("float32[4], MAX", kind=QUEUE))
    assert ranks.misfit is not None


def test_the_oldest_incomplete_operation_of_a_gpus_queue_is_named() -> None:
    """The error at the time limit needs this; it is read from the ranks' boards."""
    board = Board(2)
    watcher = Watcher(board, [os.getpid()] * 2)
    for rank, calls in enumerate((["all_reduce()", "broadcast()", "barrier()"], ["all_reduce()"])):
        writer = board.writer(rank)
        world = writer.text("0|0,1")
        for number, call in enumerate(calls):
            writer.write(QUEUE, number, 0, 7, world, number_of(call), writer.text(call))
    watcher.misfit()  # follows the boards
    assert [(op.rank, op.description) for op in watcher.waiting()] == [(0, "broadcast()")]
