"""Answers to 01/hierarchical_all_reduce: mistakes people make, and right answers put differently.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. What is named neither there nor "blocked" in the report must be earned.
"""

import torch
import torch.distributed as dist

import dtlab.collectives


def swap(outgoing, arriving, ranks, group):
    """One round of a ring of `ranks`, counted in the group."""
    at = ranks.index(dist.get_rank(group))
    sending = dist.isend(outgoing, group=group, group_dst=ranks[(at + 1) % len(ranks)])
    dist.recv(arriving, group=group, group_src=ranks[at - 1])
    sending.wait()
    return arriving


def add_up(chunks, ranks, group):
    """Reduce-scatter: the sum of chunk r is on the r-th of `ranks` afterwards."""
    at, size = ranks.index(dist.get_rank(group)), len(ranks)
    for step in range(size - 1):
        mine = chunks[(at - 2 - step) % size]
        mine += swap(chunks[(at - 1 - step) % size], torch.empty_like(mine), ranks, group)


def hand_round(chunks, ranks, group):
    """All-gather: chunk r of the r-th of `ranks` is on all of them afterwards."""
    at, size = ranks.index(dist.get_rank(group)), len(ranks)
    for step in range(size - 1):
        swap(chunks[(at - step) % size], chunks[(at - 1 - step) % size], ranks, group)


def ring(tensor, ranks, group):
    chunks = tensor.tensor_split(len(ranks))
    add_up(chunks, ranks, group)
    hand_round(chunks, ranks, group)


def places(group, ranks_per_node):
    """The ranks of the own node, the ranks at the same seat of all nodes, and that seat."""
    node, seat = divmod(dist.get_rank(group), ranks_per_node)
    first = node * ranks_per_node
    inside = list(range(first, first + ranks_per_node))
    across = list(range(seat, dist.get_world_size(group), ranks_per_node))
    return inside, across, seat


# Wrong ------------------------------------------------------------------------------


def one_flat_ring(tensor, group=None, ranks_per_node=1):
    ring(tensor, list(range(dist.get_world_size(group))), group)


def leaders_alone_talk_between_nodes(tensor, group=None, ranks_per_node=1):
    inside, across, seat = places(group, ranks_per_node)
    if seat > 0:
        dist.send(tensor, group=group, group_dst=inside[0])
        dist.recv(tensor, group=group, group_src=inside[0])
        return
    arriving = torch.empty_like(tensor)
    for other in inside[1:]:
        dist.recv(arriving, group=group, group_src=other)
        tensor += arriving
    ring(tensor, across, group)
    for other in inside[1:]:
        dist.send(tensor, group=group, group_dst=other)


def whole_tensor_between_nodes(tensor, group=None, ranks_per_node=1):
    inside, across, _ = places(group, ranks_per_node)
    ring(tensor, inside, group)
    ring(tensor, across, group)


def nodes_first(tensor, group=None, ranks_per_node=1):
    """Scatters between the nodes and sums within them: the wrong way round."""
    inside, across, _ = places(group, ranks_per_node)
    parts = tensor.tensor_split(len(across))
    add_up(parts, across, group)
    ring(parts[across.index(dist.get_rank(group))], inside, group)
    hand_round(parts, across, group)


def nodes_as_a_stride(tensor, group=None, ranks_per_node=1):
    """Puts ranks 0, n, 2n, ... into one node."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    nodes = size // ranks_per_node
    inside = list(range(rank % nodes, size, nodes))
    across = list(range(rank // nodes * nodes, rank // nodes * nodes + nodes))
    parts = tensor.tensor_split(len(inside))
    add_up(parts, inside, group)
    ring(parts[inside.index(rank)], across, group)
    hand_round(parts, inside, group)


def everything_to_all_between_nodes(tensor, group=None, ranks_per_node=1):
    """Every node sends its sums to every other one."""
    inside, across, seat = places(group, ranks_per_node)
    parts = tensor.tensor_split(len(inside))
    add_up(parts, inside, group)
    own = parts[seat].clone()
    passing = own
    for _ in across[1:]:
        passing = swap(passing, torch.empty_like(own), across, group)
        parts[seat].add_(passing)
    hand_round(parts, inside, group)


def two_ranks_in_a_node(tensor, group=None, ranks_per_node=1):
    """Whatever it is told: ranks 0 and 1, 2 and 3, ..., the last one perhaps alone with nobody."""
    size = dist.get_world_size(group)
    hierarchical_ring(tensor, group, 2 if size % 2 == 0 else 1)


def part_of_another_seat(tensor, group=None, ranks_per_node=1):
    inside, across, seat = places(group, ranks_per_node)
    parts = tensor.tensor_split(len(inside))
    add_up(parts, inside, group)
    ring(parts[seat - 1], across, group)
    hand_round(parts, inside, group)


def whole_tensor_within_the_node(tensor, group=None, ranks_per_node=1):
    """Every rank of a node gets the tensors of the others whole, and keeps its part of the sum."""
    inside, across, seat = places(group, ranks_per_node)
    passing = tensor.clone()
    for _ in inside[1:]:
        passing = swap(passing, torch.empty_like(passing), inside, group)
        tensor += passing
    parts = tensor.tensor_split(len(inside))
    ring(parts[seat], across, group)
    hand_round(parts, inside, group)


def fp64_on_the_wire(tensor, group=None, ranks_per_node=1):
    wide = tensor.double()
    hierarchical_ring(wide, group, ranks_per_node)
    tensor.copy_(wide)


def nodes_never_meet(tensor, group=None, ranks_per_node=1):
    inside, _, _ = places(group, ranks_per_node)
    ring(tensor, inside, group)


def not_handed_round_in_the_node(tensor, group=None, ranks_per_node=1):
    inside, across, seat = places(group, ranks_per_node)
    parts = tensor.tensor_split(len(inside))
    add_up(parts, inside, group)
    ring(parts[seat], across, group)


def not_handed_round_between_nodes(tensor, group=None, ranks_per_node=1):
    inside, across, seat = places(group, ranks_per_node)
    parts = tensor.tensor_split(len(inside))
    add_up(parts, inside, group)
    add_up(parts[seat].tensor_split(len(across)), across, group)
    hand_round(parts, inside, group)


def parts_of_one_size(tensor, group=None, ranks_per_node=1):
    inside, across, seat = places(group, ranks_per_node)
    parts = tensor.view(len(inside), -1)
    add_up(parts, inside, group)
    pieces = parts[seat].view(len(across), -1)
    add_up(pieces, across, group)
    hand_round(pieces, across, group)
    hand_round(parts, inside, group)


def average(tensor, group=None, ranks_per_node=1):
    hierarchical_ring(tensor, group, ranks_per_node)
    tensor /= dist.get_world_size(group)


def returned_but_not_in_place(tensor, group=None, ranks_per_node=1):
    total = tensor.clone()
    hierarchical_ring(total, group, ranks_per_node)
    return total


def ignores_the_group(tensor, group=None, ranks_per_node=1):
    hierarchical_ring(tensor, None, ranks_per_node)


def nodes_of_global_ranks(tensor, group=None, ranks_per_node=1):
    node, seat = divmod(dist.get_rank(), ranks_per_node)
    first = node * ranks_per_node
    inside = list(range(first, first + ranks_per_node))
    across = list(range(seat, dist.get_world_size(group), ranks_per_node))
    parts = tensor.tensor_split(len(inside))
    add_up(parts, inside, group)
    ring(parts[seat], across, group)
    hand_round(parts, inside, group)


def without_a_group(tensor, ranks_per_node=1):
    hierarchical_ring(tensor, None, ranks_per_node)


def torch_all_reduce(tensor, group=None, ranks_per_node=1):
    dist.all_reduce(tensor, group=group)


def finished_hierarchical(tensor, group=None, ranks_per_node=1):
    finished = dtlab.collectives.hierarchical_all_reduce
    finished(tensor, group=group, ranks_per_node=ranks_per_node)


def all_reduce_below_the_recorder(tensor, group=None, ranks_per_node=1):
    group = group or dist.distributed_c10d._get_default_group()
    key = torch._C.DispatchKey.BackendSelect
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        group.allreduce(tensor).wait()


def through_the_store(tensor, group=None, ranks_per_node=1):
    store = dist.distributed_c10d._get_default_store()
    members = dist.get_process_group_ranks(group)
    call = store.add(f"{members} {dist.get_rank()}", 1)
    store.set(f"{members} {call} {dist.get_rank()}", tensor.numpy().tobytes())
    every = [bytearray(store.get(f"{members} {call} {member}")) for member in members]
    tensor.copy_(sum(torch.frombuffer(data, dtype=tensor.dtype) for data in every))


def everyone_receives_first(tensor, group=None, ranks_per_node=1):
    inside, _, seat = places(group, ranks_per_node)
    arriving = torch.empty_like(tensor)
    if len(inside) > 1:
        dist.recv(arriving, group=group, group_src=inside[seat - 1])
        dist.send(tensor, group=group, group_dst=inside[(seat + 1) % len(inside)])


def untouched(tensor, group=None, ranks_per_node=1):
    raise NotImplementedError()


def does_nothing(tensor, group=None, ranks_per_node=1):
    pass


# Right, written differently --------------------------------------------------------------------


def hierarchical_ring(tensor, group=None, ranks_per_node=1):
    inside, across, seat = places(group, ranks_per_node)
    parts = tensor.tensor_split(len(inside))
    add_up(parts, inside, group)
    ring(parts[seat], across, group)
    hand_round(parts, inside, group)


def hierarchical_by_groups_of_its_own(tensor, group=None, ranks_per_node=1):
    """Makes a group of each node and of each seat, and lets those count the ranks."""
    inside, across, seat = places(group, ranks_per_node)
    members = dist.get_process_group_ranks(group)
    made = [
        dist.new_group([members[rank] for rank in ranks], use_local_synchronization=True)
        for ranks in (inside, across)
    ]
    node, same_seat = (list(range(len(ranks))) for ranks in (inside, across))
    parts = list(tensor.clone().tensor_split(len(inside)))
    add_up(parts, node, made[0])
    ring(parts[seat], same_seat, made[1])
    hand_round(parts, node, made[0])
    tensor.copy_(torch.cat(parts))


def hierarchical_straight_to_the_owner(tensor, group=None, ranks_per_node=1):
    """Within the node each rank sends its parts straight to those that sum them, and back."""
    inside, across, seat = places(group, ranks_per_node)
    parts, size = tensor.tensor_split(len(inside)), len(inside)

    def exchange(outgoing, arriving, distance):
        to, source = inside[(seat + distance) % size], inside[(seat - distance) % size]
        sending = dist.isend(outgoing, group=group, group_dst=to)
        dist.recv(arriving, group=group, group_src=source)
        sending.wait()
        return arriving

    for distance in range(1, size):
        own = parts[seat]
        own += exchange(parts[(seat + distance) % size], torch.empty_like(own), distance)
    ring(parts[seat], across, group)
    for distance in range(1, size):
        exchange(parts[seat], parts[(seat - distance) % size], distance)


RIGHT = [
    hierarchical_ring,
    hierarchical_by_groups_of_its_own,
    hierarchical_straight_to_the_owner,
]

WRONG = {
    one_flat_ring: {"between": "one ring over all ranks", "inside": "within its node"},
    leaders_alone_talk_between_nodes: {
        "between": "The ranks of a node do not share the work",
        "inside": "send chunks, not all of S",
    },
    whole_tensor_between_nodes: {"between": "reduce-scatter within the node first"},
    nodes_first: {"between": "reduce-scatter within the node first"},
    nodes_as_a_stride: {"between": "belongs to node", "inside": "ranks_per_node=3"},
    everything_to_all_between_nodes: {"between": "Between nodes"},
    two_ranks_in_a_node: {"between": "ranks_per_node=3", "inside": "ranks_per_node=3"},
    whole_tensor_within_the_node: {"inside": "within its node"},
    fp64_on_the_wire: {
        "between": "float64: send the tensor's own dtype",
        "inside": "float64: send the tensor's own dtype",
    },
    nodes_never_meet: {"result": "if there is only one node: look at the all-reduce between"},
    not_handed_round_in_the_node: {"result": "one rank: look at the two steps inside a node"},
    part_of_another_seat: {"result": "the ranks in seat s sum part s of the tensor"},
    not_handed_round_between_nodes: {"result": "hold the values of"},
    parts_of_one_size: {"result": "let the sizes of chunks differ"},
    average: {"result": "this is the average; the sum is asked for"},
    returned_but_not_in_place: {"result": "you return the right sum but leave `tensor`"},
    ignores_the_group: {"subgroups": "Pass `group` to every call"},
    nodes_of_global_ranks: {"subgroups": "Use ranks of the group"},
    without_a_group: {"subgroups": "takes no `group`"},
    torch_all_reduce: {"result": "all_reduce of torch.distributed does the work for you"},
    finished_hierarchical: {"result": "dtlab.collectives.hierarchical_all_reduce does the work"},
    all_reduce_below_the_recorder: {"result": "left it as the operating system counts"},
    through_the_store: {"result": "the data arrived another way"},
    everyone_receives_first: {"result": "Every rank receives before it sends"},
    untouched: {"result": "hierarchical_all_reduce is not written yet"},
    does_nothing: {"result": "hold the values of rank 0 only"},
}

EQUIVALENT = {
    "pieces = parts[seat].tensor_split(len(between)); sum_round(parts, inside, group)"
    " -> sum_round(parts, inside, group); pieces = parts[seat].tensor_split(len(between))": (
        "pieces are views, and see what is summed later"
    ),
    "mine = chunks[(place - 2 - step) % size] -> mine = chunks[place - 2 - step]": (
        "a negative index counts from the end, and none is below -size"
    ),
    "mine += swap(chunks[(place - 1 - step) % size], torch.empty_like(mine), ranks, ..."
    " -> mine += swap(chunks[place - 1 - step], torch.empty_like(mine), ranks, ...": (
        "a negative index counts from the end, and none is below -size"
    ),
    "swap(chunks[(place - step) % size], chunks[(place - 1 - step) % ..."
    " -> swap(chunks[place - step], chunks[(place - 1 - step) % ...": (
        "a negative index counts from the end, and none is below -size"
    ),
    "swap(chunks[(place - step) % size], chunks[(place - 1 - step) % size], ranks, group)"
    " -> swap(chunks[(place - step) % size], chunks[place - 1 - step], ranks, group)": (
        "a negative index counts from the end, and none is below -size"
    ),
}
