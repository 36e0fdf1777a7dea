"""Answers to 06/row_linear: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as by_autograd
import torch.nn.functional as F

from dtlab.parallel.tensor.regions import copy_to_region, reduce_from_region
from dtlab.simple import row_linear as simple_row_linear


def right(x, weight, bias=None, group=None):
    y = reduce_from_region(F.linear(x, weight), group)
    return y if bias is None else y + bias


def rows(tensor):
    return tensor.flatten(0, -2)


# Wrong ------------------------------------------------------------------------------------------


def untouched(x, weight, bias=None, group=None):
    raise NotImplementedError()


def returns_nothing(x, weight, bias=None, group=None):
    right(x, weight, bias, group)


def without_g(x, weight, bias=None, group=None):
    return F.linear(x, weight, bias)


def f_in_place_of_g(x, weight, bias=None, group=None):
    return F.linear(copy_to_region(x, group), weight, bias)


def the_mean(x, weight, bias=None, group=None):
    y = reduce_from_region(F.linear(x, weight), group) / dist.get_world_size(group)
    return y if bias is None else y + bias


def weight_not_transposed(x, weight, bias=None, group=None):
    return right(x, weight.t(), bias, group)


def g_in_front(x, weight, bias=None, group=None):
    """Adds up features that are not the same."""
    x = x[..., : x.shape[-1] - 1] if x.shape[-1] > sum_of_least(x, group) else x
    return F.linear(reduce_from_region(x, group), weight[:, : x.shape[-1]], bias)


def sum_of_least(x, group):
    least = torch.tensor(x.shape[-1])
    dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
    return int(least)


def by_pytorchs_own(x, weight, bias=None, group=None):
    y = by_autograd.all_reduce(F.linear(x, weight), group=group or dist.group.WORLD)
    return y if bias is None else y + bias


def f_in_front_as_well(x, weight, bias=None, group=None):
    return right(copy_to_region(x, group), weight, bias, group)


def f_as_well(x, weight, bias=None, group=None):
    """Its gradient is summed once more; shapes of x differ by rank, so behind the product."""
    y = reduce_from_region(copy_to_region(F.linear(x, weight), group), group)
    return y if bias is None else y + bias


def cut_off(x, weight, bias=None, group=None):
    y = F.linear(x, weight).detach()
    dist.all_reduce(y, group=group)
    return y if bias is None else y + bias


def weight_cut_off(x, weight, bias=None, group=None):
    return right(x, weight.detach(), bias, group)


def no_bias(x, weight, bias=None, group=None):
    return right(x, weight, None, group)


def bias_before_the_sum(x, weight, bias=None, group=None):
    return reduce_from_region(F.linear(x, weight, bias), group)


def bias_shared_out(x, weight, bias=None, group=None):
    """y is right, and each rank finds a part of the gradient of the bias."""
    share = None if bias is None else bias / dist.get_world_size(group)
    return reduce_from_region(F.linear(x, weight, share), group)


def bias_on_the_first(x, weight, bias=None, group=None):
    """y is right, and the others never step their bias."""
    first = dist.get_rank(group) == 0
    return reduce_from_region(F.linear(x, weight, bias if first else None), group)


def bias_as_a_number(x, weight, bias=None, group=None):
    return right(x, weight, None if bias is None else bias.detach(), group)


def bias_through_f(x, weight, bias=None, group=None):
    return right(x, weight, None if bias is None else copy_to_region(bias, group), group)


def gathers_the_parts(x, weight, bias=None, group=None):
    y = F.linear(x, weight)
    every = [torch.empty_like(y) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, y.detach(), group=group)
    y = y + (sum(every) - y.detach())
    return y if bias is None else y + bias


def gradient_averaged(x, weight, bias=None, group=None):
    """It is the same on all ranks: right, and for nothing."""
    y = copy_to_region(right(x, weight, bias, group), group)
    return y / dist.get_world_size(group) + (y - y / dist.get_world_size(group)).detach()


def all_ranks(x, weight, bias=None, group=None):
    return right(x, weight, bias, None)


def by_the_library(x, weight, bias=None, group=None):
    return simple_row_linear(x, weight, bias)


# Right ------------------------------------------------------------------------------------------


class InOneNode(torch.autograd.Function):
    """The product is this rank's own, so it is added up where it lies."""

    @staticmethod
    def forward(ctx, x, weight, bias, group):
        ctx.save_for_backward(x, weight)
        y = x @ weight.t()
        dist.all_reduce(y, group=group)
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_weight = rows(gradient).t() @ rows(x)
        of_bias = rows(gradient).sum(0) if ctx.needs_input_grad[2] else None
        return gradient @ weight, of_weight, of_bias, None


def in_one_node(x, weight, bias=None, group=None):
    return InOneNode.apply(x, weight, bias, group)


def bias_as_zeros(x, weight, bias=None, group=None):
    y = reduce_from_region(x @ weight.t(), group)
    return y + (0 if bias is None else bias)


RIGHT = [right, in_one_node, bias_as_zeros]

WRONG = {
    untouched: {"output": "is not written yet"},
    returns_nothing: {"output": "is missing"},
    without_g: {"output": "part of the sum over ranks"},
    f_in_place_of_g: {"output": "do you need f or g?"},
    f_in_front_as_well: {"output": "do you need f or g?"},
    the_mean: {"output": "the mean over the ranks"},
    weight_not_transposed: {"output": "cannot be multiplied"},
    g_in_front: {"output": "y is off"},
    by_pytorchs_own: {"gradients": "times the number of ranks"},
    f_as_well: {"gradients": "times the number of ranks"},
    cut_off: {"gradients": "is missing"},
    weight_cut_off: {"gradients": "the gradient of weight is missing"},
    no_bias: {"bias": "without the bias"},
    bias_before_the_sum: {"bias": "once per rank"},
    bias_shared_out: {"bias": "divided by the number of ranks"},
    bias_on_the_first: {"bias": "the gradient of bias is missing"},
    bias_as_a_number: {"bias": "the gradient of bias is missing"},
    bias_through_f: {"bias": "times the number of ranks", "calls": "expected: nothing"},
    gathers_the_parts: {"calls": "all_gather"},
    gradient_averaged: {"calls": "All ranks have the gradient of y"},
    all_ranks: {"group": ""},
    by_the_library: {"output": "finished code"},
}
