"""Answers to 01/fix_5: an all-reduce of a slice that is not in one piece.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist

from dtlab import collectives

SUMMED = {(number // 3, number % 3) for number in range(10)}
FOUND = {"bytes": 40, "summed": SUMMED}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": FOUND, "fixed": fn})


def said(diagnosis):
    """This diagnosis, and a function that is right."""
    return {"diagnosis": diagnosis, "fixed": copied_and_copied_back}


def summed(tensor):
    dist.all_reduce(tensor)
    return tensor


def copied_and_copied_back(table):
    samples = summed(table[:, 1].sum())
    table[:, :2] = summed(table[:, :2].contiguous())
    return samples


# Wrong: the diagnosis ---------------------------------------------------------------------------


def the_other_all_reduce():
    return said({"bytes": 4, "summed": SUMMED})


def bytes_of_the_whole_table():
    return said({"bytes": 60, "summed": SUMMED})


def elements_for_bytes():
    return said({"bytes": 10, "summed": SUMMED})


def bytes_in_a_list():
    return said({"bytes": [40], "summed": SUMMED})


def what_was_meant_to_be_summed():
    return said({"bytes": 40, "summed": {(row, column) for row in range(5) for column in (0, 1)}})


def as_with_four_classes():
    return said({"bytes": 40, "summed": {(number // 3, number % 3) for number in range(8)}})


def the_first_column_only():
    return said({"bytes": 40, "summed": {(row, 0) for row in range(5)}})


def nothing_is_summed():
    return said({"bytes": 40, "summed": set()})


def columns_and_rows_exchanged():
    return said({"bytes": 40, "summed": {(column, row) for row, column in SUMMED}})


def numbers_of_elements():
    return said({"bytes": 40, "summed": range(10)})


def bytes_alone():
    return said({"bytes": 40})


def bytes_left_open():
    return said({"bytes": None, "summed": SUMMED})


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(table):
    samples = summed(table[:, 1].sum())
    dist.all_reduce(table[:, :2])
    return samples


@fixed
def summed_in_a_copy(table):
    samples = summed(table[:, 1].sum())
    dist.all_reduce(table[:, :2].contiguous())
    return samples


@fixed
def column_by_column(table):
    samples = summed(table[:, 1].sum())
    dist.all_reduce(table[:, 0])
    dist.all_reduce(table[:, 1])
    return samples


@fixed
def rows_of_the_transpose(table):
    samples = summed(table[:, 1].sum())
    dist.all_reduce(table.t()[:2])
    return samples


@fixed
def the_whole_table(table):
    samples = summed(table[:, 1].sum())
    dist.all_reduce(table)
    return samples


@fixed
def added_to_what_was_there(table):
    samples = summed(table[:, 1].sum())
    table[:, :2] += summed(table[:, :2].contiguous())
    return samples


@fixed
def the_first_column_only_is_fixed(table):
    samples = summed(table[:, 1].sum())
    table[:, 0] = summed(table[:, 0].contiguous())
    return samples


@fixed
def averaged(table):
    samples = copied_and_copied_back(table)
    table[:, :2] /= dist.get_world_size()
    return samples


@fixed
def reshaped_wrongly(table):
    samples = summed(table[:, 1].sum())
    columns = summed(table[:, :2].t().contiguous())
    table[:, :2] = columns.view(-1, 2)
    return samples


@fixed
def samples_summed_twice(table):
    copied_and_copied_back(table)
    return summed(table[:, 1].sum())


@fixed
def samples_of_this_rank(table):
    samples = table[:, 1].sum()
    copied_and_copied_back(table)
    return samples


@fixed
def returned_but_not_in_place(table):
    copy = table.clone()
    copied_and_copied_back(copy)
    return copy


@fixed
def not_written(table):
    raise NotImplementedError()


@fixed
def whole_table_and_one_column_back(table):
    own = table[:, 2].clone()
    samples = summed(table[:, 1].sum())
    dist.all_reduce(table)
    table[:, 2] = own
    return samples


@fixed
def row_by_row(table):
    samples = summed(table[:, 1].sum())
    for row in table:
        dist.all_reduce(row[:2])
    return samples


@fixed
def tables_gathered(table):
    samples = summed(table[:, 1].sum())
    tables = [torch.empty_like(table) for _ in range(dist.get_world_size())]
    dist.all_gather(tables, table)
    table[:, :2] = sum(tables)[:, :2]
    return samples


@fixed
def fp64_on_the_wire(table):
    samples = summed(table[:, 1].sum())
    table[:, :2] = summed(table[:, :2].double())
    return samples


@fixed
def through_rank_0(table):
    samples = summed(table[:, 1].sum())
    columns = table[:, :2].contiguous()
    dist.reduce(columns, dst=0)
    dist.broadcast(columns, src=0)
    table[:, :2] = columns
    return samples


# Right, written differently ---------------------------------------------------------------------


def a_copy_and_back():
    return said(FOUND)


def bytes_as_text():
    return said({"bytes": "40", "summed": SUMMED})


def said_with_lists():
    return said({"bytes": 5 * 2 * 4, "summed": [list(pair) for pair in SUMMED]})


@fixed
def two_columns_one_after_the_other(table):
    samples = summed(table[:, 1].sum())
    for column in (0, 1):
        table[:, column].copy_(summed(table[:, column].clone()))
    return samples


@fixed
def samples_out_of_the_table(table):
    table[:, :2] = summed(table[:, :2].reshape(-1)).view(-1, 2)
    return table[:, 1].sum()


@fixed
def all_in_one(table):
    both = summed(torch.cat([table[:, 0], table[:, 1], table[:, 1].sum()[None]]))
    table[:, 0], table[:, 1] = both[:-1].tensor_split(2)
    return both[-1]


@fixed
def by_the_ring_of_this_library(table):
    """Which takes slices that are not in one piece."""
    samples = summed(table[:, 1].sum())
    collectives.ring_all_reduce(table[:, :2])
    return samples


RIGHT = [
    a_copy_and_back,
    said_with_lists,
    bytes_as_text,
    two_columns_one_after_the_other,
    samples_out_of_the_table,
    all_in_one,
    by_the_ring_of_this_library,
]

WRONG = {
    the_other_all_reduce: {"diagnosis": "the all_reduce of 4 bytes sums the samples"},
    bytes_of_the_whole_table: {"diagnosis": "with 5 classes, the trace has no all_reduce of 60"},
    elements_for_bytes: {"diagnosis": "how many bytes does an element take?"},
    bytes_in_a_list: {"diagnosis": "[40] is not a number of bytes. Write {"},
    what_was_meant_to_be_summed: {"diagnosis": "but not all of these elements"},
    as_with_four_classes: {"diagnosis": "you name 8 elements, and 10 hold the sum"},
    the_first_column_only: {"diagnosis": "you name 5 elements"},
    nothing_is_summed: {"diagnosis": "you name 0 elements"},
    columns_and_rows_exchanged: {"diagnosis": "but not all of these elements"},
    numbers_of_elements: {"diagnosis": "Write {"},
    bytes_alone: {"diagnosis": "Write {"},
    bytes_left_open: {"diagnosis": "'bytes' is not filled in"},
    still_broken: {"result": "a slice that is not contiguous has summed elements that follow"},
    summed_in_a_copy: {"result": "The table is unchanged: a sum in a copy"},
    column_by_column: {"result": "a slice that is not contiguous has summed elements"},
    rows_of_the_transpose: {"result": "rank 0, column"},
    the_whole_table: {"result": "rank 0: column 2 has changed"},
    added_to_what_was_there: {"result": "of rank 0 twice"},
    the_first_column_only_is_fixed: {"result": "rank 0, column 1"},
    averaged: {"result": "this is the average; the sum is asked for"},
    reshaped_wrongly: {"result": "rank 0, column"},
    samples_summed_twice: {"result": "You sum them once more, after column 1 holds the sum"},
    samples_of_this_rank: {"result": "return the number of samples of all ranks"},
    returned_but_not_in_place: {"result": "rank 0: return the number of samples"},
    not_written: {"result": "not_written is not written yet"},
    whole_table_and_one_column_back: {"traffic": "rank 0 sent 5 kB; 4 kB are enough"},
    row_by_row: {"traffic": "rank 0 makes 301 calls"},
    tables_gathered: {"traffic": "rank 0 calls all_gather"},
    fp64_on_the_wire: {"traffic": "rank 0 sent 7 kB; 4 kB are enough"},
    through_rank_0: {"traffic": "rank 0 calls broadcast"},
}

EQUIVALENT = {
    "... 3, number % 3) for number in range(10)}}"
    " -> ... 3, number % 3) for number in reversed(range(10))}}": "a set is the same in any order",
    "dist.all_reduce(samples); columns = table[:, :2].contiguous()"
    " -> columns = table[:, :2].contiguous(); dist.all_reduce(samples)": "neither needs the other",
}
