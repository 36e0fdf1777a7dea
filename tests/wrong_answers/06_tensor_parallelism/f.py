"""Answers to 06/f: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist

from dtlab.parallel.tensor.regions import copy_to_region


def made_of(backward, forward=lambda tensor, group: tensor.view_as(tensor)):
    """f with this forward and this backward."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, group):
            ctx.group = group
            return forward(tensor, group)

        @staticmethod
        def backward(ctx, gradient):
            return backward(gradient, ctx.group), None

    return Function.apply


def summed(gradient, group):
    total = gradient.clone()
    dist.all_reduce(total, group=group)
    return total


def added_up(tensor, group):
    """The sum of what all ranks have, gathered first."""
    every = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, tensor.contiguous(), group=group)
    return sum(every)


def from_the_first(tensor, group):
    copy = tensor.clone()
    dist.broadcast(copy, group_src=0, group=group)
    return copy


def to_one_and_back(gradient, group):
    total = gradient.clone()
    dist.reduce(total, group_dst=0, group=group)
    dist.broadcast(total, group_src=0, group=group)
    return total


def in_place(gradient, group):
    dist.all_reduce(gradient, group=group)
    return gradient


def right(x, group=None):
    return made_of(summed)(x, group)


# Wrong ------------------------------------------------------------------------------------------


def untouched(x, group=None):
    raise NotImplementedError()


def forgotten(x, group=None):
    return x


def returns_nothing(x, group=None):
    right(x, group)


def the_other_one(x, group=None):
    """This is g."""
    return made_of(lambda gradient, _: gradient, summed)(x, group)


def sums_in_both(x, group=None):
    return made_of(summed, summed)(x, group)


def sums_x_in_place(x, group=None):
    dist.all_reduce(x.detach(), group=group)
    return made_of(summed)(x, group)


def cut_off(x, group=None):
    return x.detach()


def the_mean(x, group=None):
    def mean(gradient, group):
        return summed(gradient, group) / dist.get_world_size(group)

    return made_of(mean)(x, group)


def returns_the_call(x, group=None):
    def backward(gradient, group):
        return dist.all_reduce(gradient.clone(), group=group)

    return made_of(backward)(x, group)


def twice(x, group=None):
    return made_of(lambda gradient, group: summed(summed(gradient, group), group))(x, group)


def does_not_wait_for_it(x, group=None):
    """Works on a copy that it throws away."""

    def backward(gradient, group):
        dist.all_reduce(gradient.clone(), group=group)
        return gradient

    return made_of(backward)(x, group)


def only_one_gradient(x, group=None):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, group):
            ctx.group = group
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, gradient):
            return summed(gradient, ctx.group)

    return Function.apply(x, group)


def group_kept_nowhere(x, group=None):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, group):
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, gradient):
            return summed(gradient, None), None

    return Function.apply(x, group)


def into_what_others_have(x, group=None):
    return made_of(in_place)(x, group)


def a_view_is_no_copy(x, group=None):
    return made_of(lambda gradient, group: in_place(gradient.view_as(gradient), group))(x, group)


def contiguous_is_no_copy(x, group=None):
    return made_of(lambda gradient, group: in_place(gradient.contiguous(), group))(x, group)


def sends_x_round(x, group=None):
    return made_of(summed, from_the_first)(x, group)


def gathers_gradients(x, group=None):
    return made_of(added_up)(x, group)


def by_way_of_one(x, group=None):
    return made_of(to_one_and_back)(x, group)


def in_float64(x, group=None):
    """Twice the bytes for float32."""
    return made_of(lambda gradient, group: summed(gradient.double(), group))(x, group)


def all_ranks(x, group=None):
    return made_of(lambda gradient, group: summed(gradient, None))(x, group)


def by_the_library(x, group=None):
    return copy_to_region(x, group)


# Right ------------------------------------------------------------------------------------------


def a_copy_of_x(x, group=None):
    return made_of(summed, lambda tensor, group: tensor.clone())(x, group)


def by_a_hook(x, group=None):
    x = x.view_as(x)
    if x.requires_grad:
        x.register_hook(lambda gradient: summed(gradient, group))
    return x


def started_and_waited_for(x, group=None):
    def backward(gradient, group):
        total = torch.empty_like(gradient).copy_(gradient)
        dist.all_reduce(total, group=group, async_op=True).wait()
        return total

    return made_of(backward)(x, group)


RIGHT = [right, by_a_hook, a_copy_of_x, started_and_waited_for]

WRONG = {
    untouched: {"forward": "is not written yet"},
    returns_nothing: {"forward": "is missing"},
    the_other_one: {"forward": "is the sum of all ranks' x"},
    sums_in_both: {"forward": "is the sum of all ranks' x"},
    sums_x_in_place: {"forward": "is the sum of all ranks' x"},
    forgotten: {"gradient": "only this rank's part"},
    cut_off: {"gradient": "is missing"},
    returns_the_call: {"gradient": "the value of dist.all_reduce, which is None?"},
    the_mean: {"gradient": "the mean over the ranks"},
    twice: {"gradient": "times the number of ranks"},
    does_not_wait_for_it: {"gradient": "only this rank's part"},
    only_one_gradient: {"gradient": "incorrect number of gradients"},
    into_what_others_have: {"kept": "make a copy first"},
    a_view_is_no_copy: {"kept": "make a copy first"},
    contiguous_is_no_copy: {"kept": "make a copy first"},
    sends_x_round: {"calls": "All ranks already have x"},
    gathers_gradients: {"calls": "One dist.all_reduce"},
    by_way_of_one: {"calls": "One dist.all_reduce"},
    in_float64: {"calls": "of float64; expected: all_reduce"},
    all_ranks: {"group": "including those outside the group"},
    group_kept_nowhere: {"group": "including those outside the group"},
    by_the_library: {"gradient": "finished code"},
}
