"""Answers to 01/mend_4: a buffer that is filled again while its messages are under way.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist

ROWS = {1: 4, 2: 4, 3: 4, 4: 4}
FOUND = {"operation": "send", "rows": ROWS}


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": FOUND, "mended": fn})


def said(diagnosis):
    """This diagnosis, and a function that is right."""
    return {"diagnosis": diagnosis, "mended": a_copy_for_each}


def others():
    return range(1, dist.get_world_size())


def rank_is(rank):
    return dist.get_rank() == rank


def finished(mine, scale):
    """The end of the program: the scaled row, and the sum of all."""
    mine *= scale
    total = mine.clone()
    dist.all_reduce(total)
    return mine, total


def a_copy_for_each(images, scale):
    mine = images[dist.get_rank()].float()
    sending = []
    if rank_is(0):
        sending = [dist.isend(images[other].float(), dst=other) for other in others()]
    dist.broadcast(scale, src=0)
    if rank_is(0):
        for work in sending:
            work.wait()
    else:
        dist.recv(mine, src=0)
    return finished(mine, scale)


def scale_first(images, scale, send, receive):
    """With the broadcast before the first message."""
    mine = images[dist.get_rank()].float()
    dist.broadcast(scale, src=0)
    if rank_is(0):
        send(images)
    else:
        receive(mine)
    return finished(mine, scale)


# Wrong: the diagnosis ---------------------------------------------------------------------------


def at_the_receive():
    return said({"operation": "recv", "rows": ROWS})


def at_the_broadcast():
    return said({"operation": "broadcast", "rows": ROWS})


def at_the_sum():
    return said({"operation": "all_reduce", "rows": ROWS})


def an_operation_that_is_not_there():
    return said({"operation": "scatter", "rows": ROWS})


def each_gets_its_own():
    return said({"operation": "send", "rows": {rank: rank for rank in range(1, 5)}})


def each_gets_the_next_one():
    return said({"operation": "send", "rows": {1: 2, 2: 3, 3: 4, 4: 4}})


def all_get_the_first():
    return said({"operation": "send", "rows": dict.fromkeys(range(1, 5), 1)})


def a_row_in_a_list():
    return said({"operation": "send", "rows": {rank: [4] for rank in range(1, 5)}})


def as_it_was_on_three_ranks():
    return said({"operation": "send", "rows": {1: 2, 2: 2}})


def rows_alone():
    return said(ROWS)


def operation_left_open():
    return said({"operation": None, "rows": ROWS})


def rows_as_a_list():
    return said({"operation": "send", "rows": [4, 4, 4, 4]})


# Wrong: the function ----------------------------------------------------------------------------


@mended
def still_broken(images, scale):
    mine = images[dist.get_rank()].float()
    sending = []
    if rank_is(0):
        buffer = torch.empty_like(mine)
        for other in others():
            buffer.copy_(images[other])
            sending.append(dist.isend(buffer, dst=other))
    dist.broadcast(scale, src=0)
    if rank_is(0):
        for work in sending:
            work.wait()
    else:
        dist.recv(mine, src=0)
    return finished(mine, scale)


@mended
def waited_for_before_the_broadcast(images, scale):
    mine = images[dist.get_rank()].float()
    if rank_is(0):
        buffer = torch.empty_like(mine)
        for other in others():
            buffer.copy_(images[other])
            dist.isend(buffer, dst=other).wait()
    dist.broadcast(scale, src=0)
    if not rank_is(0):
        dist.recv(mine, src=0)
    return finished(mine, scale)


@mended
def bytes_are_sent_as_they_are(images, scale):
    def send(images):
        for other in others():
            dist.send(images[other], dst=other)

    return scale_first(images, scale, send, lambda mine: dist.recv(mine, src=0))


@mended
def buffer_made_once_and_never_filled(images, scale):
    def send(images):
        buffer = images[1].float() if len(images) > 1 else None
        for other in others():
            dist.send(buffer, dst=other)

    return scale_first(images, scale, send, lambda mine: dist.recv(mine, src=0))


@mended
def everybody_gets_the_row_of_its_left(images, scale):
    def send(images):
        for other in others():
            dist.send(images[other - 1].float(), dst=other)

    return scale_first(images, scale, send, lambda mine: dist.recv(mine, src=0))


@mended
def scaled_by_rank_0_too(images, scale):
    def send(images):
        for other in others():
            dist.send(images[other].float() * scale, dst=other)

    return scale_first(images, scale, send, lambda mine: dist.recv(mine, src=0))


@mended
def scale_is_not_sent(images, scale):
    mine = images[dist.get_rank()].float()
    if rank_is(0):
        for other in others():
            dist.send(images[other].float(), dst=other)
    else:
        dist.recv(mine, src=0)
    return finished(mine, scale)


@mended
def total_of_the_others_only(images, scale):
    mine, total = a_copy_for_each(images, scale)
    return mine, total - mine


@mended
def sum_in_place_of_the_row(images, scale):
    _, total = a_copy_for_each(images, scale)
    return total, total


@mended
def row_alone(images, scale):
    return a_copy_for_each(images, scale)[0]


@mended
def not_received(images, scale):
    mine = images[dist.get_rank()].float()
    rows = images.float()
    if rank_is(0):
        for other in others():
            dist.isend(rows[other], dst=other)
    dist.broadcast(scale, src=0)
    return finished(mine, scale)


@mended
def not_written(images, scale):
    raise NotImplementedError()


@mended
def scattered(images, scale):
    mine = images[dist.get_rank()].float()
    dist.broadcast(scale, src=0)
    dist.scatter(mine, list(images.float()) if rank_is(0) else None, src=0)
    return finished(mine, scale)


@mended
def all_images_to_everybody(images, scale):
    rows = images.float()
    dist.broadcast(rows, src=0)
    dist.broadcast(scale, src=0)
    return finished(rows[dist.get_rank()].clone(), scale)


@mended
def passed_on_from_rank_to_rank(images, scale):
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = images.float()
    if rank > 0:
        dist.recv(rows, src=rank - 1)
    if rank < size - 1:
        dist.send(rows, dst=rank + 1)
    dist.broadcast(scale, src=0)
    return finished(rows[rank].clone(), scale)


@mended
def in_two_halves(images, scale):
    def send(images):
        for other in others():
            for half in images[other].float().tensor_split(2):
                dist.send(half, dst=other)

    def receive(mine):
        for half in mine.tensor_split(2):
            dist.recv(half, src=0)

    return scale_first(images, scale, send, receive)


@mended
def all_rows_to_each(images, scale):
    rows = images.float()
    dist.broadcast(scale, src=0)
    if rank_is(0):
        for other in others():
            dist.send(rows, dst=other)
    else:
        dist.recv(rows, src=0)
    return finished(rows[dist.get_rank()].clone(), scale)


@mended
def acknowledged(images, scale):
    def send(images):
        for other in others():
            dist.send(images[other].float(), dst=other)
            dist.recv(torch.empty(1), src=other)

    def receive(mine):
        dist.recv(mine, src=0)
        dist.send(torch.ones(1), dst=0)

    return scale_first(images, scale, send, receive)


# Right, written differently ---------------------------------------------------------------------


def rows_of_their_own():
    return said(FOUND)


def said_with_another_name():
    return said({"operation": "dist.isend", "rows": ROWS | {0: 0}})


def said_with_tensors():
    """As they are read off what the ranks return."""
    rows = torch.full((5,), 4.0)
    return said({"operation": "send", "rows": {rank: rows[rank] for rank in range(1, 5)}})


@mended
def one_buffer_after_the_broadcast(images, scale):
    def send(images):
        buffer = torch.empty_like(images[0], dtype=torch.float)
        for other in others():
            buffer.copy_(images[other])
            dist.isend(buffer, dst=other).wait()

    return scale_first(images, scale, send, lambda mine: dist.recv(mine, src=0))


@mended
def rows_before_the_broadcast(images, scale):
    mine = images[dist.get_rank()].float()
    if rank_is(0):
        for other in others():
            dist.send(images[other].float(), dst=other)
    else:
        dist.irecv(mine, src=0).wait()
    dist.broadcast(scale, src=0)
    return finished(mine, scale)


@mended
def bytes_that_become_floats_where_they_arrive(images, scale):
    mine = images[dist.get_rank()].clone()
    work = None if rank_is(0) else dist.irecv(mine, src=0)
    sending = [dist.isend(images[other], dst=other) for other in others()] if rank_is(0) else []
    dist.broadcast(scale, src=0)
    for one in [*sending, *([work] if work else [])]:
        one.wait()
    return finished(mine.float(), scale)


RIGHT = [
    rows_of_their_own,
    said_with_another_name,
    said_with_tensors,
    one_buffer_after_the_broadcast,
    rows_before_the_broadcast,
    bytes_that_become_floats_where_they_arrive,
]

WRONG = {
    at_the_receive: {"diagnosis": "recv is not the cause. A recv returns the data"},
    at_the_broadcast: {"diagnosis": "broadcast is not the cause"},
    at_the_sum: {"diagnosis": "all_reduce is not the cause"},
    an_operation_that_is_not_there: {"diagnosis": "the trace has no operation 'scatter'"},
    each_gets_its_own: {"diagnosis": "rank 1 does not receive row 1"},
    each_gets_the_next_one: {"diagnosis": "rank 1 does not receive row 2"},
    a_row_in_a_list: {"diagnosis": "[4] is not the number of a row, for rank 1. Write {"},
    all_get_the_first: {"diagnosis": "rank 1 does not receive row 1"},
    as_it_was_on_three_ranks: {"diagnosis": "rank 1 does not receive row 2"},
    rows_alone: {"diagnosis": 'Write {"operation"'},
    operation_left_open: {"diagnosis": "'operation' is not filled in"},
    rows_as_a_list: {"diagnosis": "the rows are [4, 4, 4, 4]"},
    still_broken: {"result": "rank 1: its row is row 2"},
    waited_for_before_the_broadcast: {"result": "the ranks did not finish"},
    bytes_are_sent_as_they_are: {"result": ""},
    buffer_made_once_and_never_filled: {"result": "rank 2: its row is row 1"},
    everybody_gets_the_row_of_its_left: {"result": "rank 1: its row is row 0"},
    scaled_by_rank_0_too: {"result": "rank 1: its row is none of the right ones"},
    scale_is_not_sent: {"result": "rank 1: its row is none of the right ones"},
    total_of_the_others_only: {"result": "rank 0, total"},
    sum_in_place_of_the_row: {"result": "rank 0: its row is none of the right ones"},
    row_alone: {"result": "return the scaled row and the sum"},
    not_received: {"result": "rank 1: its row is none of the right ones"},
    not_written: {"result": "mended is not written yet"},
    scattered: {"traffic": "rank 0 calls scatter"},
    all_images_to_everybody: {"traffic": "rank 0 sends 0 messages to rank 1"},
    passed_on_from_rank_to_rank: {"traffic": "rank 1 sends rank 2 a message"},
    in_two_halves: {"traffic": "rank 0 makes 8 calls"},
    all_rows_to_each: {"traffic": "rank 0 sent"},
    acknowledged: {"traffic": "rank 0 makes 8 calls"},
}

EQUIVALENT = {
    "mine = images[rank].float(); if rank == 0:; ..."
    " -> if rank == 0:; rows = images.float(); ...": "neither needs the other",
    "if rank == 0:; rows = images.float(); ..."
    " -> dist.broadcast(scale, src=0); if rank == 0:; ...": (
        "the rows then leave after the broadcast, which is slower and as right"
    ),
    "... [dist.isend(rows[other], dst=other) for other in range(1, size)]"
    " -> ... [dist.isend(rows[other], dst=other) for other in reversed(range(1, size))]": (
        "each rank gets one row, in any order"
    ),
    "dist.broadcast(scale, src=0); if rank == 0:; ..."
    " -> if rank == 0:; for work in sending:; ...": (
        "the rows then arrive before the broadcast, which is slower and as right"
    ),
    "for work in sending: -> for work in reversed(sending):": "all are waited for, in any order",
    "mine *= scale -> mine = mine * scale": "nobody else holds `mine`",
}
