"""Answers to 01/fix_4: an exchange of rows in which both neighbours may be the same rank.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist

FOUND = {"ranks": 2, "top": {0: 3, 1: 0}}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": FOUND, "fixed": fn})


def said(diagnosis):
    """This diagnosis, and a function that is right."""
    return {"diagnosis": diagnosis, "fixed": lambda strip: exchanged(strip, in_the_same_order)}


def exchanged(strip, exchange):
    """The program, with `exchange(strip, top, bottom, above, below)` in its middle."""
    rank, size = dist.get_rank(), dist.get_world_size()
    top, bottom = torch.empty_like(strip[:1]), torch.empty_like(strip[:1])
    exchange(strip, top, bottom, (rank - 1) % size, (rank + 1) % size)
    return torch.cat([top, strip, bottom])


def complete(*works):
    for work in works:
        work.wait()


def in_the_same_order(strip, top, bottom, above, below):
    sending = [dist.isend(strip[-1:], dst=below), dist.isend(strip[:1], dst=above)]
    dist.recv(top, src=above)
    dist.recv(bottom, src=below)
    complete(*sending)


# Wrong: the diagnosis ---------------------------------------------------------------------------


def on_four_ranks():
    return said({"ranks": 4, "top": {0: 11, 1: 2, 2: 5, 3: 8}})


def on_one_rank():
    return said({"ranks": 1, "top": {0: 2}})


def ranks_in_a_list():
    return said({"ranks": [2, 3], "top": {0: 3, 1: 0}})


def the_rows_that_were_meant():
    return said({"ranks": 2, "top": {0: 5, 1: 2}})


def rows_counted_within_a_strip():
    return said({"ranks": 2, "top": {0: 0, 1: 0}})


def a_row_that_there_is_not():
    return said({"ranks": 2, "top": {0: 6, 1: 0}})


def one_rank_only():
    return said({"ranks": 2, "top": {0: 3}})


def a_row_in_a_list():
    return said({"ranks": 2, "top": {0: [3], 1: [0]}})


def rows_as_a_list():
    return said({"ranks": 2, "top": [3, 0]})


def the_number_of_ranks_alone():
    return said({"ranks": 2})


def ranks_left_open():
    return said({"ranks": None, "top": {0: 3, 1: 0}})


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(strip):
    def exchange(strip, top, bottom, above, below):
        sending = [dist.isend(strip[:1], dst=above), dist.isend(strip[-1:], dst=below)]
        dist.recv(top, src=above)
        dist.recv(bottom, src=below)
        complete(*sending)

    return exchanged(strip, exchange)


@fixed
def right_on_two_ranks_only(strip):
    """The rows change places on all numbers of ranks."""

    def exchange(strip, top, bottom, above, below):
        sending = [dist.isend(strip[:1], dst=above), dist.isend(strip[-1:], dst=below)]
        dist.recv(bottom, src=above)
        dist.recv(top, src=below)
        complete(*sending)

    return exchanged(strip, exchange)


@fixed
def neighbours_stop_at_the_ends(strip):
    rank, size = dist.get_rank(), dist.get_world_size()
    top, bottom = torch.empty_like(strip[:1]), torch.empty_like(strip[:1])
    in_the_same_order(strip, top, bottom, max(rank - 1, 0), min(rank + 1, size - 1))
    return torch.cat([top, strip, bottom])


@fixed
def both_orders_turned_round(strip):
    def exchange(strip, top, bottom, above, below):
        sending = [dist.isend(strip[-1:], dst=below), dist.isend(strip[:1], dst=above)]
        dist.recv(bottom, src=below)
        dist.recv(top, src=above)
        complete(*sending)

    return exchanged(strip, exchange)


@fixed
def a_barrier_before_the_receives(strip):
    def exchange(strip, top, bottom, above, below):
        sending = [dist.isend(strip[:1], dst=above), dist.isend(strip[-1:], dst=below)]
        dist.barrier()
        dist.recv(top, src=above)
        dist.recv(bottom, src=below)
        complete(*sending)

    return exchanged(strip, exchange)


@fixed
def all_send_first(strip):
    def exchange(strip, top, bottom, above, below):
        dist.send(strip[-1:], dst=below)
        dist.send(strip[:1], dst=above)
        dist.recv(top, src=above)
        dist.recv(bottom, src=below)

    return exchanged(strip, exchange)


@fixed
def tags_on_the_sends_only(strip):
    def exchange(strip, top, bottom, above, below):
        sending = [dist.isend(strip[:1], above, tag=1), dist.isend(strip[-1:], below, tag=2)]
        dist.recv(top, src=above)
        dist.recv(bottom, src=below)
        complete(*sending)

    return exchanged(strip, exchange)


@fixed
def the_wrong_edges_are_sent(strip):
    def exchange(strip, top, bottom, above, below):
        sending = [dist.isend(strip[:1], dst=below), dist.isend(strip[-1:], dst=above)]
        dist.recv(top, src=above)
        dist.recv(bottom, src=below)
        complete(*sending)

    return exchanged(strip, exchange)


@fixed
def the_field_ends_at_the_last_rank(strip):
    rank, size = dist.get_rank(), dist.get_world_size()
    top, bottom = torch.zeros_like(strip[:1]), torch.zeros_like(strip[:1])
    sending = [dist.isend(strip[-1:], dst=rank + 1)] if rank < size - 1 else []
    sending += [dist.isend(strip[:1], dst=rank - 1)] if rank > 0 else []
    if rank > 0:
        dist.recv(top, src=rank - 1)
    if rank < size - 1:
        dist.recv(bottom, src=rank + 1)
    complete(*sending)
    return torch.cat([top, strip, bottom])


@fixed
def its_own_rows(strip):
    return torch.cat([strip[-1:], strip, strip[:1]])


@fixed
def the_rows_of_neighbours_alone(strip):
    return exchanged(strip, in_the_same_order)[[0, -1]]


@fixed
def a_list_of_three(strip):
    whole = exchanged(strip, in_the_same_order)
    return [whole[:1], strip, whole[-1:]]


@fixed
def not_written(strip):
    raise NotImplementedError()


@fixed
def all_strips_gathered(strip):
    strips = [torch.empty_like(strip) for _ in range(dist.get_world_size())]
    dist.all_gather(strips, strip)
    rank, size = dist.get_rank(), dist.get_world_size()
    return torch.cat([strips[rank - 1][-1:], strip, strips[(rank + 1) % size][:1]])


@fixed
def whole_strips_to_both(strip):
    rank, size = dist.get_rank(), dist.get_world_size()
    above, below = (rank - 1) % size, (rank + 1) % size
    top, bottom = torch.empty_like(strip), torch.empty_like(strip)
    sending = [dist.isend(strip, dst=below), dist.isend(strip, dst=above)]
    dist.recv(top, src=above)
    dist.recv(bottom, src=below)
    complete(*sending)
    return torch.cat([top[-1:], strip, bottom[:1]])


@fixed
def edges_to_all_ranks(strip):
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(size) if other != rank]
    edges = {rank: strip[[0, -1]]} | {other: torch.empty_like(strip[:2]) for other in others}
    sending = [dist.isend(edges[rank], dst=other) for other in others]
    for other in others:
        dist.recv(edges[other], src=other)
    complete(*sending)
    return torch.cat([edges[(rank - 1) % size][1:], strip, edges[(rank + 1) % size][:1]])


@fixed
def exchanged_twice(strip):
    exchanged(strip, in_the_same_order)
    return exchanged(strip, in_the_same_order)


@fixed
def fp64_on_the_wire(strip):
    return exchanged(strip.double(), in_the_same_order).float()


# Right, written differently ---------------------------------------------------------------------


def sends_in_the_order_of_the_receives():
    return said(FOUND)


def said_with_tensors():
    """As they are read off what the ranks return."""
    return said({"ranks": "2", "top": {0: torch.tensor(3.0), 1: torch.tensor(0)}})


@fixed
def receives_in_the_order_of_the_sends(strip):
    def exchange(strip, top, bottom, above, below):
        sending = [dist.isend(strip[:1], dst=above), dist.isend(strip[-1:], dst=below)]
        dist.recv(bottom, src=below)
        dist.recv(top, src=above)
        complete(*sending)

    return exchanged(strip, exchange)


@fixed
def a_tag_for_each_direction(strip):
    def exchange(strip, top, bottom, above, below):
        sending = [dist.isend(strip[:1], above, tag=1), dist.isend(strip[-1:], below, tag=2)]
        dist.recv(top, src=above, tag=2)
        dist.recv(bottom, src=below, tag=1)
        complete(*sending)

    return exchanged(strip, exchange)


@fixed
def one_direction_after_the_other(strip):
    def exchange(strip, top, bottom, above, below):
        for edge, target, buffer, source in (
            (strip[-1:], below, top, above),
            (strip[:1], above, bottom, below),
        ):
            sending = dist.isend(edge, dst=target)
            dist.recv(buffer, src=source)
            complete(sending)

    return exchanged(strip, exchange)


@fixed
def batched(strip):
    def exchange(strip, top, bottom, above, below):
        messages = [
            dist.P2POp(dist.isend, strip[-1:], below),
            dist.P2POp(dist.irecv, top, above),
            dist.P2POp(dist.isend, strip[:1], above),
            dist.P2POp(dist.irecv, bottom, below),
        ]
        complete(*dist.batch_isend_irecv(messages))

    return exchanged(strip, exchange)


RIGHT = [
    sends_in_the_order_of_the_receives,
    said_with_tensors,
    receives_in_the_order_of_the_sends,
    a_tag_for_each_direction,
    one_direction_after_the_other,
    batched,
]

WRONG = {
    on_four_ranks: {"diagnosis": "the number is not 4. Run it"},
    on_one_rank: {"diagnosis": "the number is not 1. Run it"},
    ranks_in_a_list: {"diagnosis": "the number is not [2, 3]"},
    the_rows_that_were_meant: {"diagnosis": "rank 0 does not have row 5 on top"},
    rows_counted_within_a_strip: {"diagnosis": "rank 0 does not have row 0 on top"},
    a_row_that_there_is_not: {"diagnosis": "rank 0 does not have row 6 on top"},
    one_rank_only: {"diagnosis": "the row of rank 1 is missing"},
    a_row_in_a_list: {"diagnosis": "[3] is not the number of a row, for rank 0. Write {"},
    rows_as_a_list: {"diagnosis": "top is [3, 0]"},
    the_number_of_ranks_alone: {"diagnosis": 'Write {"ranks"'},
    ranks_left_open: {"diagnosis": "'ranks' is not filled in"},
    still_broken: {"result": "rank 0: place 0 holds row"},
    right_on_two_ranks_only: {"result": "rank 0: place 0 holds row"},
    neighbours_stop_at_the_ends: {"result": "The field is periodic"},
    both_orders_turned_round: {"result": "rank 0: place 0 holds row"},
    a_barrier_before_the_receives: {"result": "rank 0: place 0 holds row"},
    all_send_first: {"result": "the ranks did not finish"},
    tags_on_the_sends_only: {"result": "the ranks did not finish"},
    the_wrong_edges_are_sent: {"result": "rank 0: place 0 holds row"},
    the_field_ends_at_the_last_rank: {"result": "place 0 holds other values"},
    its_own_rows: {"result": "rank 0: place 0 holds row"},
    the_rows_of_neighbours_alone: {"result": "return one tensor, with"},
    a_list_of_three: {"result": "return one tensor, with"},
    not_written: {"result": "not_written is not written yet"},
    all_strips_gathered: {"traffic": "rank 0 calls all_gather"},
    whole_strips_to_both: {"traffic": "rank 0 sent 0.5 MB; 0.3 MB are enough"},
    edges_to_all_ranks: {"traffic": "rank 0"},
    exchanged_twice: {"traffic": "rank 0 makes 8 calls"},
    fp64_on_the_wire: {"traffic": "rank 0 sent 0.5 MB; 0.3 MB are enough"},
}

EQUIVALENT = {
    "for work in sending: -> for work in reversed(sending):": "all are waited for, in any order",
}
