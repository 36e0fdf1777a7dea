"""Answers to 01/reduce_scatter: the mistakes people make, and right answers written differently.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. What is named neither there nor "blocked" in the report must be earned.
"""

import time

import torch
import torch.distributed as dist

import dtlab.collectives


def swap(outgoing, arriving, group, way=1, tag=0):
    """One round: send to one neighbour, receive from the other."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    to, source = (rank + way) % size, (rank - way) % size
    sending = dist.isend(outgoing, group=group, group_dst=to, tag=tag)
    dist.recv(arriving, group=group, group_src=source, tag=tag)
    sending.wait()
    return arriving


# Wrong ------------------------------------------------------------------------------


def starts_with_its_own_chunk(output, input, group=None):
    """The ring as textbooks have it: the sum of chunk r+1 ends on rank r."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank].clone()
    for step in range(size - 1):
        arriving = swap(passing, torch.empty_like(passing), group)
        passing = arriving + chunks[(rank - step - 1) % size]
    output.copy_(passing)


def last_chunk_not_added(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        passing = swap(passing, torch.empty_like(passing), group)
        if step < size - 2:
            passing += chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def adds_the_chunk_of_the_round_before(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        passing = swap(passing, torch.empty_like(passing), group)
        passing += chunks[(rank - 1 - step) % size]
    output.copy_(passing)


def chunks_in_the_other_direction(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        passing = swap(passing, torch.empty_like(passing), group, way=-1)
        passing += chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def passes_on_without_adding(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    passing = input.chunk(size)[rank - 1].clone()
    for _ in range(size - 1):
        passing = swap(passing, torch.empty_like(passing), group)
    output.copy_(passing)


def one_round_less(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 2):
        passing = swap(passing, torch.empty_like(passing), group)
        passing += chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def one_round_more(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size if size > 1 else 0):
        passing = swap(passing, torch.empty_like(passing), group)
        passing += chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def sends_to_rank_plus_one(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        sending = dist.isend(passing, group=group, group_dst=rank + 1)
        arriving = torch.empty_like(passing)
        dist.recv(arriving, group=group, group_src=(rank - 1) % size)
        sending.wait()
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def never_counts_its_rounds(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    passing, step = input.chunk(size)[rank - 1].clone(), 0
    while step < size - 1:
        passing = swap(passing, torch.empty_like(passing), group)
    output.copy_(passing)


def own_chunk_twice(output, input, group=None):
    reduce_scatter_in_odd_even_order(output, input, group)
    output += input.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def adds_to_what_was_in_the_output(output, input, group=None):
    total = torch.empty_like(output)
    reduce_scatter_in_odd_even_order(total, input, group)
    output += total


def same_chunk_in_every_round(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    output.copy_(chunks[rank])
    for _ in range(size - 1):
        output += swap(chunks[rank - 1], torch.empty_like(output), group)


def own_chunk_only(output, input, group=None):
    output.copy_(input.chunk(dist.get_world_size(group))[dist.get_rank(group)])


def average(output, input, group=None):
    reduce_scatter_in_odd_even_order(output, input, group)
    output /= dist.get_world_size(group)


def returned_but_not_in_the_output(output, input, group=None):
    total = torch.empty_like(output)
    reduce_scatter_in_odd_even_order(total, input, group)
    return total


def buffer_read_before_it_is_full(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks, moves = input.chunk(size), []
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        arriving = torch.zeros_like(passing)
        moves.append(dist.isend(passing, group=group, group_dst=(rank + 1) % size))
        moves.append(dist.irecv(arriving, group=group, group_src=(rank - 1) % size))
        passing = arriving + chunks[(rank - 2 - step) % size]
    for work in moves:
        work.wait()
    output.copy_(passing)


def nobody_waits_for_what_is_sent(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1]
    for step in range(size - 1):
        arriving = torch.empty_like(passing)
        dist.isend(passing, group=group, group_dst=(rank + 1) % size)
        dist.recv(arriving, group=group, group_src=(rank - 1) % size)
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def sums_in_the_input(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    for step in range(size - 1):
        mine = chunks[(rank - 2 - step) % size]
        mine += swap(chunks[(rank - 1 - step) % size], torch.empty_like(mine), group)
    output.copy_(chunks[rank])


def receives_into_the_input(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    own = [chunk.clone() for chunk in input.chunk(size)]
    passing = own[rank - 1].clone()
    for step in range(size - 1):
        at = (rank - 2 - step) % size
        passing = swap(passing, input.chunk(size)[at], group) + own[at]
    output.copy_(passing)


def whole_tensor_in_every_round(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    total, passing = input.clone(), input.clone()
    for _ in range(size - 1):
        passing = swap(passing, torch.empty_like(passing), group)
        total += passing
    output.copy_(total.chunk(size)[rank])


def fp64_on_the_wire(output, input, group=None):
    total = torch.empty_like(output, dtype=torch.float64)
    reduce_scatter_in_odd_even_order(total, input.double(), group)
    output.copy_(total)


def everything_to_rank_0(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        dist.send(input, group=group, group_dst=0)
        dist.recv(output, group=group, group_src=0)
        return
    total, arriving = input.clone(), torch.empty_like(input)
    for other in range(1, size):
        dist.recv(arriving, group=group, group_src=other)
        total += arriving
    chunks = total.chunk(size)
    output.copy_(chunks[0])
    for other in range(1, size):
        dist.send(chunks[other], group=group, group_dst=other)


def buffer_as_large_as_the_input(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        arriving = swap(passing, torch.empty_like(input), group)
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def straight_to_its_owner(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    output.copy_(chunks[rank])
    for distance in range(1, size):
        output += swap(chunks[(rank + distance) % size], torch.empty_like(output), group, distance)


def whole_all_reduce(output, input, group=None):
    """Both halves of the ring, where the first is asked for."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = [chunk.clone() for chunk in input.chunk(size)]
    for step in range(2 * (size - 1)):
        mine = chunks[(rank - 2 - step) % size]
        arriving = swap(chunks[(rank - 1 - step) % size], torch.empty_like(mine), group)
        mine.copy_(mine + arriving if step < size - 1 else arriving)
    output.copy_(chunks[rank])


def half_a_chunk_in_a_round(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        arriving = torch.empty_like(passing)
        for part, place in zip(passing.tensor_split(2), arriving.tensor_split(2), strict=True):
            swap(part, place, group)
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def ignores_the_group(output, input, group=None):
    """The tensor is cut for the group, and sent round the world."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(dist.get_world_size() - 1):
        arriving = swap(passing, torch.empty_like(passing), None)
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def ranks_of_the_group_taken_for_global_ones(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        arriving = torch.empty_like(passing)
        sending = dist.isend(passing, (rank + 1) % size, group)
        dist.recv(arriving, (rank - 1) % size, group)
        sending.wait()
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def chunk_of_the_global_rank(output, input, group=None):
    """The ring is the group's, but the chunks are counted from the global rank."""
    rank, size = dist.get_rank(), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[(rank - 1) % size].clone()
    for step in range(size - 1):
        arriving = swap(passing, torch.empty_like(passing), group)
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def without_a_group(output, input):
    reduce_scatter_in_odd_even_order(output, input)


def torch_reduce_scatter(output, input, group=None):
    dist.reduce_scatter_tensor(output, input, group=group)


def torch_all_reduce(output, input, group=None):
    total = input.clone()
    dist.all_reduce(total, group=group)
    output.copy_(total.chunk(dist.get_world_size(group))[dist.get_rank(group)])


def finished_reduce_scatter(output, input, group=None):
    dtlab.collectives.ring_reduce_scatter(output, input, group=group)


def all_reduce_below_the_recorder(output, input, group=None):
    total = input.clone()
    real = group or dist.distributed_c10d._get_default_group()
    key = torch._C.DispatchKey.BackendSelect
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        real.allreduce(total).wait()
    output.copy_(total.chunk(dist.get_world_size(group))[dist.get_rank(group)])


def reduce_scatter_of_the_backend_itself(output, input, group=None):
    group = group or dist.distributed_c10d._get_default_group()
    options = dist.ReduceScatterOptions()
    group._get_backend(torch.device("cpu"))._reduce_scatter_base(output, input, options).wait()


def through_the_store(output, input, group=None):
    store = dist.distributed_c10d._get_default_store()
    members = dist.get_process_group_ranks(group)
    call = store.add(f"{members} {dist.get_rank()}", 1)
    store.set(f"{members} {call} {dist.get_rank()}", input.numpy().tobytes())
    every = [bytearray(store.get(f"{members} {call} {member}")) for member in members]
    total = sum(torch.frombuffer(data, dtype=input.dtype) for data in every)
    output.copy_(total.chunk(len(members))[dist.get_rank(group)])


def everyone_receives_first(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        arriving = torch.empty_like(passing)
        dist.recv(arriving, group=group, group_src=(rank - 1) % size)
        dist.send(passing, group=group, group_dst=(rank + 1) % size)
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


def never_ends(output, input, group=None):
    while True:
        time.sleep(0.01)


def untouched(output, input, group=None):
    raise NotImplementedError()


def does_nothing(output, input, group=None):
    pass


# Right, written differently --------------------------------------------------------------------


def reduce_scatter_in_odd_even_order(output, input, group=None):
    """Blocking calls alone: even ranks send first, odd ranks receive first."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    sums = list(input.clone().tensor_split(size))
    for step in range(size - 1):
        outgoing, mine = sums[(rank - 1 - step) % size], sums[(rank - 2 - step) % size]
        arriving = torch.empty_like(mine)
        if rank % 2 == 0:
            dist.send(outgoing, group=group, group_dst=right)
            dist.recv(arriving, group=group, group_src=left)
        else:
            dist.recv(arriving, group=group, group_src=left)
            dist.send(outgoing, group=group, group_dst=right)
        mine += arriving
    output.copy_(sums[rank])


def reduce_scatter_the_other_way_round(output, input, group=None):
    """To the left, with batch_isend_irecv, summed in the output itself."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.view(size, -1)
    output.copy_(chunks[(rank + 1) % size])
    for step in range(size - 1):
        outgoing = output.clone()
        moves = [
            dist.P2POp(dist.isend, outgoing, group=group, group_peer=(rank - 1) % size),
            dist.P2POp(dist.irecv, output, group=group, group_peer=(rank + 1) % size),
        ]
        for work in dist.batch_isend_irecv(moves):
            work.wait()
        output += chunks[(rank + 2 + step) % size]


def reduce_scatter_by_recursion(output, input, group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)

    def summed(rounds):
        own = chunks[(rank - 1 - rounds) % size]
        if rounds == 0:
            return own
        return own + swap(summed(rounds - 1), torch.empty_like(own), group)

    output.copy_(summed(size - 1))


def reduce_scatter_in_both_directions(output, input, group=None):
    """Half of each chunk goes each way round at the same time."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    halves = list(zip(*(chunk.tensor_split(2) for chunk in input.chunk(size)), strict=True))
    passing = [halves[0][rank - 1], halves[1][(rank + 1) % size]]
    for step in range(size - 1):
        arriving, moves = [torch.empty_like(half) for half in passing], []
        for way, tag in ((1, 0), (-1, 1)):
            to, source = (rank + way) % size, (rank - way) % size
            moves.append(dist.isend(passing[tag], group=group, group_dst=to, tag=tag))
            moves.append(dist.irecv(arriving[tag], group=group, group_src=source, tag=tag))
        for work in moves:
            work.wait()
        passing = [
            arriving[0] + halves[0][(rank - 2 - step) % size],
            arriving[1] + halves[1][(rank + 2 + step) % size],
        ]
    output.copy_(torch.cat(passing))


RIGHT = [
    reduce_scatter_in_odd_even_order,
    reduce_scatter_the_other_way_round,
    reduce_scatter_by_recursion,
    reduce_scatter_in_both_directions,
]

WRONG = {
    starts_with_its_own_chunk: {"result": "rank 0 must have chunk 0. A chunk makes N-1 hops"},
    last_chunk_not_added: {"result": "hold the values of rank 1 only"},
    adds_the_chunk_of_the_round_before: {
        "result": "chunk 1 of rank 0 and chunk 0 of rank 1; rank 0 must have the sum of chunk 0"
    },
    chunks_in_the_other_direction: {"result": "if you send to rank - 1, one forward."},
    passes_on_without_adding: {"result": "Its own values are missing: add your own chunk to"},
    one_round_less: {
        "result": "this is chunk 1 of rank 0; rank 0 must have the sum of chunk 0 of all 2 ranks.",
        "bytes": "Some chunks are not sent",
    },
    one_round_more: {
        "result": "this is chunk 1 of the sum, with the chunk of rank 0 twice, and rank 0 must",
        "bytes": "Some chunks are sent further than needed",
        "rounds": "4 rounds on 4 ranks; a ring needs N-1 = 3. Stop after N-1 rounds",
    },
    sends_to_rank_plus_one: {"result": "The last rank has no right neighbour"},
    never_counts_its_rounds: {"result": "Look for a loop that does not end"},
    own_chunk_twice: {"result": "those of rank 0 twice"},
    adds_to_what_was_in_the_output: {"result": "the old content of `output`"},
    same_chunk_in_every_round: {"result": "Right on 1 and 2 ranks only"},
    own_chunk_only: {
        "result": "hold the values of rank 0 only",
        "bytes": "Some chunks are not sent",
    },
    buffer_as_large_as_the_input: {"result": "Calls did not match before this exception: rank"},
    average: {"result": "this is the average; the sum is asked for"},
    returned_but_not_in_the_output: {"result": "you return the right sum but leave `output`"},
    buffer_read_before_it_is_full: {"result": "2 ranks"},
    nobody_waits_for_what_is_sent: {"result": "does not wait for its dist.isend"},
    sums_in_the_input: {"input": "you have changed `input`"},
    receives_into_the_input: {"input": "you have changed `input`"},
    whole_tensor_in_every_round: {"bytes": "You pass the whole tensor on in every round"},
    fp64_on_the_wire: {"bytes": "float64: send the tensor's own dtype"},
    everything_to_rank_0: {
        "bytes": "The ranks do not share the work",
        "neighbours": "rank 0 exchanges messages with rank 2 too",
    },
    straight_to_its_owner: {"neighbours": "rank 0 exchanges messages with rank 2 too"},
    whole_all_reduce: {"bytes": "both halves of a ring", "rounds": "a ring needs N-1 = 3"},
    half_a_chunk_in_a_round: {"rounds": "send a whole chunk in one message"},
    ignores_the_group: {"subgroups": "Pass `group` to every call"},
    ranks_of_the_group_taken_for_global_ones: {"subgroups": "Use ranks of the group"},
    chunk_of_the_global_rank: {"subgroups": "Use ranks of the group"},
    without_a_group: {"subgroups": "takes no `group`"},
    torch_reduce_scatter: {"result": "reduce_scatter of torch.distributed does the work for you"},
    torch_all_reduce: {"result": "all_reduce of torch.distributed does the work for you"},
    finished_reduce_scatter: {"result": "dtlab.collectives.ring_reduce_scatter does the work"},
    all_reduce_below_the_recorder: {"result": "left it as the operating system counts"},
    reduce_scatter_of_the_backend_itself: {"result": "left it as the operating system counts"},
    through_the_store: {"result": "the data arrived another way"},
    everyone_receives_first: {"result": "Every rank receives before it sends"},
    never_ends: {"result": "ranks 0 to 3 are still running"},
    untouched: {"result": "reduce_scatter is not written yet"},
    does_nothing: {"result": "`output` is unchanged", "bytes": "Some chunks are not sent"},
}

EQUIVALENT = {
    "arriving = torch.empty_like(output) -> arriving = output": (
        "nobody needs `output` before the end"
    ),
    "sending.wait(); in_hand = arriving + chunks[(rank - 2 - step) % size]"
    " -> in_hand = arriving + chunks[(rank - 2 - step) % size]; sending.wait()": (
        "the sum is a tensor of its own, and not the one that is being sent"
    ),
    "in_hand = arriving + chunks[(rank - 2 - step) % size]"
    " -> in_hand = arriving + chunks[rank - 2 - step]": (
        "a negative index counts from the end, and none is below -size"
    ),
}
