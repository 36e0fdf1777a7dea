"""Answers to 06/g: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as by_autograd

from dtlab.parallel.tensor.regions import reduce_from_region


def summed(tensor, group):
    total = tensor.clone()
    dist.all_reduce(total, group=group)
    return total


def made_of(backward, forward=summed):
    """g with this forward and this backward."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, group):
            ctx.group = group
            return forward(tensor, group)

        @staticmethod
        def backward(ctx, gradient):
            return backward(gradient, ctx.group), None

    return Function.apply


def as_it_is(gradient, group):
    return gradient


def in_place(tensor, group):
    dist.all_reduce(tensor, group=group)
    return tensor


def gathered(tensor, group):
    every = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, tensor.contiguous(), group=group)
    return sum(every)


def right(part, group=None):
    return made_of(as_it_is)(part, group)


# Wrong ------------------------------------------------------------------------------------------


def untouched(part, group=None):
    raise NotImplementedError()


def returns_nothing(part, group=None):
    right(part, group)


def forgotten(part, group=None):
    return part


def the_other_one(part, group=None):
    """This is f."""
    return made_of(summed, lambda tensor, group: tensor.view_as(tensor))(part, group)


def the_mean(part, group=None):
    def mean(tensor, group):
        return summed(tensor, group) / dist.get_world_size(group)

    return made_of(as_it_is, mean)(part, group)


def sums_in_both(part, group=None):
    return made_of(summed)(part, group)


def by_pytorchs_own(part, group=None):
    """Its backward takes the losses of all ranks for parts of one."""
    return by_autograd.all_reduce(part.clone(), group=group or dist.group.WORLD)


def shared_out(part, group=None):
    def backward(gradient, group):
        return gradient / dist.get_world_size(group)

    return made_of(backward)(part, group)


def cut_off(part, group=None):
    return summed(part.detach(), group)


def without_a_graph(part, group=None):
    with torch.no_grad():
        return summed(part, group)


def no_gradient_back(part, group=None):
    return made_of(lambda gradient, group: None)(part, group)


def into_the_part(part, group=None):
    return made_of(as_it_is, in_place)(part, group)


def behind_autograds_back(part, group=None):
    dist.all_reduce(part.detach(), group=group)
    return part


def into_the_part_and_says_so(part, group=None):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, group):
            dist.all_reduce(tensor, group=group)
            ctx.mark_dirty(tensor)
            return tensor

        @staticmethod
        def backward(ctx, gradient):
            return gradient, None

    return Function.apply(part, group)


def gathers_parts(part, group=None):
    return made_of(as_it_is, gathered)(part, group)


def sends_the_gradient_round(part, group=None):
    def backward(gradient, group):
        gradient = gradient.clone()
        dist.broadcast(gradient, group_src=0, group=group)
        return gradient

    return made_of(backward)(part, group)


def averages_the_gradient(part, group=None):
    """All of them are the same: right, and for nothing."""

    def backward(gradient, group):
        return summed(gradient, group) / dist.get_world_size(group)

    return made_of(backward)(part, group)


def in_float64(part, group=None):
    """Twice the bytes for float32."""
    return made_of(as_it_is, lambda tensor, group: summed(tensor.double(), group))(part, group)


def all_ranks(part, group=None):
    return made_of(as_it_is, lambda tensor, group: summed(tensor, None))(part, group)


def by_the_library(part, group=None):
    return reduce_from_region(part, group)


# Right ------------------------------------------------------------------------------------------


def not_seen_by_autograd(part, group=None):
    """Autograd knows the copy, whose gradient is right, and misses what happens to it."""
    total = part.clone()
    dist.all_reduce(total.detach(), group=group)
    return total


def a_copy_of_the_gradient(part, group=None):
    return made_of(lambda gradient, group: gradient.clone())(part, group)


def started_and_waited_for(part, group=None):
    def forward(tensor, group):
        total = torch.zeros_like(tensor) + tensor
        dist.all_reduce(total, group=group, async_op=True).wait()
        return total

    return made_of(as_it_is, forward)(part, group)


RIGHT = [right, not_seen_by_autograd, a_copy_of_the_gradient, started_and_waited_for]

WRONG = {
    untouched: {"sum": "is not written yet"},
    returns_nothing: {"sum": "is missing"},
    forgotten: {"sum": "only this rank's part"},
    the_other_one: {"sum": "only this rank's part"},
    the_mean: {"sum": "the mean of the parts"},
    sums_in_both: {"gradient": "times the number of ranks"},
    by_pytorchs_own: {"gradient": "times the number of ranks"},
    shared_out: {"gradient": "divided by the number of ranks"},
    cut_off: {"gradient": "is missing"},
    without_a_graph: {"gradient": "is missing"},
    no_gradient_back: {"gradient": "is missing"},
    into_the_part: {"kept": "sum in a copy of the input"},
    behind_autograds_back: {"kept": "sum in a copy of the input"},
    into_the_part_and_says_so: {"kept": "sum in a copy of the input"},
    gathers_parts: {"calls": "One dist.all_reduce"},
    sends_the_gradient_round: {"calls": "already has the gradient of y"},
    averages_the_gradient: {"calls": "already has the gradient of y"},
    in_float64: {"calls": "of float64; expected: all_reduce"},
    all_ranks: {"group": "is off by"},
    by_the_library: {"sum": "finished code"},
}
