"""Answers to 01/mend_1: a ring in which all receive first.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist

WAITS = {rank: ("recv", (rank - 1) % 5) for rank in range(5)}


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": WAITS, "mended": fn})


def ring(block, exchange):
    """The program, with `exchange(outgoing, arriving, right, left)` in its middle."""
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [torch.empty_like(block) for _ in range(size)]
    blocks[rank].copy_(block)
    for step in range(size - 1):
        outgoing, arriving = blocks[(rank - step) % size], blocks[(rank - step - 1) % size]
        exchange(outgoing, arriving, (rank + 1) % size, (rank - 1) % size)
    return blocks


def posted(outgoing, arriving, right, left):
    sending = dist.isend(outgoing, dst=right)
    dist.recv(arriving, src=left)
    sending.wait()


def said(diagnosis):
    """This diagnosis, and a function that is right."""
    return {"diagnosis": diagnosis, "mended": lambda block: ring(block, posted)}


# Wrong: the diagnosis ---------------------------------------------------------------------------


def waits_for_the_right_neighbour():
    return said({rank: ("recv", (rank + 1) % 5) for rank in range(5)})


def round_the_end_forgotten():
    return said({rank: ("recv", rank - 1) for rank in range(5)})


def as_it_was_on_three_ranks():
    return said({rank: ("recv", (rank - 1) % 3) for rank in range(3)})


def all_wait_in_send():
    return said({rank: ("send", (rank + 1) % 5) for rank in range(5)})


def the_last_rank_comes_back():
    return said(WAITS | {4: None})


def waits_for_everybody():
    return said({rank: ("recv", set(range(5)) - {rank}) for rank in range(5)})


def ranks_as_words():
    return said({f"rank {rank}": entry for rank, entry in WAITS.items()})


def a_rank_too_many():
    return said(WAITS | {5: ("recv", 4)})


def the_operation_alone():
    return said(dict.fromkeys(range(5), "recv"))


def a_sentence():
    return said("every rank waits for its left neighbour")


def function_alone():
    return said(WAITS)["mended"]


# Wrong: the function ----------------------------------------------------------------------------


@mended
def all_send_first(block):
    def exchange(outgoing, arriving, right, left):
        dist.send(outgoing, dst=right)
        dist.recv(arriving, src=left)

    return ring(block, exchange)


@mended
def still_broken(block):
    def exchange(outgoing, arriving, right, left):
        dist.recv(arriving, src=left)
        dist.send(outgoing, dst=right)

    return ring(block, exchange)


@mended
def waited_for_before_the_receive(block):
    def exchange(outgoing, arriving, right, left):
        dist.isend(outgoing, dst=right).wait()
        dist.recv(arriving, src=left)

    return ring(block, exchange)


@mended
def the_other_way_round(block):
    return ring(
        block, lambda outgoing, arriving, right, left: posted(outgoing, arriving, left, right)
    )


@mended
def nothing_is_received(block):
    def exchange(outgoing, arriving, right, left):
        dist.isend(outgoing, dst=right)

    return ring(block, exchange)


@mended
def one_round_short(block):
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [torch.zeros_like(block) for _ in range(size)]
    blocks[rank].copy_(block)
    for step in range(size - 2):
        outgoing, arriving = blocks[(rank - step) % size], blocks[(rank - step - 1) % size]
        posted(outgoing, arriving, (rank + 1) % size, (rank - 1) % size)
    return blocks


@mended
def in_the_order_in_which_they_came(block):
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [block]
    for _ in range(size - 1):
        arriving = torch.empty_like(block)
        posted(blocks[-1], arriving, (rank + 1) % size, (rank - 1) % size)
        blocks.append(arriving)
    return blocks


@mended
def stacked_into_one_tensor(block):
    return torch.cat(ring(block, posted))


@mended
def not_written(block):
    raise NotImplementedError()


@mended
def finished_all_gather(block):
    blocks = [torch.empty_like(block) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, block)
    return blocks


@mended
def all_gather_of_objects(block):
    blocks = [None] * dist.get_world_size()
    dist.all_gather_object(blocks, block)
    return blocks


@mended
def to_everybody_at_once(block):
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(size) if other != rank]
    blocks = [block.clone() for _ in range(size)]
    sending = [dist.isend(block, dst=other) for other in others]
    for other in others:
        dist.recv(blocks[other], src=other)
    for work in sending:
        work.wait()
    return blocks


@mended
def all_blocks_in_every_round(block):
    rank, size = dist.get_rank(), dist.get_world_size()
    table = torch.zeros(size, len(block))
    table[rank] = block
    for _ in range(size - 1):
        arriving = torch.empty_like(table)
        posted(table.clone(), arriving, (rank + 1) % size, (rank - 1) % size)
        table = torch.where(arriving != 0, arriving, table)
    return list(table)


@mended
def once_round_and_home_again(block):
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = ring(block, posted)
    if size > 1:
        posted(blocks[(rank + 1) % size], block, (rank + 1) % size, (rank - 1) % size)
    return blocks


@mended
def fp64_on_the_wire(block):
    return [one.float() for one in ring(block.double(), posted)]


# Right, written differently ---------------------------------------------------------------------


def isend_then_recv():
    return said(WAITS)


@mended
def odd_ranks_receive_first(block):
    def exchange(outgoing, arriving, right, left):
        if dist.get_rank() % 2 == 0:
            dist.send(outgoing, dst=right)
            dist.recv(arriving, src=left)
        else:
            dist.recv(arriving, src=left)
            dist.send(outgoing, dst=right)

    return ring(block, exchange)


@mended
def one_rank_sends_first(block):
    def exchange(outgoing, arriving, right, left):
        if dist.get_rank() == 0:
            dist.send(outgoing, dst=right)
        dist.recv(arriving, src=left)
        if dist.get_rank() != 0:
            dist.send(outgoing, dst=right)

    return ring(block, exchange)


@mended
def batched(block):
    def exchange(outgoing, arriving, right, left):
        both = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, arriving, left)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return ring(block, exchange)


def said_with_the_variants_of_names():
    waits = {rank: ["dist.irecv", {(rank - 1) % 5}] for rank in range(5)}
    return said(waits)


RIGHT = [
    isend_then_recv,
    odd_ranks_receive_first,
    one_rank_sends_first,
    batched,
    said_with_the_variants_of_names,
]

WRONG = {
    waits_for_the_right_neighbour: {"diagnosis": "rank 0 waits in recv, but not for rank 1"},
    round_the_end_forgotten: {"diagnosis": "round the end too"},
    as_it_was_on_three_ranks: {"diagnosis": "rank 0 waits in recv, but not for rank 2"},
    all_wait_in_send: {"diagnosis": "rank 0 does not wait in send"},
    the_last_rank_comes_back: {"diagnosis": "rank 4 has not finished either"},
    waits_for_everybody: {"diagnosis": "for one of ranks 1 to 4 only"},
    ranks_as_words: {"diagnosis": "'rank 0' is no rank"},
    a_rank_too_many: {"diagnosis": "there is no rank 5"},
    the_operation_alone: {"diagnosis": "the entry of rank 0 is 'recv'"},
    a_sentence: {"diagnosis": "the diagnosis is str here"},
    function_alone: {"diagnosis": "must be a dict"},
    all_send_first: {"result": "ranks 0 to 2 are in send"},
    still_broken: {"result": "Every rank receives before it sends"},
    waited_for_before_the_receive: {"result": "the ranks did not finish"},
    the_other_way_round: {"result": "rank 0: place 1 holds the block of rank 2"},
    nothing_is_received: {"result": ""},
    one_round_short: {"result": "rank 0: place 1 holds none of the right ones"},
    in_the_order_in_which_they_came: {"result": "rank 0: place 1 holds the block of rank 2"},
    stacked_into_one_tensor: {"result": "return a list of 1 blocks"},
    not_written: {"result": "mended is not written yet"},
    finished_all_gather: {"traffic": "rank 0 calls all_gather"},
    all_gather_of_objects: {"traffic": "rank 0 calls all_gather"},
    to_everybody_at_once: {"traffic": "rank 0 exchanges messages with rank 2"},
    all_blocks_in_every_round: {"traffic": "rank 0 sent 3.1 MB; 0.8 MB are enough"},
    once_round_and_home_again: {"traffic": "rank 0 makes 8 calls"},
    fp64_on_the_wire: {"traffic": "rank 0 sent 1.6 MB; 0.8 MB are enough"},
}

EQUIVALENT = {
    "... (rank - 1) % 5) for rank in range(5)}"
    " -> ... (rank - 1) % 5) for rank in reversed(range(5))}": "a dict is the same in any order",
    "blocks = [torch.empty_like(block) for _ in range(size)]"
    " -> blocks = [torch.empty_like(block) for _ in reversed(range(size))]": (
        "the places are alike"
    ),
    "blocks[rank].copy_(block) -> blocks[rank] = block": (
        "nothing is said of where the own block lies"
    ),
    "outgoing = blocks[(rank - step) % size] -> outgoing = blocks[rank - step]": (
        "a negative index counts from the end, and none is below -size"
    ),
    "arriving = blocks[(rank - step - 1) % size] -> arriving = blocks[rank - step - 1]": (
        "a negative index counts from the end, and none is below -size"
    ),
}
