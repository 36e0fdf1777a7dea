"""Programs that deadlock or mismatch get an error at once, with ranks, peers, lines and advice.

Every fault is a plain function in a table, with what its error must say. `waiting` gives for
each rank the operation, its peers, and a piece of the learner's own line.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

import dtlab
from dtlab.ranks.protocol import OpInfo
from dtlab.ranks.watch.deadlocks import waiting_of
from tests.marks import proof, retried

pytestmark = [
    pytest.mark.slow,  # a minute in all; `make check` has test_matching.py
    pytest.mark.usefixtures("warm"),
]

Function = Callable[[], object]
Expected = tuple[str, tuple[int, ...], str]  # operation, peers, piece of the line

# Seconds. The goal is 1 s from standstill, which `make bench` measures; without the watcher these
# launches would end after half an hour, so a busy machine may take its time here.
GUARD = 30.0
LARGE = 16_000_000  # floats: 64 MB, more than any buffer
WORLD_SUM = "dist.all_reduce(torch.ones(4))"


@dataclass(frozen=True)
class Fault:
    """A function that must end with a DeadlockError, and what the error must say."""

    function: Function
    world_size: int
    waiting: Mapping[int, Expected]
    says: tuple[str, ...]  # pieces of the message: the advice above all
    mismatch: str | None = None
    some: bool = False  # not all of the ranks in `waiting` need to be there
    heavy: bool = field(default=False)


FAULTS: dict[str, Fault] = {}


def fault(
    world_size: int,
    waiting: Mapping[int, Expected],
    *says: str,
    mismatch: str | None = None,
    some: bool = False,
    heavy: bool = False,
) -> Callable[[Function], Function]:
    """Put a function into the table."""

    def add(function: Function) -> Function:
        FAULTS[function.__name__] = Fault(
            function, world_size, waiting, says, mismatch, some, heavy
        )
        return function

    return add


def me() -> int:
    """This rank."""
    return dist.get_rank()


def deadlock(
    fn: Function, world_size: int = 2, guard: float = GUARD, *args: object
) -> dtlab.DeadlockError:
    """Launch `fn`; the DeadlockError that it ends with, soon."""
    begun = time.monotonic()
    with pytest.raises(dtlab.DeadlockError) as caught:
        dtlab.launch(fn, *args, world_size=world_size)
    assert time.monotonic() - begun < guard
    return caught.value


def flat(error: BaseException) -> str:
    """The message without its line breaks, for advice is wrapped."""
    return " ".join(str(error).split())


def line_of(fn: Function, code: str) -> set[int]:
    """The numbers of the lines of `fn` whose text is `code`."""
    lines, start = inspect.getsourcelines(fn)
    return {start + i for i, text in enumerate(lines) if text.strip() == code}


def assert_waits(
    waiting: list[dtlab.Waiting], fn: Function, expected: Mapping[int, Expected], some: bool
) -> None:
    """Check that each rank that the error lists waits as expected, on a line of `fn`."""
    ranks = [one.rank for one in waiting]
    assert len(set(ranks)) == len(ranks)
    if some:
        assert set(ranks) <= set(expected)
        assert len(ranks) >= min(2, len(expected))
    else:
        assert sorted(ranks) == sorted(expected)
    for one in waiting:
        op, peers, piece = expected[one.rank]
        assert (one.op, one.peers) == (op, peers), one
        assert one.code is not None, one
        assert piece in one.code, one
        assert one.line in line_of(fn, one.code), one
        assert one.file is not None, one
        assert one.file.endswith("test_watcher.py"), one


# ---------------------------------------------------------------------------- cycles


def receives_first(world_size: int, size: int, wait: bool) -> Function:
    """Every rank receives from its left neighbour before it sends to its right one."""

    def ring() -> None:
        box = torch.empty(size)
        left, right = (me() - 1) % world_size, (me() + 1) % world_size
        if wait:
            dist.irecv(box, left).wait()
        else:
            dist.recv(box, left)
        dist.send(box, right)

    return ring


@pytest.mark.sample(2)
@pytest.mark.parametrize("wait", [False, True], ids=["recv", "irecv"])
@pytest.mark.parametrize(
    ("world_size", "size"), [(2, 1), (3, 1), (5, 1), (2, LARGE), (3, LARGE), (2, 0)]
)
def test_ranks_that_all_receive_first(world_size: int, size: int, wait: bool) -> None:
    fn = receives_first(world_size, size, wait)
    error = deadlock(fn, world_size)
    piece = "dist.irecv(box, left)" if wait else "dist.recv(box, left)"
    expected = {r: ("recv", ((r - 1) % world_size,), piece) for r in range(world_size)}
    assert_waits(error.waiting, fn, expected, some=False)
    assert error.mismatch is None
    assert str(error).startswith("no rank can make progress (detected after ")
    assert f"rank 0 waits in recv(src={world_size - 1})" in str(error)
    assert "Post the send first (isend), then receive" in flat(error)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("world_size", "size"), [(2, 1), (3, 1), (5, 100), (2, LARGE), (3, LARGE)]
)
def test_ranks_that_all_send_first(world_size: int, size: int) -> None:
    def ring() -> None:
        box = torch.ones(size)
        dist.send(box, (me() + 1) % world_size)
        dist.recv(box, (me() - 1) % world_size)

    error = deadlock(ring, world_size)
    piece = "dist.send(box, (me() + 1)"
    expected = {r: ("send", ((r + 1) % world_size,), piece) for r in range(world_size)}
    assert_waits(error.waiting, ring, expected, some=False)
    assert error.mismatch is None
    assert "Every rank sends before it receives" in flat(error)
    assert "isend" in flat(error)


def test_the_next_launch_works() -> None:
    deadlock(lambda: dist.recv(torch.ones(1), src=1 - me()))
    assert dtlab.launch(dist.get_rank).values == [0, 1]


def test_the_error_has_what_the_ranks_had_printed() -> None:
    def prints() -> None:
        print("about to wait", me())
        dist.recv(torch.ones(1), 1 - me())

    error = deadlock(prints)
    assert error.stdout == ["about to wait 0\n", "about to wait 1\n"]
    assert error.values == [None, None]
    assert "dist.recv(torch.ones(1), 1 - me())" in error._repr_html_()


# ---------------------------------------------------------------------------- neighbours, partners


@fault(4, {r: ("recv", ((r + 1) % 4,), "dist.recv(box") for r in range(4)}, "neighbour")
def ring_with_a_wrong_neighbour() -> None:
    """Every rank sends to its right neighbour, and also receives from it."""
    box, right = torch.ones(4), (me() + 1) % 4
    work = dist.isend(box, right)
    dist.recv(box, right)
    work.wait()


@fault(
    4,
    {0: ("send", (1,), "dist.send"), 1: ("recv", (2,), "dist.recv"),
     2: ("send", (3,), "dist.send"), 3: ("recv", (0,), "dist.recv")},
    "Check the neighbours",
)  # fmt: skip
def alternating_ring_with_a_wrong_neighbour() -> None:
    """Even ranks send to the right, odd ranks receive from the right instead of the left."""
    if me() % 2 == 0:
        dist.send(torch.ones(4), (me() + 1) % 4)
    else:
        dist.recv(torch.ones(4), (me() + 1) % 4)


@fault(
    3,
    {0: ("recv", (2,), "dist.recv"), 1: ("recv", (0,), "dist.recv"),
     2: ("recv", (0,), "dist.recv(box, 0)")},
    "neighbour",
)  # fmt: skip
def ring_in_which_one_rank_has_a_wrong_neighbour() -> None:
    """Rank 0 sends to 2 by mistake; 1 and 2 then lack partners one after the other."""
    box = torch.ones(4)
    if me() == 0:
        dist.isend(box, 2)
        dist.recv(box, 2)
    elif me() == 1:
        dist.recv(box, 0)
        dist.send(box, 2)
    else:
        dist.recv(box, 0)
        dist.recv(box, 0)
        dist.send(box, 0)


@fault(2, {0: ("recv", (1,), "dist.recv")}, "Rank 1 is done", "rank 1 returned")
def one_receive_too_many() -> None:
    """Rank 1 sends three times, rank 0 receives four times."""
    for _ in range(3 + (me() == 0)):
        if me():
            dist.send(torch.ones(1), 0)
        else:
            dist.recv(torch.ones(1), 1)


@fault(2, {1: ("send", (0,), "dist.send")}, "Rank 0 is done", "never receives")
def one_buffered_send_too_many() -> None:
    """Rank 1 sends four times, rank 0 receives three times; gloo would buffer these messages."""
    for _ in range(3 + (me() == 1)):
        if me():
            dist.send(torch.ones(1), 0)
        else:
            dist.recv(torch.ones(1), 1)


@fault(2, {1: ("send", (0,), "dist.send")}, "Rank 0 is done", "never receives")
def one_large_send_too_many() -> None:
    """The message without a receive is too large for any buffer."""
    if me():
        dist.send(torch.ones(LARGE), 0)


@fault(3, {0: ("recv", (1, 2), "dist.recv")}, "ranks 1 and 2", "from any rank")
def a_receive_from_any_source_without_a_sender() -> None:
    """Rank 0 expects one message more than there are."""
    if me():
        dist.send(torch.ones(1), 0)
    else:
        for _ in range(3):
            dist.recv(torch.ones(1))


@fault(
    3,
    {0: ("recv", (2,), "dist.recv"), 1: ("send", (0,), "dist.send"),
     2: ("recv", (0,), "dist.recv")},
    "in a circle: rank 0 → rank 2 → rank 0",
)  # fmt: skip
def a_receive_from_any_source_that_has_its_message() -> None:
    """Rank 1 sends second, which is known only once no rank does anything any more."""
    if me() == 0:
        dist.irecv(torch.ones(1))
        dist.recv(torch.ones(1), 2, tag=1)
    elif me() == 1:
        time.sleep(0.5)
        dist.send(torch.ones(1), 0)
    else:
        dist.isend(torch.ones(1), 0)
        dist.recv(torch.ones(1), 0, tag=1)


@fault(
    2,
    {0: ("recv", (1,), "dist.recv(torch.ones(4), 1, tag=7)"),
     1: ("send", (0,), "dist.send(torch.ones(4), 0, tag=8)")},
    "same tag", mismatch="tag 7",
)  # fmt: skip
def tags_that_differ() -> None:
    """The ends face each other, but for their tags."""
    if me():
        dist.send(torch.ones(4), 0, tag=8)
    else:
        dist.recv(torch.ones(4), 1, tag=7)


@fault(2, {0: ("recv", (1,), "dist.recv")}, "same tag", mismatch="tag 3")
def tags_that_differ_with_isend() -> None:
    """The sender does not wait, and has returned."""
    if me():
        dist.isend(torch.ones(4), 0)
    else:
        dist.recv(torch.ones(4), 1, tag=3)


@fault(
    2,
    {0: ("recv", (1,), "dist.recv(torch.ones(1), 1, tag=2)"),
     1: ("send", (0,), "dist.send(torch.ones(1), 0, tag=tag)")},
    "tag", mismatch="tag 2",
)  # fmt: skip
def tags_in_another_order() -> None:
    """Blocking sends in one order of tags, blocking receives in the other."""
    for tag in (1, 2):
        if me():
            dist.send(torch.ones(1), 0, tag=tag)
    for tag in (2, 1):
        if not me():
            dist.recv(torch.ones(1), 1, tag=2) if tag == 2 else dist.recv(torch.ones(1), 1, tag=1)


# ---------------------------------------------------------------------------- missing calls


@fault(
    3,
    {0: ("all_reduce", (1, 2), WORLD_SUM), 2: ("all_reduce", (0, 1), WORLD_SUM)},
    "Rank 1 did not call this all_reduce", "rank 1 returned",
)  # fmt: skip
def one_rank_skips_a_collective() -> None:
    """An if around a collective."""
    if me() != 1:
        dist.all_reduce(torch.ones(4))


@fault(
    3,
    {0: ("all_reduce", (1, 2), "async_op"), 2: ("all_reduce", (0, 1), "async_op")},
    "Rank 1 did not call this all_reduce",
)
def one_rank_skips_an_asynchronous_collective() -> None:
    """The others wait for its Work."""
    if me() != 1:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.wait()


@fault(3, {0: ("barrier", (1, 2), "dist.barrier")}, "Ranks 1 and 2 did not call this barrier")
def one_rank_calls_it_once_too_often() -> None:
    """A barrier that only rank 0 calls."""
    dist.barrier()
    if me() == 0:
        dist.barrier()


@fault(
    4,
    {r: ("all_reduce", tuple({*range(4)} - {r}), WORLD_SUM) for r in (0, 1, 3)},
    "Rank 2 did not call this all_reduce", "loop",
)  # fmt: skip
def one_rank_leaves_a_loop_early() -> None:
    """Early stopping on which the ranks did not agree."""
    for step in range(10):
        if me() == 2 and step == 6:
            break
        dist.all_reduce(torch.ones(4))


@fault(2, {0: ("broadcast", (1,), "dist.broadcast")}, "Rank 1 did not call this broadcast")
def only_the_root_broadcasts() -> None:
    """A beginner's broadcast: "rank 0 sends, why should the others call it"."""
    if me() == 0:
        dist.broadcast(torch.ones(4), src=0)


@fault(2, {0: ("broadcast", (1,), "list"), 1: ("recv", (0,), "dist.recv")}, "collective")
def broadcast_that_is_received_by_recv() -> None:
    """Rank 0 calls broadcast, and the other ranks call recv."""
    if me() == 0:
        dist.broadcast_object_list(list("abc"), src=0)
    else:
        dist.recv(torch.ones(4), src=0)


@fault(
    2,
    {0: ("all_reduce", (1,), WORLD_SUM), 1: ("recv", (0,), "dist.recv")},
    "Some ranks are in a collective while others wait for a message",
)
def a_collective_against_a_message() -> None:
    """Rank 1 wants its message before the all-reduce, rank 0 sends it after."""
    if me() == 0:
        dist.all_reduce(torch.ones(4))
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(4))


@fault(
    3,
    {0: ("monitored_barrier", (1, 2), "monitored"), 1: ("monitored_barrier", (0, 2), "monitored")},
    "Rank 2 did not call this monitored_barrier",
)  # fmt: skip
def one_rank_skips_a_monitored_barrier() -> None:
    """gloo's barrier that names the missing rank, but only after its own time limit."""
    if me() < 2:
        dist.monitored_barrier()


# ---------------------------------------------------------------------------- collectives


def misfit(
    op: str, piece: str, mismatch: str, *says: str, world_size: int = 2
) -> Callable[[Function], Function]:
    """A function in which the calls of `op` that meet do not fit."""
    expected = {
        r: (op, tuple(p for p in range(world_size) if p != r), piece) for r in range(world_size)
    }
    advice = says or (f"All ranks must pass the same arguments to {op}", "wrong numbers")
    return fault(world_size, expected, *advice, mismatch=mismatch, some=True)


IN_ORDER = "same collectives in the same order"


@fault(
    2,
    {0: ("all_reduce", (1,), WORLD_SUM), 1: ("broadcast", (0,), "dist.broadcast")},
    IN_ORDER, mismatch="rank 1 called broadcast",
)  # fmt: skip
def collectives_in_another_order() -> None:
    """All-reduce then broadcast, and the other way round."""
    if me() == 0:
        dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(4), src=0)
    if me() == 1:
        dist.all_reduce(torch.ones(4))


@fault(
    3,
    {0: ("barrier", (1, 2), "barrier"), 1: ("all_reduce", (0, 2), WORLD_SUM),
     2: ("barrier", (0, 1), "barrier")},
    IN_ORDER, mismatch="rank 1 called all_reduce", some=True,
)  # fmt: skip
def a_skipped_collective_that_meets_the_next() -> None:
    """Ranks 0 and 2 skip the all-reduce and are at the barrier already."""
    if me() == 1:
        dist.all_reduce(torch.ones(4))
    dist.barrier()


@fault(
    2,
    {0: ("reduce", (1,), "dist.reduce"), 1: ("all_reduce", (0,), "dist.all_reduce")},
    IN_ORDER, mismatch="rank 0 called reduce",
)  # fmt: skip
def different_operations() -> None:
    """reduce on one rank, all_reduce on the other: the root's own sum may come out right."""
    if me() == 0:
        dist.reduce(torch.ones(4), dst=0)
    else:
        dist.all_reduce(torch.ones(4))


@misfit("all_reduce", "dist.all_reduce", "rank 1 called all_reduce(float32[4], MAX)")
def different_reductions() -> None:
    """gloo returns numbers that are neither."""
    op = dist.ReduceOp.MAX if me() else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(4), op=op)


@misfit("all_reduce", "dist.all_reduce", "float32[8]")
def different_shapes() -> None:
    """Four elements here, eight there."""
    dist.all_reduce(torch.ones(4 + 4 * me()))


@misfit("all_reduce", "dist.all_reduce", "float32[8]", world_size=3)
def a_different_shape_on_the_last_of_three() -> None:
    """The error must name the rank that differs."""
    dist.all_reduce(torch.ones(8 if me() == 2 else 4))


@misfit("all_reduce", "async_op", "float32[8]")
def different_shapes_in_flight() -> None:
    """The all-reduces differ, and no rank waits for them."""
    dist.all_reduce(torch.ones(4 + 4 * me()), async_op=True)
    time.sleep(20)


@misfit("all_reduce", "dist.all_reduce", "int32[4]")
def different_dtypes() -> None:
    """The dtypes have the same size, so that gloo would add floats to integers."""
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if me() else torch.float32))


@misfit("broadcast", "dist.broadcast", "root 1")
def different_roots_of_a_broadcast() -> None:
    """Every rank takes itself as the root: `src=rank`."""
    dist.broadcast(torch.ones(4), src=me())


@misfit("broadcast", "dist.broadcast", "float32[6]")
def different_shapes_of_a_broadcast() -> None:
    """The receiver has prepared more than is sent."""
    dist.broadcast(torch.ones(4 + 2 * me()), src=0)


@misfit("reduce", "dist.reduce", "root 2", world_size=3)
def different_roots_of_a_reduce() -> None:
    """Rank 2 thinks that it is the root."""
    dist.reduce(torch.ones(4), dst=2 if me() == 2 else 0)


@misfit("scatter", "dist.scatter", "root 1")
def different_roots_of_a_scatter() -> None:
    """Every rank scatters its own list."""
    dist.scatter(torch.ones(2), [torch.ones(2) for _ in range(2)], src=me())


@misfit("gather", "dist.gather", "root 1")
def different_roots_of_a_gather() -> None:
    """Every rank gathers."""
    dist.gather(torch.ones(2), [torch.ones(2) for _ in range(2)], dst=me())


@misfit("all_gather", "dist.all_gather", "float32[3]")
def different_shapes_of_an_all_gather() -> None:
    """The last batch of rank 1 is smaller than that of rank 0."""
    mine = torch.ones(3 if me() else 4)
    dist.all_gather([torch.empty_like(mine) for _ in range(2)], mine)


@misfit("reduce_scatter", "dist.reduce_scatter", "MAX")
def different_reductions_of_a_reduce_scatter() -> None:
    """SUM and MAX again."""
    op = dist.ReduceOp.MAX if me() else dist.ReduceOp.SUM
    dist.reduce_scatter(torch.ones(2), [torch.ones(2), torch.ones(2)], op=op)


@misfit("all_to_all", "dist.all_to_all_single", "float64")
def different_dtypes_of_an_all_to_all() -> None:
    """Pieces of four bytes for one, of eight for the other."""
    data = torch.ones(4, dtype=torch.float64 if me() else torch.float32)
    dist.all_to_all_single(torch.empty_like(data), data)


# ---------------------------------------------------------------------------- messages


def pair_misfit(mismatch: str) -> Callable[[Function], Function]:
    """Rank 0 sends what does not fit into what rank 1 receives into."""
    expected = {0: ("send", (1,), "send("), 1: ("recv", (0,), "recv(")}
    return fault(2, expected, "the same number of elements", mismatch=mismatch)


@pair_misfit("rank 0 sends float32[4] and rank 1 receives it into float32[8]")
def a_message_that_is_too_short() -> None:
    """Half of the buffer keeps its old content."""
    if me():
        dist.recv(torch.empty(8), 0)
    else:
        dist.send(torch.ones(4), 1)


@pair_misfit("float32[8] and rank 1 receives it into float32[4]")
def a_message_that_is_too_long() -> None:
    """gloo aborts the process."""
    if me():
        dist.recv(torch.empty(4), 0)
    else:
        dist.send(torch.ones(8), 1)


@pair_misfit("float32[4] and rank 1 receives it into int32[4]")
def a_message_of_another_dtype() -> None:
    """Bits of floats read as integers."""
    if me():
        dist.recv(torch.empty(4, dtype=torch.int32), 0)
    else:
        dist.send(torch.ones(4), 1)


@pair_misfit("float32[2] and rank 1 receives it into float64[1]")
def a_message_of_as_many_bytes() -> None:
    """Two floats into one double."""
    if me():
        dist.irecv(torch.empty(1, dtype=torch.float64), 0).wait()
    else:
        dist.isend(torch.ones(2), 1).wait()


# ---------------------------------------------------------------------------- groups


@fault(3, {2: ("all_reduce", (), "group=group")}, "not in", mismatch="rank 2", some=True)
def a_collective_by_a_non_member() -> None:
    """torch only warns, and rank 2 continues with its own numbers."""
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4), group=group)


@fault(
    3,
    {0: ("all_reduce", (1,), "dist.all_reduce(torch.ones(4), group=mine)")},
    "Rank 1 did not call this all_reduce",
)
def a_collective_on_the_wrong_subgroup() -> None:
    """Rank 1 is in both groups and takes the other one."""
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    mine = groups[0] if me() == 0 else groups[1]
    dist.all_reduce(torch.ones(4), group=mine)


@fault(
    2,
    {0: ("all_reduce", (1,), "group=first"), 1: ("all_reduce", (0,), "group=first")},
    "different groups", "same order",
)  # fmt: skip
def two_groups_in_another_order() -> None:
    """Two groups have the same members, and the ranks use them in opposite order."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    first, second = (groups[1], groups[0]) if me() else groups
    dist.all_reduce(torch.ones(4), group=first)
    dist.all_reduce(torch.ones(4), group=second)


@fault(
    3,
    {0: ("all_reduce", (1, 2), "dist.all_reduce"), 1: ("all_reduce", (0,), "dist.all_reduce"),
     2: ("all_reduce", (0, 1), "dist.all_reduce")},
    "different groups",
)  # fmt: skip
def the_world_against_a_subgroup() -> None:
    """Rank 1 passes a group, and the others forgot to."""
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4), group=group if me() == 1 else None)


@fault(
    3,
    {0: ("new_group", (1, 2), "dist.new_group"), 1: ("new_group", (0, 2), "dist.new_group")},
    "Every rank must call new_group", mismatch="ranks 0 and 1",
)  # fmt: skip
def new_group_by_its_members_only() -> None:
    """The most frequent mistake with groups."""
    if me() < 2:
        dist.new_group([0, 1])


@fault(
    3,
    {0: ("new_group", (1, 2), "new_group"), 1: ("new_group", (0, 2), "new_group"),
     2: ("barrier", (0, 1), "barrier")},
    "Every rank must call new_group", mismatch="new_group", some=True,
)  # fmt: skip
def new_group_by_its_members_while_the_other_waits() -> None:
    """Only its members make the group, and rank 2 is at the next barrier."""
    if me() < 2:
        dist.new_group([0, 1])
    dist.barrier()


@fault(
    3,
    {r: ("new_group", tuple({*range(3)} - {r}), "dist.new_group") for r in range(3)},
    "in the same order", mismatch="new_group([1,2])", some=True,
)  # fmt: skip
def groups_made_in_another_order() -> None:
    """Every rank makes its own group first."""
    order = [[0, 1], [1, 2]] if me() == 0 else [[1, 2], [0, 1]]
    for ranks in order:
        dist.new_group(ranks)


# ---------------------------------------------------------------------------- inside C++


def _batches(number: int) -> list[torch.Tensor]:
    return [torch.ones(2, 4) for _ in range(number)]


@fault(
    2, {0: ("all_reduce", (1,), ".backward()")}, "Rank 1 did not", "loop", heavy=True
)
def uneven_data_in_ddp() -> None:
    """Rank 0 has a batch more, and waits for its gradients inside DDP's backward."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    for batch in _batches(3 - me()):
        model(batch).sum().backward()


@fault(
    2,
    {0: ("all_reduce", (1,), ".backward()"), 1: ("barrier", (0,), "dist.barrier")},
    IN_ORDER, mismatch="barrier", heavy=True,
)  # fmt: skip
def uneven_data_in_ddp_and_then_a_barrier() -> None:
    """Rank 1 is at the barrier already, where it meets rank 0's gradients."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    for batch in _batches(3 - me()):
        model(batch).sum().backward()
    dist.barrier()


@fault(2, {0: ("all_reduce", (1,), ".backward()")}, "Rank 1 did not", heavy=True)
def the_unwrapped_module_on_one_rank() -> None:
    """Rank 1 trains `model.module`, which does not communicate."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    (model if me() == 0 else model.module)(torch.ones(2, 4)).sum().backward()


@fault(
    2,
    {0: ("all_reduce", (1,), ".backward()"), 1: ("recv", (0,), "dist.recv")},
    "Some ranks are in a collective while others wait for a message", heavy=True,
)  # fmt: skip
def alone_in_backward_while_the_other_receives() -> None:
    """Rank 1 waits for a message that rank 0 would send after its backward pass."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    if me():
        dist.recv(torch.ones(1), 0)
    model(torch.ones(2, 4)).sum().backward()
    dist.send(torch.ones(1), 1)


@fault(2, {0: ("all_reduce", (1,), "register_hook")}, "Rank 1 did not")
def a_hook_that_waits_alone() -> None:
    """An all-reduce in a hook of a layer that only rank 0 uses."""
    layer = nn.Linear(4, 4)
    layer.weight.register_hook(lambda gradient: dist.all_reduce(gradient))
    if me() == 0:
        layer(torch.ones(2, 4)).sum().backward()


@retried
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if one.heavy else [])
        for name, one in FAULTS.items()
    ],
)
def test_a_fault_is_explained(name: str) -> None:
    one = FAULTS[name]
    error = deadlock(one.function, one.world_size)
    text = str(error)
    assert_waits(error.waiting, one.function, one.waiting, one.some)
    for piece in one.says:
        assert piece.lower() in flat(error).lower(), text
    if one.mismatch is None:
        assert error.mismatch is None, error.mismatch
    else:
        assert error.mismatch is not None, text
        assert one.mismatch in error.mismatch
    for waiting in error.waiting:
        assert f"rank {waiting.rank} " in text
        assert str(waiting.code) in text


def _a_metrics_thread() -> None:
    """A thread of each rank sums its metrics on the group on which the main thread trains."""

    def report() -> None:
        for _ in range(50):
            dist.all_reduce(torch.ones(1))

    thread = threading.Thread(target=report)
    thread.start()
    for _ in range(50):
        dist.all_reduce(torch.ones(1000))
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("times", [3, proof(60)])
def test_what_gloo_says_in_a_thread_does_not_hide_a_mismatch(
    times: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(times):
        error = deadlock(_a_metrics_thread)
        assert error.mismatch is not None
        assert "all_reduce(float32[1], SUM)" in error.mismatch
        assert "all_reduce(float32[1000], SUM)" in error.mismatch
        assert "On this process group, more than one thread calls collectives" in flat(error)
        assert "its argument process_group= takes the group" in flat(error)
        assert "gloo" not in str(error)
        assert capfd.readouterr().out == ""  # no traceback above the finding


def _crash_in_a_thread_of_c() -> None:
    """Crash as gloo may: in a thread without Python, which reads the length of the string 0."""
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.strlen, None)


def _crashes_in_an_operation_that_does_not_match(begun: Path) -> None:
    def crash() -> None:
        while not begun.exists():
            time.sleep(0.001)
        time.sleep(0.003)
        _crash_in_a_thread_of_c()

    if dist.get_rank() == 0:
        threading.Thread(target=crash).start()
        dist.all_reduce(torch.ones(1))
    else:
        begun.touch()
        dist.broadcast(torch.ones(1), 1)


@retried  # the crash must come between the calls of both ranks and the watcher's next look
def test_a_crash_of_gloo_does_not_hide_a_mismatch(tmp_path: Path) -> None:
    for number in range(3):
        begun = tmp_path / str(number)
        error = deadlock(_crashes_in_an_operation_that_does_not_match, 2, GUARD, begun)
        assert error.mismatch is not None
        assert "all_reduce(float32[1], SUM)" in error.mismatch


def test_a_thread_that_raises_is_reported_after_all_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fails(also: bool) -> None:
        thread = threading.Thread(target=lambda: {}["missing"])
        thread.start()
        thread.join()
        if also:
            raise ValueError("main")

    code = 'thread = threading.Thread(target=lambda: {}["missing"])'
    (warning,) = dtlab.launch(fails, False).warnings
    assert warning.startswith("warning: a thread of ranks 0 and 1 raised KeyError: 'missing'\n")
    assert warning.endswith(code)
    assert capfd.readouterr().out == warning + "\n"
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(fails, True)
    first, _, last, place = str(caught.value).splitlines()
    assert first == "ranks 0 and 1 raised ValueError: main"
    assert last == "a thread of ranks 0 and 1 raised KeyError: 'missing'"
    assert place.endswith(code)
    assert capfd.readouterr().out == ""


# ---------------------------------------------------------------------------- ranks that fail


def failure(fn: Function, rank: int, guard: float = GUARD) -> dtlab.RankError:
    """Launch `fn` on three ranks; the RankError that it ends with, `rank`'s failure first."""
    begun = time.monotonic()
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(fn, world_size=3)
    assert time.monotonic() - begun < guard
    assert next(iter(caught.value.failures)) == rank
    assert dtlab.launch(dist.get_rank).values == [0, 1]
    return caught.value


def _in_recv() -> None:
    dist.recv(torch.ones(1), (me() + 1) % 3)


def _in_irecv() -> None:
    dist.irecv(torch.ones(1), (me() + 1) % 3).wait()


def _in_all_reduce() -> None:
    dist.all_reduce(torch.ones(4))


def _in_large_send() -> None:
    dist.send(torch.ones(LARGE), (me() + 1) % 3)


WAITS = [_in_recv, _in_irecv, _in_all_reduce, _in_large_send]


@pytest.mark.sample(2)
@pytest.mark.parametrize("wait", WAITS)
def test_a_rank_that_raises_while_others_wait(wait: Function) -> None:
    def raises() -> None:
        if me() == 1:
            time.sleep(0.3)
            raise ValueError("no such thing")
        wait()

    error = failure(raises, 1, guard=10.0)
    assert str(error).startswith("rank 1 raised ValueError: no such thing\n")
    assert error.failures[1].code == 'raise ValueError("no such thing")'


def test_a_rank_that_raises_in_a_backward_hook_while_others_wait() -> None:
    def raises() -> None:
        weight = torch.ones(4, requires_grad=True)
        if me() == 2:
            weight.register_hook(lambda gradient: gradient.no_such_thing)
        (weight * 2).sum().backward()
        dist.all_reduce(weight.grad)

    error = failure(raises, 2, guard=10.0)
    assert str(error).startswith("rank 2 raised AttributeError: ")
    assert "gradient.no_such_thing" in str(error.failures[2].code)


@pytest.mark.parametrize("wait", [_in_recv, _in_all_reduce])
def test_a_thread_that_raises_while_its_main_thread_waits(wait: Function) -> None:
    def raises() -> None:
        if me() == 1:
            threading.Thread(target=lambda: {}["missing"]).start()
        wait()

    begun = time.monotonic()
    if wait is _in_all_reduce:  # no rank waits for the thread, so the launch succeeds
        dtlab.launch(raises, world_size=3)
    else:
        error = failure(raises, 1, guard=10.0)
        assert "KeyError: 'missing'" in str(error).splitlines()[0]
        assert "missing" in str(error.failures[1].code)
    assert time.monotonic() - begun < GUARD


def test_a_thread_that_raises_while_its_main_thread_is_alone_in_a_collective() -> None:
    def raises() -> None:
        def late() -> None:
            time.sleep(0.2)
            raise ValueError("thread")

        if me() == 1:
            threading.Thread(target=late).start()
        if me() < 2:
            dist.barrier()

    error = failure(raises, 1, guard=10.0)
    assert "ValueError: thread" in str(error).splitlines()[0]
    assert error.failures[1].code == 'raise ValueError("thread")'


ENDS: list[tuple[Function, str, str]] = [
    (lambda: sys.exit(3), "exit", "left by sys.exit(3)"),
    (lambda: os._exit(4), "exit", "left by os._exit(4)"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal", "was ended by SIGKILL"),
    (lambda: ctypes.string_at(0), "signal", "was ended by SIGSEGV"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize(
    ("end", "kind", "headline"), ENDS, ids=["sys.exit", "os._exit", "SIGKILL", "SIGSEGV"]
)
def test_a_rank_that_ends_while_others_wait(
    end: Function, kind: str, headline: str, wait: Function
) -> None:
    def ends() -> None:
        if me() == 0:
            time.sleep(0.2)
            end()
        wait()

    error = failure(ends, 0, guard=10.0)
    assert error.failures[0].kind == kind
    assert str(error).startswith(f"rank 0 {headline}")


@pytest.mark.slow
def test_the_wait_of_a_rank_that_is_killed_is_named() -> None:
    def killed() -> None:
        pid = torch.tensor([os.getpid()])
        dist.broadcast(pid, src=1)
        if me() == 0:
            time.sleep(0.5)
            os.kill(int(pid), signal.SIGKILL)
            time.sleep(30)
        dist.recv(torch.ones(2), src=0)

    error = failure(killed, 1, guard=10.0)
    assert str(error).startswith("rank 1 was ended by SIGKILL while it waited in recv(src=0) (")
    assert error.failures[1].code == "dist.recv(torch.ones(2), src=0)"


# ---------------------------------------------------------------------------- the time limit


def _for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _for_a_thread() -> None:
    thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    thread.start()
    thread.join()


def _for_ever() -> None:
    while True:
        sum(range(100))


def _and_prints() -> None:
    while True:
        print("." * 100)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("busy", "pieces"),
    [
        (_for_a_lock, ["lock.acquire()"]),
        (_for_a_thread, ["thread.join()"]),
        (_for_ever, ["while True", "sum("]),
        (_and_prints, ["while True", "print("]),
    ],
)
@pytest.mark.parametrize("wait", [_in_recv, _in_all_reduce])
def test_a_rank_that_waits_for_a_busy_rank_is_named(
    busy: Function, pieces: list[str], wait: Function
) -> None:
    def waits() -> None:
        if me() == 1:
            busy()
        wait()

    begun = time.monotonic()
    with pytest.raises(dtlab.RankTimeoutError) as caught:
        dtlab.launch(waits, world_size=3, timeout=1.0)
    assert 1.0 < time.monotonic() - begun < GUARD
    error, text = caught.value, str(caught.value)
    assert [one.rank for one in error.running] == [0, 1, 2]
    assert error.running[1].op == "compute"
    assert any(piece in str(error.running[1].code) for piece in pieces)
    assert str(error.running[1].code) in text
    op = "recv" if wait is _in_recv else "all_reduce"
    for rank in (0, 2):
        one = error.running[rank]
        assert (one.op, one.code) == (op, inspect.getsource(wait).splitlines()[1].strip())
        assert 1 in one.peers or rank == 2 or wait is _in_all_reduce
        assert f"rank {rank} was waiting in {op}" in text
    assert wait is not _in_recv or "src=1" in text or "for rank 1" in text  # waited for
    assert dtlab.launch(dist.get_rank).values == [0, 1]


@pytest.mark.proof
def test_a_deadlocked_thread_and_a_main_thread_that_joins_it() -> None:
    def joins() -> None:
        box = torch.ones(1)
        thread = threading.Thread(target=lambda: dist.recv(box, 1 - me()), daemon=True)
        thread.start()
        thread.join()

    with pytest.raises((dtlab.RankTimeoutError, dtlab.DeadlockError)) as caught:
        dtlab.launch(joins, timeout=2.0)
    assert "thread.join()" in str(caught.value) or "dist.recv(box" in str(caught.value)


# ---------------------------------------------------------------------------- warnings


def test_a_message_that_is_changed_and_never_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def careless() -> None:
        if me() == 0:
            tensor = torch.ones(1000)
            dist.isend(tensor, 1)
            tensor.zero_()
        else:
            dist.recv(torch.empty(1000), 0)

    dtlab.launch(careless)
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: rank 0 changed the tensor of isend(dst=1)" in said
    assert "dist.isend(tensor, 1)" in said
    assert f"line {min(line_of(careless, 'dist.isend(tensor, 1)'))}" in said
    assert "wait()" in said


def test_a_message_that_is_waited_for_before_it_is_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def careful() -> None:
        if me() == 0:
            tensor = torch.ones(1000)
            dist.isend(tensor, 1).wait()
            tensor.zero_()
        else:
            dist.recv(torch.empty(1000), 0)

    dtlab.launch(careful)
    assert capsys.readouterr().out == ""


def test_a_message_that_no_rank_receives(capsys: pytest.CaptureFixture[str]) -> None:
    def lost() -> None:
        if me() == 0:
            dist.isend(torch.ones(10), 1, tag=4)

    dtlab.launch(lost)
    said = capsys.readouterr().out
    assert "no rank received" in said
    assert "rank 0" in said
    assert "dist.isend(torch.ones(10), 1, tag=4)" in said


# ---------------------------------------------------------------------------- more threads


@pytest.mark.proof
def test_ranks_that_deadlock_while_another_thread_is_idle() -> None:
    def waits() -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        dist.recv(torch.ones(1), 1 - me())

    with pytest.raises((dtlab.DeadlockError, dtlab.RankTimeoutError)) as caught:
        dtlab.launch(waits, timeout=2.0)
    assert str(caught.value).count("dist.recv(torch.ones(1), 1 - me())") == 2


def test_ranks_all_of_whose_threads_deadlock() -> None:
    def waits() -> None:
        group = dist.new_group([0, 1])
        box = torch.ones(1)
        threading.Thread(target=lambda: dist.recv(box, 1 - me(), group), daemon=True).start()
        dist.recv(torch.ones(1), 1 - me())

    with pytest.raises((dtlab.DeadlockError, dtlab.RankTimeoutError)) as caught:
        dtlab.launch(waits, timeout=2.0)
    assert str(caught.value).count("dist.recv(torch.ones(1), 1 - me())") == 2


# ---------------------------------------------------------------------------- cost


@pytest.mark.proof
def test_memory_stays_the_same_over_many_steps() -> None:
    """2,500 steps of each kind of operation; the steps of an hour must leave no more behind."""

    def train(steps: int) -> list[tuple[int, int]]:
        own, other = psutil.Process(), psutil.Process(os.getppid())  # the rank, its supervisor
        gradient, message = torch.ones(100), torch.ones(10)
        memory = []
        for step in range(steps):
            works = [dist.all_reduce(gradient, async_op=True) for _ in range(3)]
            sending = dist.isend(message, 1 - me())
            dist.recv(message if me() else message.clone(), 1 - me())
            sending.wait()
            for work in works:
                work.wait()
            dist.broadcast(gradient.zero_(), src=step % 2)
            if step % (steps // 5) == 0:
                memory.append((own.memory_info().rss, other.memory_info().rss))
        return memory

    for memory in dtlab.launch(train, 2500, world_size=2, trace=False, timeout=120).values:
        for after_a_while, at_the_end in zip(memory[1], memory[-1], strict=True):
            assert at_the_end - after_a_while < 2**20, memory


def test_tensors_of_operations_without_a_wait_in_python_are_freed() -> None:
    """DDP's reducer waits in C++; a tensor that it has sent lives only as long as DDP keeps it."""

    def train() -> list[int]:
        model = nn.parallel.DistributedDataParallel(nn.Linear(500, 500), bucket_cap_mb=0.1)
        own = {one.data_ptr() for one in model.parameters()}
        others = []
        for _ in range(6):
            model(torch.ones(1, 500)).sum().backward()
            for _ in range(2):  # each operation looks after those before it
                dist.barrier()
            alive = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
            others.append(sum(one.nbytes for one in alive if one.data_ptr() not in own))
        return others

    gradients = 4 * (500 * 500 + 500)
    for sizes in dtlab.launch(train, world_size=2, trace=False).values:
        assert max(sizes) < 2.1 * gradients, sizes  # `.grad`, and the last pass's buckets


def test_a_wait_whose_file_is_not_known_has_no_place() -> None:
    """The ranks' board may be read before the name of a file is on it."""
    recv = OpInfo(0, "recv", "recv()", (1,), 0, 0, (0, 1), __file__, 1, "", 7)
    assert waiting_of(recv).waits_in == ""
