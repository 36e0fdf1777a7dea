"""Answers to 01/tree_broadcast: the mistakes people make, and right answers written differently.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. What is named neither there nor "blocked" in the report must be earned.
"""

import torch
import torch.distributed as dist

import dtlab.collectives


def seat(src, group):
    """How far this rank is after `src` within the group, and the size of the group."""
    size = dist.get_world_size(group)
    root = dist.get_process_group_ranks(group).index(src)
    return (dist.get_rank(group) - root) % size, size, root


# Wrong ------------------------------------------------------------------------------


def heap(tensor, src, group=None):
    """Two children each, in the order of a heap: the first to know rests while others send."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    root = dist.get_group_rank(group or dist.group.WORLD, src)
    place = (rank - root) % size
    if place:
        dist.recv(tensor, group=group, group_src=((place - 1) // 2 + root) % size)
    for child in (2 * place + 1, 2 * place + 2):
        if child < size:
            dist.send(tensor, group=group, group_dst=(child + root) % size)


def source_sends_to_all(tensor, src, group=None):
    me, size, root = seat(src, group)
    if me > 0:
        dist.recv(tensor, group=group, group_src=root)
        return
    for other in range(1, size):
        dist.send(tensor, group=group, group_dst=(root + other) % size)


def one_after_the_other(tensor, src, group=None):
    me, size, root = seat(src, group)
    if me > 0:
        dist.recv(tensor, group=group, group_src=(root + me - 1) % size)
    if me < size - 1:
        dist.send(tensor, group=group, group_dst=(root + me + 1) % size)


def smallest_branch_first(tensor, src, group=None):
    me, size, root = seat(src, group)
    if me > 0:
        dist.recv(tensor, group=group, group_src=(root + (me & (me - 1))) % size)
    distance = 1
    while distance < (me & -me or size) and me + distance < size:
        dist.send(tensor, group=group, group_dst=(root + me + distance) % size)
        distance *= 2


def in_two_messages(tensor, src, group=None):
    for half in tensor.tensor_split(2):
        tree_by_doubling(half, src, group)


def two_trees_where_one_will_do(tensor, src, group=None):
    tree_by_doubling(tensor, src, group)
    tree_by_doubling(tensor, src, group)


def fp64_on_the_wire(tensor, src, group=None):
    wide = tensor.double()
    tree_by_doubling(wide, src, group)
    tensor.copy_(wide)


def also_to_those_who_have_it(tensor, src, group=None):
    """In every round all that have it send to the rank 1, 2, 4, ... further: round the end too."""
    me, size, root = seat(src, group)
    have = 1
    while have < size:
        sending = None
        if me < have:
            sending = dist.isend(tensor.clone(), group=group, group_dst=(root + me + have) % size)
        source = (me - have) % size
        if source < have:
            dist.recv(tensor, group=group, group_src=(root + source) % size)
        if sending is not None:
            sending.wait()
        have *= 2


def scattered_then_gathered(tensor, src, group=None):
    """Right for large tensors in general; here a tree is asked for."""
    me, size, root = seat(src, group)
    chunks = tensor.tensor_split(size)
    if me > 0:
        dist.recv(chunks[me], group=group, group_src=root)
    for other in range(1, size if me == 0 else 0):
        dist.send(chunks[other], group=group, group_dst=(root + other) % size)
    for step in range(size - 1):
        to, source = (root + me + 1) % size, (root + me - 1) % size
        sending = dist.isend(chunks[(me - step) % size], group=group, group_dst=to)
        dist.recv(chunks[(me - step - 1) % size], group=group, group_src=source)
        sending.wait()


def always_from_rank_0(tensor, src, group=None):
    tree_by_doubling(tensor, dist.get_process_group_ranks(group)[0], group)


def positions_taken_for_ranks(tensor, src, group=None):
    place, size, _ = seat(src, group)
    if place > 0:
        dist.recv(tensor, group=group, group_src=place & (place - 1))
    for power in reversed(range(size.bit_length())):
        if place % (2 << power) == 0 and place + (1 << power) < size:
            dist.send(tensor, group=group, group_dst=place + (1 << power))


def group_rank_in_no_group(tensor, src, group=None):
    tree_by_doubling(tensor, dist.get_group_rank(group, src), group)


def powers_of_two_only(tensor, src, group=None):
    size, root = seat(src, group)[1:]
    me, have = dist.get_rank(group) ^ root, 1
    while have < size:
        if me < have:
            dist.send(tensor, group=group, group_dst=root ^ (me + have))
        elif me < 2 * have:
            dist.recv(tensor, group=group, group_src=root ^ (me - have))
        have *= 2


def last_round_left_out(tensor, src, group=None):
    me, size, root = seat(src, group)
    have = 1
    while 2 * have <= size:
        if me < have and me + have < size:
            dist.send(tensor, group=group, group_dst=(root + me + have) % size)
        elif have <= me < 2 * have:
            dist.recv(tensor, group=group, group_src=(root + me - have) % size)
        have *= 2


def returned_but_not_in_place(tensor, src, group=None):
    copy = tensor.clone()
    tree_by_doubling(copy, src, group)
    return copy


def added_to_what_was_there(tensor, src, group=None):
    copy = tensor.clone()
    tree_by_doubling(copy, src, group)
    if dist.get_rank() != src:
        tensor += copy


def ignores_the_group(tensor, src, group=None):
    tree_by_doubling(tensor, src)


def source_counted_in_the_group(tensor, src, group=None):
    """Takes `src` for a rank of the group."""
    root = src % dist.get_world_size(group)
    tree_by_doubling(tensor, dist.get_process_group_ranks(group)[root], group)


def ranks_of_the_group_taken_for_global_ones(tensor, src, group=None):
    me, size, root = seat(src, group)
    have = 1
    while have < size:
        if me < have and me + have < size:
            dist.send(tensor, (root + me + have) % size, group)
        elif have <= me < 2 * have:
            dist.recv(tensor, (root + me - have) % size, group)
        have *= 2


def without_a_group(tensor, src):
    tree_by_doubling(tensor, src)


def torch_broadcast(tensor, src, group=None):
    dist.broadcast(tensor, src, group)


def torch_broadcast_object(tensor, src, group=None):
    held = [tensor]
    dist.broadcast_object_list(held, src, group)
    tensor.copy_(held[0])


def finished_tree(tensor, src, group=None):
    dtlab.collectives.tree_broadcast(tensor, src, group)


def broadcast_below_the_recorder(tensor, src, group=None):
    group = group or dist.distributed_c10d._get_default_group()
    root = dist.get_group_rank(group, src)
    key = torch._C.DispatchKey.BackendSelect
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        group.broadcast(tensor, root).wait()


def through_the_store(tensor, src, group=None):
    store = dist.distributed_c10d._get_default_store()
    members = dist.get_process_group_ranks(group)
    call = store.add(f"calls of rank {dist.get_rank()} in {members}", 1)
    if dist.get_rank() == src:
        store.set(f"{members} {call}", tensor.numpy().tobytes())
    data = bytearray(store.get(f"{members} {call}"))
    tensor.copy_(torch.frombuffer(data, dtype=tensor.dtype))


def everyone_receives_first(tensor, src, group=None):
    """So does the source."""
    me, size, root = seat(src, group)
    if size > 1:
        above = me & (me - 1) if me > 0 else size - 1
        dist.recv(tensor, group=group, group_src=(root + above) % size)


def untouched(tensor, src, group=None):
    raise NotImplementedError()


def does_nothing(tensor, src, group=None):
    pass


def receives_before_its_round(tensor, src, group=None):
    size = dist.get_world_size(group)
    root = src if group is None else dist.get_group_rank(group, src)
    place, have = (dist.get_rank(group) - root) % size, 1
    while have < size:
        if place < have:
            if place + have < size:
                dist.send(tensor, group=group, group_dst=(place + have + root) % size)
        else:
            dist.recv(tensor, group=group, group_src=(place - have + root) % size)
        have *= 2


def sends_to_places_beyond_the_last(tensor, src, group=None):
    size = dist.get_world_size(group)
    root = src if group is None else dist.get_group_rank(group, src)
    place, have = (dist.get_rank(group) - root) % size, 1
    while have < size:
        if place < have:
            dist.send(tensor, group=group, group_dst=(place + have + root) % size)
        elif place < 2 * have:
            dist.recv(tensor, group=group, group_src=(place - have + root) % size)
        have *= 2


def first_place_does_not_receive(tensor, src, group=None):
    """`place > have` instead of `place >= have`."""
    size = dist.get_world_size(group)
    root = src if group is None else dist.get_group_rank(group, src)
    place, have = (dist.get_rank(group) - root) % size, 1
    while have < size:
        if place < have and place + have < size:
            dist.send(tensor, group=group, group_dst=(place + have + root) % size)
        elif have < place < 2 * have:
            dist.recv(tensor, group=group, group_src=(place - have + root) % size)
        have *= 2


# Right, written differently --------------------------------------------------------------------


def tree_by_doubling(tensor, src, group=None):
    """In every round, all that have it send to one that has not: twice as many have it then."""
    me, size, root = seat(src, group)
    have = 1
    while have < size:
        if me < have and me + have < size:
            dist.send(tensor, group=group, group_dst=(root + me + have) % size)
        elif have <= me < 2 * have:
            dist.recv(tensor, group=group, group_src=(root + me - have) % size)
        have *= 2


def tree_by_splitting(tensor, src, group=None):
    """Recursion on global ranks: give it to the first of the other half, then each has a half."""
    members = dist.get_process_group_ranks(group)
    at = members.index(src)
    me = dist.get_rank()

    def spread(ranks):
        if len(ranks) == 1:
            return
        middle = (len(ranks) + 1) // 2
        if me == ranks[0]:
            dist.send(tensor, ranks[middle], group)
        elif me == ranks[middle]:
            dist.recv(tensor, ranks[0], group)
        spread(ranks[:middle] if me in ranks[:middle] else ranks[middle:])

    spread(members[at:] + members[:at])


def tree_largest_branch_first(tensor, src, group=None):
    """Sends to all its children at once and waits for them in the end."""
    me, size, root = seat(src, group)
    if me > 0:
        dist.irecv(tensor, group=group, group_src=(root + (me & (me - 1))) % size).wait()
    distances = [1 << k for k in range(size.bit_length()) if 1 << k < (me & -me or size)]
    children = [me + distance for distance in reversed(distances) if me + distance < size]
    sending = [
        dist.isend(tensor, group=group, group_dst=(root + child) % size) for child in children
    ]
    for work in sending:
        work.wait()


RIGHT = [tree_by_doubling, tree_by_splitting, tree_largest_branch_first]

WRONG = {
    heap: {"rounds": "4 rounds on 7 ranks; a tree needs 3"},
    source_sends_to_all: {"rounds": "6 rounds on 7 ranks; a tree needs 3"},
    one_after_the_other: {"rounds": "6 rounds on 7 ranks; a tree needs 3"},
    smallest_branch_first: {"rounds": "rounds on 7 ranks; a tree needs 3"},
    in_two_messages: {"rounds": "rounds on 7 ranks; a tree needs 3"},
    two_trees_where_one_will_do: {"once": "received 2.1 MB", "rounds": "rounds on 7 ranks"},
    fp64_on_the_wire: {"once": "float64: send the tensor's own dtype"},
    also_to_those_who_have_it: {"once": "has the tensor already"},
    scattered_then_gathered: {"once": "received", "rounds": "a tree needs 3"},
    always_from_rank_0: {"result": "hold the values of rank 0, not those of rank 1"},
    positions_taken_for_ranks: {"result": "Right only with src=0."},
    group_rank_in_no_group: {"result": "Call dist.get_group_rank only if"},
    powers_of_two_only: {"result": "Right only if the number of ranks is a power of two"},
    last_round_left_out: {"result": "Right only if the number of ranks is a power of two"},
    returned_but_not_in_place: {"result": "but leave `tensor` unchanged"},
    added_to_what_was_there: {"result": "hold the values of ranks 0 and 1"},
    ignores_the_group: {"subgroups": "Pass `group` to every call"},
    source_counted_in_the_group: {"subgroups": "`src` is a global rank"},
    ranks_of_the_group_taken_for_global_ones: {"subgroups": "Use ranks of the group"},
    without_a_group: {"subgroups": "takes no `group`"},
    torch_broadcast: {"result": "broadcast of torch.distributed does the work for you"},
    torch_broadcast_object: {"result": "broadcast of torch.distributed does the work for you"},
    finished_tree: {"result": "dtlab.collectives.tree_broadcast does the work for you"},
    broadcast_below_the_recorder: {"result": "left it as the operating system counts"},
    through_the_store: {"result": "the data arrived another way"},
    receives_before_its_round: {"result": "a place receives only in the round in which"},
    sends_to_places_beyond_the_last: {"result": "The last place is N - 1"},
    first_place_does_not_receive: {"result": "Place 1 does not have the tensor yet and must"},
    everyone_receives_first: {"result": "the ranks did not finish"},
    untouched: {"result": "tree_broadcast is not written yet"},
    does_nothing: {"result": "hold the values of rank 1, not those of rank 0"},
}

EQUIVALENT = {
    "while have < size: -> while have <= size:": (
        "nobody sends or receives in the round that is added"
    ),
}
