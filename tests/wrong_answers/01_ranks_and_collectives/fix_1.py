"""Answers to 01/fix_1: a ring on each node, whose neighbours are places in the node.

The program has two faults: it sends to places instead of ranks, and it passes its own block on in
every round. `WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each
with a piece of its message. An answer is a function without arguments that returns what is handed
in.
"""

import functools

import torch
import torch.distributed as dist

WAITS = {3: ("recv", 2), 4: ("recv", 0), 5: ("recv", 1)}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": WAITS, "fixed": fn})


def neighbours(per_node):
    """The place of this rank in its node, and the ranks on its right and on its left."""
    node, place = divmod(dist.get_rank(), per_node)
    first = node * per_node
    return place, first + (place + 1) % per_node, first + (place - 1) % per_node


def ring(block, per_node, exchange):
    """The program without its faults, with `exchange(outgoing, arriving, right, left)` in it."""
    place, right, left = neighbours(per_node)
    blocks = [torch.empty_like(block) for _ in range(per_node)]
    blocks[place].copy_(block)
    for step in range(per_node - 1):
        outgoing, arriving = blocks[place - step], blocks[place - step - 1]
        exchange(outgoing, arriving, right, left)
    return blocks


def posted(outgoing, arriving, right, left):
    sending = dist.isend(outgoing, dst=right)
    dist.recv(arriving, src=left)
    sending.wait()


def said(diagnosis):
    """This diagnosis, and a function that is right."""
    return {"diagnosis": diagnosis, "fixed": lambda block, size: ring(block, size, posted)}


# Wrong: the diagnosis ---------------------------------------------------------------------------


def the_neighbours_that_were_meant():
    return said({3: ("recv", 5), 4: ("recv", 3), 5: ("recv", 4)})


def the_right_neighbours():
    return said({3: ("recv", 1), 4: ("recv", 2), 5: ("recv", 0)})


def as_it_was_on_two_nodes_of_two():
    return said({2: ("recv", 1), 3: ("recv", 0)})


def all_ranks_wait():
    return said({rank: ("recv", (rank - 1) % 3) for rank in range(6)})


def all_wait_in_send():
    return said({3: ("send", 1), 4: ("send", 2), 5: ("send", 0)})


def the_last_rank_returns():
    return said(WAITS | {5: None})


def waits_for_the_whole_first_node():
    return said({rank: ("recv", {0, 1, 2}) for rank in (3, 4, 5)})


def ranks_as_words():
    return said({f"rank {rank}": entry for rank, entry in WAITS.items()})


def a_rank_too_many():
    return said(WAITS | {6: ("recv", 2)})


def the_operation_alone():
    return said(dict.fromkeys(WAITS, "recv"))


def a_sentence():
    return said("the second node waits for the first")


def function_alone():
    return said(WAITS)["fixed"]


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(block, per_node):
    place = dist.get_rank() % per_node
    blocks = [block.clone() for _ in range(per_node)]
    for step in range(per_node - 1):
        arriving = blocks[place - step - 1]
        posted(block, arriving, (place + 1) % per_node, (place - 1) % per_node)
    return blocks


@fixed
def only_the_ranks_are_fixed(block, per_node):
    return ring(block, per_node, lambda outgoing, *others: posted(block, *others))


@fixed
def only_the_block_is_fixed(block, per_node):
    def exchange(outgoing, arriving, right, left):
        posted(outgoing, arriving, right % per_node, left % per_node)

    return ring(block, per_node, exchange)


@fixed
def a_ring_over_all_ranks(block, per_node):
    rank, size = dist.get_rank(), dist.get_world_size()

    def exchange(outgoing, arriving, right, left):
        posted(outgoing, arriving, (rank + 1) % size, (rank - 1) % size)

    return ring(block, per_node, exchange)


@fixed
def neighbours_without_their_end(block, per_node):
    rank = dist.get_rank()

    def exchange(outgoing, arriving, right, left):
        posted(outgoing, arriving, rank + 1, rank - 1)

    return ring(block, per_node, exchange)


@fixed
def waited_for_before_the_receive(block, per_node):
    def exchange(outgoing, arriving, right, left):
        dist.isend(outgoing, dst=right).wait()
        dist.recv(arriving, src=left)

    return ring(block, per_node, exchange)


@fixed
def the_other_way_round(block, per_node):
    return ring(
        block,
        per_node,
        lambda outgoing, arriving, right, left: posted(outgoing, arriving, left, right),
    )


@fixed
def nothing_is_received(block, per_node):
    def exchange(outgoing, arriving, right, left):
        dist.isend(outgoing, dst=right)

    return ring(block, per_node, exchange)


@fixed
def one_round_short(block, per_node):
    place, right, left = neighbours(per_node)
    blocks = [torch.zeros_like(block) for _ in range(per_node)]
    blocks[place].copy_(block)
    for step in range(per_node - 2):
        posted(blocks[place - step], blocks[place - step - 1], right, left)
    return blocks


@fixed
def in_the_order_in_which_they_came(block, per_node):
    _, right, left = neighbours(per_node)
    blocks = [block]
    for _ in range(per_node - 1):
        arriving = torch.empty_like(block)
        posted(blocks[-1], arriving, right, left)
        blocks.append(arriving)
    return blocks


@fixed
def blocks_of_all_ranks(block, per_node):
    blocks = [torch.empty_like(block) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, block)
    return blocks


@fixed
def stacked_into_one_tensor(block, per_node):
    return torch.cat(ring(block, per_node, posted))


@fixed
def not_written(block, per_node):
    raise NotImplementedError()


@fixed
def finished_all_gather(block, per_node):
    blocks = [torch.empty_like(block) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, block)
    first = dist.get_rank() // per_node * per_node
    return blocks[first : first + per_node]


@fixed
def all_gather_of_objects(block, per_node):
    blocks = [None] * dist.get_world_size()
    dist.all_gather_object(blocks, block)
    first = dist.get_rank() // per_node * per_node
    return blocks[first : first + per_node]


@fixed
def to_the_whole_node_at_once(block, per_node):
    node, place = divmod(dist.get_rank(), per_node)
    first = node * per_node
    others = [other for other in range(per_node) if other != place]
    blocks = [block.clone() for _ in range(per_node)]
    sending = [dist.isend(block, dst=first + other) for other in others]
    for other in others:
        dist.recv(blocks[other], src=first + other)
    for work in sending:
        work.wait()
    return blocks


@fixed
def all_blocks_in_every_round(block, per_node):
    place, right, left = neighbours(per_node)
    table = torch.zeros(per_node, len(block))
    table[place] = block
    for _ in range(per_node - 1):
        arriving = torch.empty_like(table)
        posted(table.clone(), arriving, right, left)
        table = torch.where(arriving != 0, arriving, table)
    return list(table)


@fixed
def once_round_and_home_again(block, per_node):
    place, right, left = neighbours(per_node)
    blocks = ring(block, per_node, posted)
    if per_node > 1:
        posted(blocks[(place + 1) % per_node], block, right, left)
    return blocks


@fixed
def one_round_too_many(block, per_node):
    _, right, left = neighbours(per_node)
    blocks = ring(block, per_node, posted)
    posted(block, torch.empty_like(block), right, left)
    return blocks


@fixed
def fp64_on_the_wire(block, per_node):
    return [one.float() for one in ring(block.double(), per_node, posted)]


# Right, written differently ---------------------------------------------------------------------


def isend_then_recv():
    return said(WAITS)


@fixed
def the_last_place_receives_first(block, per_node):
    def exchange(outgoing, arriving, right, left):
        if right > left and dist.get_rank() % per_node < per_node - 1:
            dist.send(outgoing, dst=right)
            dist.recv(arriving, src=left)
        else:
            dist.recv(arriving, src=left)
            dist.send(outgoing, dst=right)

    return ring(block, per_node, exchange)


@fixed
def batched(block, per_node):
    def exchange(outgoing, arriving, right, left):
        both = [dist.P2POp(dist.isend, outgoing, right), dist.P2POp(dist.irecv, arriving, left)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return ring(block, per_node, exchange)


@fixed
def places_in_a_group(block, per_node):
    """A group for each node, in which neighbours are places."""
    firsts = range(0, dist.get_world_size(), per_node)
    groups = [dist.new_group(list(range(first, first + per_node))) for first in firsts]
    node, place = divmod(dist.get_rank(), per_node)
    blocks = [block] * per_node
    for step in range(per_node - 1):
        arriving, right, left = torch.empty_like(block), place + 1, place - 1
        sending = dist.isend(
            blocks[place - step], group=groups[node], group_dst=right % per_node
        )
        dist.recv(arriving, group=groups[node], group_src=left % per_node)
        sending.wait()
        blocks[place - step - 1] = arriving
    return blocks


def said_with_the_variants_of_names():
    waits = {rank: ["dist.irecv", {left}] for rank, (_, left) in WAITS.items()}
    return said(waits)


RIGHT = [
    isend_then_recv,
    the_last_place_receives_first,
    batched,
    places_in_a_group,
    said_with_the_variants_of_names,
]

WRONG = {
    the_neighbours_that_were_meant: {"diagnosis": "rank 3 waits in recv, but not for rank 5"},
    the_right_neighbours: {"diagnosis": "rank 3 waits in recv, but not for rank 1"},
    as_it_was_on_two_nodes_of_two: {"diagnosis": "rank 2 waits for no rank: it has returned"},
    all_ranks_wait: {"diagnosis": "rank 0 waits for no rank: it has returned"},
    all_wait_in_send: {"diagnosis": "rank 3 does not wait in send"},
    the_last_rank_returns: {"diagnosis": "rank 5 has not finished either"},
    waits_for_the_whole_first_node: {"diagnosis": "for one of ranks 0 to 2 only"},
    ranks_as_words: {"diagnosis": "'rank 3' is no rank"},
    a_rank_too_many: {"diagnosis": "there is no rank 6"},
    the_operation_alone: {"diagnosis": "the entry of rank 3 is 'recv'"},
    a_sentence: {"diagnosis": "the diagnosis is str here"},
    function_alone: {"diagnosis": "must be a dict"},
    still_broken: {"result": "the ranks did not finish"},
    only_the_ranks_are_fixed: {"result": "rank 0: place 1 holds the block of rank 2"},
    only_the_block_is_fixed: {"result": "the ranks did not finish"},
    a_ring_over_all_ranks: {"result": "rank 0: place 1 holds the block of rank 4"},
    neighbours_without_their_end: {"result": ""},
    waited_for_before_the_receive: {"result": "the ranks did not finish"},
    the_other_way_round: {"result": "rank 0: place 1 holds the block of rank 2"},
    nothing_is_received: {"result": ""},
    one_round_short: {"result": "rank 0: place 1 holds other values"},
    in_the_order_in_which_they_came: {"result": "rank 0: place 1 holds the block of rank 2"},
    blocks_of_all_ranks: {"result": "return a list of 1 block,"},
    one_round_too_many: {"result": "each rank is alone on its node and has all blocks"},
    stacked_into_one_tensor: {"result": "return a list of 1 block,"},
    not_written: {"result": "not_written is not written yet"},
    finished_all_gather: {"traffic": "rank 0 calls all_gather"},
    all_gather_of_objects: {"traffic": "rank 0 calls all_gather"},
    to_the_whole_node_at_once: {"traffic": "rank 0 exchanges messages with rank 2"},
    all_blocks_in_every_round: {"traffic": "rank 0 sent 3.1 MB; 0.8 MB are enough"},
    once_round_and_home_again: {"traffic": "rank 0 makes 8 calls"},
    fp64_on_the_wire: {"traffic": "rank 0 sent 1.6 MB; 0.8 MB are enough"},
}

EQUIVALENT = {
    "blocks = [torch.empty_like(block) for _ in range(per_node)]"
    " -> blocks = [torch.empty_like(block) for _ in reversed(range(per_node))]": (
        "the places are alike"
    ),
    "blocks[place].copy_(block) -> blocks[place] = block": (
        "nothing is said of where the own block lies"
    ),
    "outgoing = blocks[(place - step) % per_node] -> outgoing = blocks[place - step]": (
        "a negative index counts from the end, and none is below -per_node"
    ),
    "arriving = blocks[(place - step - 1) % per_node] -> arriving = blocks[place - step - 1]": (
        "a negative index counts from the end, and none is below -per_node"
    ),
}
