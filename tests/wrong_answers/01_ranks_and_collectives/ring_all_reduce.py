"""Answers to 01/ring_all_reduce: the mistakes people make, and right answers written differently.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. What is named neither there nor "blocked" in the report must be earned.
"""

import sys
import time

import torch
import torch.distributed as dist

import dtlab.collectives

# Wrong ------------------------------------------------------------------------------


def whole_tensor_in_every_round(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    passing = tensor.clone()
    arriving = torch.empty_like(tensor)
    for _ in range(size - 1):
        sending = dist.isend(passing, (rank + 1) % size, group)
        dist.recv(arriving, (rank - 1) % size, group)
        sending.wait()
        tensor += arriving
        passing.copy_(arriving)


def whole_tensor_summed_then_handed_round(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    own, total, arriving = tensor.clone(), tensor.clone(), torch.empty_like(tensor)
    for step in range(2 * (size - 1)):
        sending = dist.isend(total, right, group)
        dist.recv(arriving, left, group)
        sending.wait()
        total.copy_(arriving + own if step < size - 1 else arriving)
    tensor.copy_(total)


def for_two_ranks(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 1:
        return
    other = (rank + 1) % size
    chunks = tensor.tensor_split(2)
    mine, theirs = chunks[rank % 2], chunks[(rank + 1) % 2]
    arriving = torch.empty_like(mine)
    sending = dist.isend(theirs, other, group)
    dist.recv(arriving, (rank - 1) % size, group)
    sending.wait()
    mine += arriving
    arriving = torch.empty_like(theirs)
    sending = dist.isend(mine, other, group)
    dist.recv(arriving, (rank - 1) % size, group)
    sending.wait()
    theirs.copy_(arriving)


def only_where_the_size_divides(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(size, -1)
    arriving = torch.empty_like(chunks[0])
    for step in range(2 * (size - 1)):
        sending = dist.isend(chunks[(rank - step) % size], (rank + 1) % size, group)
        dist.recv(arriving, (rank - 1) % size, group)
        sending.wait()
        mine = chunks[(rank - step - 1) % size]
        mine.copy_(mine + arriving if step < size - 1 else arriving)


def remainder_left_out(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    length = len(tensor) // size
    chunks = [tensor[index * length : (index + 1) * length] for index in range(size)]
    arriving = torch.empty_like(chunks[0])
    for step in range(2 * (size - 1)):
        sending = dist.isend(chunks[(rank - step) % size], (rank + 1) % size, group)
        dist.recv(arriving, (rank - 1) % size, group)
        sending.wait()
        mine = chunks[(rank - step - 1) % size]
        mine.copy_(mine + arriving if step < size - 1 else arriving)


def all_gather_off_by_one(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.tensor_split(size)
    for step in range(2 * (size - 1)):
        shift = 0 if step < size - 1 else 1
        outgoing = chunks[(rank - step - shift) % size].clone()
        mine = chunks[(rank - step - 1 - shift) % size]
        sending = dist.isend(outgoing, (rank + 1) % size, group)
        arriving = torch.empty_like(mine)
        dist.recv(arriving, (rank - 1) % size, group)
        sending.wait()
        mine.copy_(mine + arriving if step < size - 1 else arriving)


def all_gather_forgotten(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.tensor_split(size)
    for step in range(size - 1):
        mine = chunks[(rank - step - 1) % size]
        sending = dist.isend(chunks[(rank - step) % size], (rank + 1) % size, group)
        arriving = torch.empty_like(mine)
        dist.recv(arriving, (rank - 1) % size, group)
        sending.wait()
        mine += arriving


def average(tensor, group=None):
    ring_in_odd_even_order(tensor, group)
    tensor /= dist.get_world_size(group)


def returned_but_not_in_place(tensor, group=None):
    total = tensor.clone()
    ring_in_odd_even_order(total, group)
    return total


def fp64_on_the_wire(tensor, group=None):
    wide = tensor.double()
    ring_in_odd_even_order(wide, group)
    tensor.copy_(wide)


def everything_to_rank_0(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        dist.send(tensor, 0, group)
        dist.recv(tensor, 0, group)
        return
    arriving = torch.empty_like(tensor)
    for other in range(1, size):
        dist.recv(arriving, other, group)
        tensor += arriving
    for other in range(1, size):
        dist.send(tensor, other, group)


def every_rank_with_every_other(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.tensor_split(size)
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        arriving = torch.empty_like(chunks[rank])
        sending = dist.isend(chunks[to], to, group)
        dist.recv(arriving, source, group)
        sending.wait()
        chunks[rank].add_(arriving)
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        sending = dist.isend(chunks[rank], to, group)
        dist.recv(chunks[source], source, group)
        sending.wait()


def half_a_chunk_in_a_round(tensor, group=None):
    for half in tensor.tensor_split(2):
        ring_in_odd_even_order(half, group)


def torch_all_reduce(tensor, group=None):
    dist.all_reduce(tensor, group=group)


def torch_all_gather(tensor, group=None):
    every = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, tensor, group=group)
    tensor.copy_(sum(every))


def finished_ring(tensor, group=None):
    dtlab.collectives.ring_all_reduce(tensor, group=group)


def everyone_receives_first(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.tensor_split(size)
    for step in range(2 * (size - 1)):
        mine = chunks[(rank - step - 1) % size]
        arriving = torch.empty_like(mine)
        dist.recv(arriving, (rank - 1) % size, group)
        dist.send(chunks[(rank - step) % size], (rank + 1) % size, group)
        mine.copy_(mine + arriving if step < size - 1 else arriving)


def never_ends(tensor, group=None):
    while True:
        time.sleep(0.01)


def untouched(tensor, group=None):
    raise NotImplementedError()


def does_nothing(tensor, group=None):
    return tensor


def greets_its_neighbour(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 1:
        return
    sending = dist.isend(tensor[:1].clone(), (rank + 1) % size, group)
    dist.recv(tensor[:1], (rank - 1) % size, group)
    sending.wait()


def index_out_of_range(tensor, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    return tensor.tensor_split(size)[rank + 1]


def leaves(tensor, group=None):
    sys.exit(3)


def replaces_the_storage(tensor, group=None):
    total = tensor.double()
    ring_in_odd_even_order(total, group)
    tensor.data = total


# Right, written differently --------------------------------------------------------------------


def ring_in_odd_even_order(tensor, group=None):
    """Blocking calls alone: even ranks send first, odd ranks receive first."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.tensor_split(size)
    for step in range(2 * (size - 1)):
        outgoing, mine = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arriving = torch.empty_like(mine)
        if rank % 2 == 0:
            dist.send(outgoing, right, group)
            dist.recv(arriving, left, group)
        else:
            dist.recv(arriving, left, group)
            dist.send(outgoing, right, group)
        mine.copy_(mine + arriving if step < size - 1 else arriving)


def ring_with_batch_isend_irecv(tensor, group=None):
    """The other way round the ring, a copy for each chunk, padded, nothing sent that is empty."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    length = -(-len(tensor) // size)
    chunks = [chunk.clone() for chunk in tensor.split(max(length, 1))]
    chunks += [tensor.new_empty(0)] * (size - len(chunks))

    def exchange(out, into):
        arriving = torch.empty_like(chunks[into])
        moves = []
        if len(chunks[out]):
            moves.append(dist.P2POp(dist.isend, chunks[out], (rank - 1) % size, group))
        if len(arriving):
            moves.append(dist.P2POp(dist.irecv, arriving, (rank + 1) % size, group))
        for work in dist.batch_isend_irecv(moves) if moves else []:
            work.wait()
        return arriving

    for step in range(size - 1):
        into = (rank + step + 1) % size
        chunks[into] = chunks[into] + exchange((rank + step) % size, into)
    for step in range(size - 1):
        into = (rank + step) % size
        chunks[into] = exchange((rank + step - 1) % size, into)
    tensor.copy_(torch.cat(chunks))


def ring_by_recursion(tensor, group=None):
    """One round for each call; receives straight into place in the second half."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.tensor_split(size)

    def turn(step):
        if step == 2 * (size - 1):
            return
        mine = chunks[(rank - step - 1) % size]
        into = torch.empty_like(mine) if step < size - 1 else mine
        receiving = dist.irecv(into, (rank - 1) % size, group)
        dist.send(chunks[(rank - step) % size], (rank + 1) % size, group)
        receiving.wait()
        if step < size - 1:
            mine.add_(into)
        turn(step + 1)

    turn(0)


RIGHT = [ring_in_odd_even_order, ring_with_batch_isend_irecv, ring_by_recursion]

WRONG = {
    whole_tensor_in_every_round: {"bytes": "You pass the whole tensor on in every round"},
    whole_tensor_summed_then_handed_round: {"bytes": "each rank sent 25.2 MB; a ring needs"},
    for_two_ranks: {
        "result": "Right on 1 and 2 ranks only",
        "bytes": "Some chunks never travel",
    },
    only_where_the_size_divides: {"result": "let chunks differ (tensor.tensor_split(N))"},
    remainder_left_out: {"result": "Right where the size divides by N"},
    all_gather_off_by_one: {"result": "2 ranks, 6 elements, rank 0: elements 0 to 2 hold"},
    all_gather_forgotten: {"result": "the values of rank 0 only", "bytes": "one half of the ring"},
    average: {"result": "this is the average; the sum is asked for"},
    returned_but_not_in_place: {"result": "you return the right sum but leave `tensor` as it was"},
    fp64_on_the_wire: {"bytes": "twice as much: send the tensor's own dtype"},
    everything_to_rank_0: {
        "bytes": "rank 0 sent 12.6 MB and others down to 4.2 MB",
        "neighbours": "rank 0 talks to rank 2 too",
    },
    every_rank_with_every_other: {"neighbours": "rank 0 talks to rank 2 too"},
    half_a_chunk_in_a_round: {"rounds": "send a whole chunk in one message"},
    torch_all_reduce: {"result": "dist.all_reduce does the work for you"},
    torch_all_gather: {"result": "dist.all_gather does the work for you"},
    finished_ring: {"result": "dtlab.collectives.ring_all_reduce does the work for you"},
    everyone_receives_first: {"result": "Every rank receives before it sends"},
    never_ends: {"result": "ranks 0 to 3 are still computing"},
    untouched: {"result": "ring_all_reduce is not written yet"},
    does_nothing: {
        "result": "hold the values of rank 0 only",
        "bytes": "Some chunks never travel",
    },
    greets_its_neighbour: {"result": "element 0 holds", "bytes": "Some chunks never travel"},
    index_out_of_range: {"result": "IndexError: tuple index out of range"},
    leaves: {"result": "left by sys.exit(3)"},
    replaces_the_storage: {"result": "write into it instead", "bytes": "twice as much"},
}
