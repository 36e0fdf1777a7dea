"""Answers to 01/fix_3: groups whose collectives are called in another order.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

WAITS = {
    0: ("all_reduce", {1}),
    1: ("all_reduce", {4}),
    2: ("all_reduce", {1}),
    3: ("all_reduce", {0}),
    4: ("all_reduce", {3, 5}),
    5: ("all_reduce", {2}),
}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": WAITS, "fixed": fn})


def said(diagnosis):
    """This diagnosis, and a function that is right."""
    return {"diagnosis": diagnosis, "fixed": rows_then_columns}


def groups_of(per_row):
    """The group of this rank's row, and that of its column."""
    grid = torch.arange(dist.get_world_size()).view(-1, per_row)
    rows = [dist.new_group(row.tolist()) for row in grid]
    columns = [dist.new_group(column.tolist()) for column in grid.T]
    row, column = divmod(dist.get_rank(), per_row)
    return rows[row], columns[column]


def rows_then_columns(outputs, gradients, per_row):
    row, column = groups_of(per_row)
    dist.all_reduce(outputs, group=row)
    dist.all_reduce(gradients, group=column)


# Wrong: the diagnosis ---------------------------------------------------------------------------


def all_other_members_named():
    peers = {0: {1, 2}, 1: {4}, 2: {0, 1}, 3: {0}, 4: {3, 5}, 5: {2}}
    return said({rank: ("all_reduce", others) for rank, others in peers.items()})


def as_on_two_rows_of_two():
    return said({0: ("all_reduce", 1), 1: ("all_reduce", 3), 2: ("all_reduce", 0),
                 3: ("all_reduce", 2)})  # fmt: skip


def everybody_begins_with_the_row():
    others = {rank: set(range(rank // 3 * 3, rank // 3 * 3 + 3)) - {rank} for rank in range(6)}
    return said({rank: ("all_reduce", ranks) for rank, ranks in others.items()})


def everybody_begins_with_the_column():
    return said({rank: ("all_reduce", (rank + 3) % 6) for rank in range(6)})


def colours_exchanged():
    peers = {0: {3}, 1: {0, 2}, 2: {5}, 3: {4}, 4: {1}, 5: {4}}
    return said({rank: ("all_reduce", others) for rank, others in peers.items()})


def half_of_them_come_back():
    return said({rank: wait for rank, wait in WAITS.items() if rank % 2 == 0})


def waits_in_new_group():
    return said({rank: ("new_group", ranks) for rank, (_, ranks) in WAITS.items()})


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(outputs, gradients, per_row):
    row, column = groups_of(per_row)
    if sum(divmod(dist.get_rank(), per_row)) % 2 == 0:
        dist.all_reduce(outputs, group=row)
        dist.all_reduce(gradients, group=column)
    else:
        dist.all_reduce(gradients, group=column)
        dist.all_reduce(outputs, group=row)


@fixed
def the_other_half_begins(outputs, gradients, per_row):
    row, column = groups_of(per_row)
    if sum(divmod(dist.get_rank(), per_row)) % 2 == 1:
        dist.all_reduce(outputs, group=row)
        dist.all_reduce(gradients, group=column)
    else:
        dist.all_reduce(gradients, group=column)
        dist.all_reduce(outputs, group=row)


@fixed
def a_barrier_between(outputs, gradients, per_row):
    row, column = groups_of(per_row)
    if sum(divmod(dist.get_rank(), per_row)) % 2 == 0:
        dist.all_reduce(outputs, group=row)
        dist.barrier()
        dist.all_reduce(gradients, group=column)
    else:
        dist.all_reduce(gradients, group=column)
        dist.barrier()
        dist.all_reduce(outputs, group=row)


@fixed
def asynchronous_but_waited_for_at_once(outputs, gradients, per_row):
    row, column = groups_of(per_row)
    both = [(outputs, row), (gradients, column)]
    if sum(divmod(dist.get_rank(), per_row)) % 2 == 1:
        both.reverse()
    for tensor, group in both:
        dist.all_reduce(tensor, group=group, async_op=True).wait()


@fixed
def only_members_make_a_group(outputs, gradients, per_row):
    size, (row, column) = dist.get_world_size(), divmod(dist.get_rank(), per_row)
    row_group = dist.new_group(list(range(row * per_row, (row + 1) * per_row)))
    column_group = dist.new_group(list(range(column, size, per_row)))
    dist.all_reduce(outputs, group=row_group)
    dist.all_reduce(gradients, group=column_group)


@fixed
def rows_and_columns_mixed_up(outputs, gradients, per_row):
    row, column = groups_of(per_row)
    dist.all_reduce(outputs, group=column)
    dist.all_reduce(gradients, group=row)


@fixed
def over_all_ranks(outputs, gradients, per_row):
    dist.all_reduce(outputs)
    dist.all_reduce(gradients)


@fixed
def averages(outputs, gradients, per_row):
    rows_then_columns(outputs, gradients, per_row)
    outputs /= per_row


@fixed
def columns_left_out(outputs, gradients, per_row):
    row, _ = groups_of(per_row)
    dist.all_reduce(outputs, group=row)


@fixed
def returned_but_not_in_place(outputs, gradients, per_row):
    copies = outputs.clone(), gradients.clone()
    rows_then_columns(*copies, per_row)
    return copies


@fixed
def rows_added_twice(outputs, gradients, per_row):
    rows_then_columns(outputs, gradients, per_row)
    row, _ = groups_of(per_row)
    dist.all_reduce(outputs, group=row)


@fixed
def not_written(outputs, gradients, per_row):
    raise NotImplementedError()


@fixed
def gathered_from_all_ranks(outputs, gradients, per_row):
    rank, size = dist.get_rank(), dist.get_world_size()
    for tensor, members in (
        (outputs, [other for other in range(size) if other // per_row == rank // per_row]),
        (gradients, [other for other in range(size) if other % per_row == rank % per_row]),
    ):
        parts = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor)
        tensor.copy_(sum(parts[other] for other in members))


@fixed
def a_table_of_all_rows_and_columns(outputs, gradients, per_row):
    rank, size = dist.get_rank(), dist.get_world_size()
    row, column = divmod(rank, per_row)
    rows, columns = (
        torch.zeros(size // per_row, len(outputs)),
        torch.zeros(per_row, len(gradients)),
    )
    rows[row], columns[column] = outputs, gradients
    dist.all_reduce(rows)
    dist.all_reduce(columns)
    outputs.copy_(rows[row])
    gradients.copy_(columns[column])


@fixed
def reduced_then_broadcast(outputs, gradients, per_row):
    for tensor, group in zip((outputs, gradients), groups_of(per_row), strict=True):
        dist.reduce(tensor, group=group, group_dst=0)
        dist.broadcast(tensor, group=group, group_src=0)


@fixed
def in_halves(outputs, gradients, per_row):
    row, column = groups_of(per_row)
    for half in outputs.tensor_split(2):
        dist.all_reduce(half, group=row)
    dist.all_reduce(gradients, group=column)


@fixed
def fp64_on_the_wire(outputs, gradients, per_row):
    wide = outputs.double(), gradients.double()
    rows_then_columns(*wide, per_row)
    outputs.copy_(wide[0])
    gradients.copy_(wide[1])


# Right, written differently ---------------------------------------------------------------------


def all_begin_with_their_rows():
    return said(WAITS)


@fixed
def all_begin_with_their_columns(outputs, gradients, per_row):
    row, column = groups_of(per_row)
    dist.all_reduce(gradients, group=column)
    dist.all_reduce(outputs, group=row)


@fixed
def both_at_the_same_time(outputs, gradients, per_row):
    """In the order of the broken program, which does no harm where nobody waits in between."""
    row, column = groups_of(per_row)
    both = [(outputs, row), (gradients, column)]
    if sum(divmod(dist.get_rank(), per_row)) % 2 == 1:
        both.reverse()
    for work in [dist.all_reduce(one, group=group, async_op=True) for one, group in both]:
        work.wait()


@fixed
def rows_take_turns(outputs, gradients, per_row):
    """All ranks of a row begin with the same; so no two wait for each other."""
    row, column = groups_of(per_row)
    both = [(outputs, row), (gradients, column)]
    if dist.get_rank() // per_row % 2 == 1:
        both.reverse()
    for tensor, group in both:
        dist.all_reduce(tensor, group=group)


@fixed
def on_a_device_mesh(outputs, gradients, per_row):
    shape = (dist.get_world_size() // per_row, per_row)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("column", "row"))
    dist.all_reduce(outputs, group=mesh.get_group("row"))
    dist.all_reduce(gradients, group=mesh.get_group("column"))


RIGHT = [
    all_begin_with_their_rows,
    all_begin_with_their_columns,
    both_at_the_same_time,
    rows_take_turns,
    on_a_device_mesh,
]

WRONG = {
    all_other_members_named: {"diagnosis": "in the same call has already called it"},
    as_on_two_rows_of_two: {"diagnosis": "rank 1 waits in all_reduce, but not for rank 3"},
    everybody_begins_with_the_row: {"diagnosis": "in the same call has already called it"},
    everybody_begins_with_the_column: {"diagnosis": "rank 0 waits in all_reduce, but not for"},
    colours_exchanged: {"diagnosis": "rank 0 waits in all_reduce, but not for rank 3"},
    half_of_them_come_back: {"diagnosis": "rank 1 has not finished either"},
    waits_in_new_group: {"diagnosis": "rank 0 does not wait in new_group"},
    still_broken: {"result": "call the collectives of its groups in the same order"},
    the_other_half_begins: {"result": "call the collectives of its groups in the same order"},
    a_barrier_between: {"result": "the ranks did not finish"},
    asynchronous_but_waited_for_at_once: {"result": "the ranks did not finish"},
    only_members_make_a_group: {"result": ""},
    rows_and_columns_mixed_up: {"result": "Sum the outputs over the row, and the gradients"},
    over_all_ranks: {"result": "outputs: "},
    averages: {"result": "this is the average; the sum is asked for"},
    columns_left_out: {"result": "rank 0, gradients: "},
    returned_but_not_in_place: {"result": "of rank 0 only"},
    rows_added_twice: {"result": "rank 0, outputs: "},
    not_written: {"result": "not_written is not written yet"},
    gathered_from_all_ranks: {"traffic": "rank 0 calls all_gather"},
    a_table_of_all_rows_and_columns: {"traffic": "rank 0 sent"},
    reduced_then_broadcast: {"traffic": "rank 0 calls broadcast"},
    in_halves: {"traffic": "rank 0 makes 3 calls"},
    fp64_on_the_wire: {"traffic": "rank 0 sent"},
}

EQUIVALENT = {
    "dist.all_reduce(outputs, group=rows[row]); dist.all_reduce(gradients, group=columns[column])"
    " -> dist.all_reduce(gradients, group=columns[column]); "
    "dist.all_reduce(outputs, group=rows[row])": (
        "either order does, as long as all ranks have the same"
    ),
}
