"""Answers to 01/fix_2: a step that a rank with a bad batch leaves out.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist

WAITS = {1: ("all_reduce", {0, 2}), 3: ("all_reduce", {0, 2})}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": WAITS, "fixed": fn})


def said(diagnosis):
    """This diagnosis, and a function that is right."""
    return {"diagnosis": diagnosis, "fixed": lambda batches: trained(batches, in_two_sums)}


def trained(batches, mean):
    """The weights, with `mean(gradient)` over the good ranks; a bad gradient is not finite."""
    weights = torch.zeros_like(batches[0])
    for batch in batches:
        weights = weights - 0.5 * mean(weights - batch)
    return weights


def is_good(gradient):
    return bool(gradient.isfinite().all())


def summed(tensor):
    dist.all_reduce(tensor)
    return tensor


def in_two_sums(gradient):
    good = is_good(gradient)
    total = summed(gradient if good else torch.zeros_like(gradient))
    return total / summed(torch.tensor(float(good))).clamp(min=1)


# Wrong: the diagnosis ---------------------------------------------------------------------------


def waits_for_who_is_there_too():
    return said({1: ("all_reduce", {0, 2, 3}), 3: ("all_reduce", {0, 1, 2})})


def those_with_bad_batches_wait():
    return said({0: ("all_reduce", {1, 3}), 2: ("all_reduce", {1, 3})})


def as_with_one_bad_batch():
    return said({rank: ("all_reduce", {2}) for rank in (0, 1, 3)})


def only_the_first_that_waits():
    return said({1: ("all_reduce", {0, 2})})


def waits_for_one_of_the_two():
    return said({1: ("all_reduce", 2), 3: ("all_reduce", 2)})


def waits_in_recv():
    return said({1: ("recv", {0, 2}), 3: ("recv", {0, 2})})


def all_in_words():
    return said({1: ("all_reduce", "all"), 3: ("all_reduce", "all")})


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(batches):
    size = dist.get_world_size()
    weights = torch.zeros_like(batches[0])
    for batch in batches:
        gradient = weights - batch
        if not gradient.isfinite().all():
            continue
        weights = weights - 0.5 * summed(gradient) / size
    return weights


@fixed
def divided_by_the_number_of_ranks(batches):
    def mean(gradient):
        total = summed(gradient if is_good(gradient) else torch.zeros_like(gradient))
        return total / dist.get_world_size()

    return trained(batches, mean)


@fixed
def left_out_by_all(batches):
    def mean(gradient):
        everybody = torch.tensor(float(is_good(gradient)))
        dist.all_reduce(everybody, op=dist.ReduceOp.MIN)
        if not everybody:
            return torch.zeros_like(gradient)
        return summed(gradient) / dist.get_world_size()

    return trained(batches, mean)


@fixed
def times_zero(batches):
    def mean(gradient):
        good = float(is_good(gradient))
        return summed(gradient * good) / summed(torch.tensor(good)).clamp(min=1)

    return trained(batches, mean)


@fixed
def not_left_out_at_all(batches):
    return trained(batches, lambda gradient: summed(gradient) / dist.get_world_size())


@fixed
def zeros_for_the_bad_elements_only(batches):
    def mean(gradient):
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        return summed(gradient) / dist.get_world_size()

    return trained(batches, mean)


@fixed
def a_sum_without_a_mean(batches):
    def mean(gradient):
        return summed(gradient if is_good(gradient) else torch.zeros_like(gradient))

    return trained(batches, mean)


@fixed
def nothing_good_divides_by_zero(batches):
    def mean(gradient):
        good = is_good(gradient)
        total = summed(gradient if good else torch.zeros_like(gradient))
        return total / summed(torch.tensor(float(good)))

    return trained(batches, mean)


@fixed
def a_barrier_in_its_place(batches):
    def mean(gradient):
        if is_good(gradient):
            return summed(gradient) / dist.get_world_size()
        dist.barrier()
        return torch.zeros_like(gradient)

    return trained(batches, mean)


@fixed
def counted_by_good_ranks_only(batches):
    def mean(gradient):
        total = summed(gradient if is_good(gradient) else torch.zeros_like(gradient))
        if not is_good(gradient):
            return total
        return total / summed(torch.ones(()))

    return trained(batches, mean)


@fixed
def step_of_good_ranks_only(batches):
    def mean(gradient):
        step = in_two_sums(gradient)
        return step if is_good(gradient) else torch.zeros_like(gradient)

    return trained(batches, mean)


@fixed
def own_step_where_all_are_good(batches):
    return trained(batches, lambda gradient: in_two_sums(gradient) if is_good(gradient) else 0.0)


@fixed
def nothing_returned(batches):
    trained(batches, in_two_sums)


@fixed
def not_written(batches):
    raise NotImplementedError()


@fixed
def all_gradients_gathered(batches):
    def mean(gradient):
        gradients = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(gradients, gradient)
        good = [one for one in gradients if is_good(one)]
        return sum(good) / max(1, len(good))

    return trained(batches, mean)


@fixed
def a_count_for_every_element(batches):
    def mean(gradient):
        good = is_good(gradient)
        total = summed(gradient if good else torch.zeros_like(gradient))
        return total / summed(torch.full_like(total, float(good))).clamp(min=1)

    return trained(batches, mean)


@fixed
def fp64_on_the_wire(batches):
    return trained(batches.double(), in_two_sums).float()


@fixed
def three_sums_in_a_step(batches):
    def mean(gradient):
        if not summed(torch.tensor(float(is_good(gradient)))):
            return torch.zeros_like(gradient)
        return in_two_sums(gradient)

    return trained(batches, mean)


@fixed
def through_rank_0(batches):
    def mean(gradient):
        good = is_good(gradient)
        both = torch.cat([gradient, gradient.new_ones(1)]) if good else None
        both = torch.zeros(len(gradient) + 1) if both is None else both
        dist.reduce(both, dst=0)
        dist.broadcast(both, src=0)
        return both[:-1] / both[-1].clamp(min=1)

    return trained(batches, mean)


# Right, written differently ---------------------------------------------------------------------


def two_sums():
    return said(WAITS)


def said_with_lists():
    return said({0: None, 1: ["dist.all_reduce", [2, 0]], 2: None, 3: ("All_Reduce", (0, 2))})


@fixed
def one_sum_with_a_number_beside(batches):
    def mean(gradient):
        both = torch.zeros(len(gradient) + 1)
        if is_good(gradient):
            both[:-1], both[-1] = gradient, 1
        dist.all_reduce(both)
        return both[:-1] / max(1, both[-1])

    return trained(batches, mean)


@fixed
def all_counts_at_the_beginning(batches):
    counts = summed(batches.isfinite().all(dim=1).float())
    weights = torch.zeros_like(batches[0])
    for batch, count in zip(batches, counts, strict=True):
        gradient = torch.where(batch.isfinite().all(), weights - batch, torch.zeros(()))
        if count > 0:
            weights = weights - 0.5 * summed(gradient) / count
    return weights


@fixed
def asynchronous(batches):
    def mean(gradient):
        good = is_good(gradient)
        total = gradient if good else torch.zeros_like(gradient)
        count = torch.tensor([float(good)])
        for work in [dist.all_reduce(one, async_op=True) for one in (count, total)]:
            work.wait()
        return total / count.clamp(min=1)

    return trained(batches, mean)


RIGHT = [
    two_sums,
    said_with_lists,
    one_sum_with_a_number_beside,
    all_counts_at_the_beginning,
    asynchronous,
]

WRONG = {
    waits_for_who_is_there_too: {"diagnosis": "in the same call has already called it"},
    those_with_bad_batches_wait: {"diagnosis": "rank 0 waits for no rank: it has returned"},
    as_with_one_bad_batch: {"diagnosis": "rank 0 waits for no rank: it has returned"},
    only_the_first_that_waits: {"diagnosis": "rank 3 has not finished either"},
    waits_for_one_of_the_two: {"diagnosis": "rank 2 is right, and another is missing"},
    waits_in_recv: {"diagnosis": "rank 1 does not wait in recv"},
    all_in_words: {"diagnosis": "'all' is no rank"},
    still_broken: {"result": "a rank skipped a call before, or made one too many"},
    divided_by_the_number_of_ranks: {"result": "by the number of ranks, even if"},
    left_out_by_all: {"result": "No rank makes a step if one batch is bad"},
    times_zero: {"result": "Numbers of a bad batch are in a sum"},
    not_left_out_at_all: {"result": "the weights are not finite"},
    zeros_for_the_bad_elements_only: {"result": "the weights are not right"},
    a_sum_without_a_mean: {"result": "uses the sum of the gradients"},
    nothing_good_divides_by_zero: {"result": "the weights are not finite"},
    a_barrier_in_its_place: {"result": "the calls of the ranks do not match"},
    counted_by_good_ranks_only: {"result": ""},
    step_of_good_ranks_only: {"result": "The ranks end with different weights"},
    own_step_where_all_are_good: {"result": "the calls of the ranks do not match"},
    nothing_returned: {"result": "return a tensor with the shape and dtype"},
    not_written: {"result": "not_written is not written yet"},
    all_gradients_gathered: {"traffic": "rank 0 calls all_gather"},
    a_count_for_every_element: {"traffic": "rank 0 sent"},
    fp64_on_the_wire: {"traffic": "rank 0 sent"},
    three_sums_in_a_step: {"traffic": "rank 0 makes 9 calls"},
    through_rank_0: {"traffic": "rank 0 calls broadcast"},
}

EQUIVALENT = {
    "weights = torch.zeros_like(batches[0]) -> weights = torch.zeros_like(batches[-1])": (
        "all batches have the same shape"
    ),
}
