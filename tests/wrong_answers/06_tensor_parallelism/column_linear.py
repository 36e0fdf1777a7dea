"""Answers to 06/column_linear: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.parallel.tensor.regions import copy_to_region, reduce_from_region
from dtlab.simple import column_linear as simple_column_linear


def rows(tensor):
    return tensor.flatten(0, -2)


def weight_gradient(gradient, x):
    return rows(gradient).t() @ rows(x)


def started(gradient, weight, group):
    """The product, and its sum over the ranks on the way."""
    of_x = gradient @ weight
    return of_x, dist.all_reduce(of_x, group=group, async_op=True)


def made_of(backward):
    """A linear layer with this backward(ctx, gradient, x, weight)."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias, group):
            ctx.save_for_backward(x, weight)
            ctx.group = group
            return F.linear(x, weight, bias)

        @staticmethod
        def backward(ctx, gradient):
            return *backward(ctx, gradient, *ctx.saved_tensors), None

    return Function.apply


def meanwhile(ctx, gradient, x, weight):
    of_x = work = None
    if ctx.needs_input_grad[0]:
        of_x, work = started(gradient, weight, ctx.group)
    of_weight = weight_gradient(gradient, x)
    of_bias = rows(gradient).sum(0) if ctx.needs_input_grad[2] else None
    if work is not None:
        work.wait()
    return of_x, of_weight, of_bias


def right(x, weight, bias=None, group=None):
    return made_of(meanwhile)(x, weight, bias, group)


def changed(change):
    """Right, but for a last change of the three gradients."""
    return made_of(lambda ctx, *tensors: change(ctx, *meanwhile(ctx, *tensors)))


# Wrong ------------------------------------------------------------------------------------------


def untouched(x, weight, bias=None, group=None):
    raise NotImplementedError()


def returns_nothing(x, weight, bias=None, group=None):
    right(x, weight, bias, group)


def no_bias(x, weight, bias=None, group=None):
    return right(x, weight, None, group)


def expects_a_bias(x, weight, bias=None, group=None):
    return right(x, weight, None, group) + bias


def a_gradient_of_no_bias(x, weight, bias=None, group=None):
    def change(ctx, of_x, of_weight, of_bias):
        return of_x, of_weight, torch.zeros(len(of_weight)) if of_bias is None else of_bias

    return changed(change)(x, weight, bias, group)


def weight_not_transposed(x, weight, bias=None, group=None):
    return right(x, weight.t(), bias, group)


def adds_up_the_outputs(x, weight, bias=None, group=None):
    """As row does it; ranks have different numbers of outputs."""
    most = -(-sum_of(len(weight), group) // dist.get_world_size(group))
    product = F.pad(F.linear(x, weight, bias), (0, most - len(weight)))
    return reduce_from_region(product, group)[..., : len(weight)]


def sum_of(number, group):
    total = torch.tensor(number)
    dist.all_reduce(total, group=group)
    return int(total)


def all_outputs(x, weight, bias=None, group=None):
    y = F.linear(x, weight, bias)
    sizes = [None] * dist.get_world_size(group)
    dist.all_gather_object(sizes, len(weight), group=group)
    every = [torch.empty(*x.shape[:-1], size, dtype=x.dtype) for size in sizes]
    padded = F.pad(y.detach(), (0, max(sizes) - len(weight)))
    every = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(every, padded, group=group)
    return torch.cat([one[..., :size] for one, size in zip(every, sizes, strict=True)], -1)


def without_f(x, weight, bias=None, group=None):
    return F.linear(x, weight, bias)


def f_behind_it(x, weight, bias=None, group=None):
    return copy_to_region(F.linear(x, weight, bias).sum(), group) * 0 + F.linear(x, weight, bias)


def g_in_front(x, weight, bias=None, group=None):
    """The sum of equal x, made one x again; what goes back goes back alone."""
    return F.linear(reduce_from_region(x, group) / dist.get_world_size(group), weight, bias)


def the_mean(x, weight, bias=None, group=None):
    def mean(ctx, of_x, *others):
        return None if of_x is None else of_x / dist.get_world_size(ctx.group), *others

    return changed(mean)(x, weight, bias, group)


def bias_forgotten_in_backward(x, weight, bias=None, group=None):
    return changed(lambda ctx, of_x, of_weight, _: (of_x, of_weight, None))(x, weight, bias, group)


def bias_of_one_sequence(x, weight, bias=None, group=None):
    def backward(ctx, gradient, x, weight):
        of_x, of_weight, _ = meanwhile(ctx, gradient, x, weight)
        return of_x, of_weight, gradient[0].sum(0) if ctx.needs_input_grad[2] else None

    return made_of(backward)(x, weight, bias, group)


def bias_summed_too(x, weight, bias=None, group=None):
    """Times the number of ranks, as a mistaken sum of equal things is."""

    def change(ctx, of_x, of_weight, of_bias):
        if of_bias is not None:
            of_bias = of_bias * dist.get_world_size(ctx.group)
        return of_x, of_weight, of_bias

    return changed(change)(x, weight, bias, group)


def weight_gradient_transposed(x, weight, bias=None, group=None):
    return changed(lambda ctx, of_x, of_weight, of_bias: (of_x, of_weight.t(), of_bias))(
        x, weight, bias, group
    )


def summed_too_early(x, weight, bias=None, group=None):
    """The upstream gradients are of other outputs on each rank."""

    def backward(ctx, gradient, x, weight):
        of_x, of_weight, of_bias = meanwhile(ctx, gradient, x, weight)
        return None if of_x is None else of_x + gradient.sum(), of_weight, of_bias

    return made_of(backward)(x, weight, bias, group)


def also_where_nobody_needs_it(x, weight, bias=None, group=None):
    def backward(ctx, gradient, x, weight):
        of_x, work = started(gradient, weight, ctx.group)
        of_weight = weight_gradient(gradient, x)
        work.wait()
        return of_x, of_weight, rows(gradient).sum(0) if ctx.needs_input_grad[2] else None

    return made_of(backward)(x, weight, bias, group)


def x_from_the_first(x, weight, bias=None, group=None):
    dist.broadcast(x.detach(), group_src=0, group=group)
    return right(x, weight, bias, group)


def gathers_gradients(x, weight, bias=None, group=None):
    def backward(ctx, gradient, x, weight):
        of_x = None
        if ctx.needs_input_grad[0]:
            own = gradient @ weight
            every = [torch.empty_like(own) for _ in range(dist.get_world_size(ctx.group))]
            dist.all_gather(every, own, group=ctx.group)
            of_x = sum(every)
        of_bias = rows(gradient).sum(0) if ctx.needs_input_grad[2] else None
        return of_x, weight_gradient(gradient, x), of_bias

    return made_of(backward)(x, weight, bias, group)


def made_of_f(x, weight, bias=None, group=None):
    """Right, and in turn."""
    return F.linear(copy_to_region(x, group), weight, bias)


def waits_at_once(x, weight, bias=None, group=None):
    def backward(ctx, gradient, x, weight):
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x, work = started(gradient, weight, ctx.group)
            work.wait()
        of_bias = rows(gradient).sum(0) if ctx.needs_input_grad[2] else None
        return of_x, weight_gradient(gradient, x), of_bias

    return made_of(backward)(x, weight, bias, group)


def weight_first(x, weight, bias=None, group=None):
    def backward(ctx, gradient, x, weight):
        of_x, of_weight = None, weight_gradient(gradient, x)
        if ctx.needs_input_grad[0]:
            of_x, work = started(gradient, weight, ctx.group)
            work.wait()
        return of_x, of_weight, rows(gradient).sum(0) if ctx.needs_input_grad[2] else None

    return made_of(backward)(x, weight, bias, group)


def another_product_meanwhile(small):
    """Waits before the weight's gradient is there, with small(gradient, weight) in between."""

    def backward(ctx, gradient, x, weight):
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x, work = started(gradient, weight, ctx.group)
            small(rows(gradient), weight)
            work.wait()
        of_bias = rows(gradient).sum(0) if ctx.needs_input_grad[2] else None
        return of_x, weight_gradient(gradient, x), of_bias

    return made_of(backward)


def one_token_meanwhile(x, weight, bias=None, group=None):
    return another_product_meanwhile(lambda gradient, weight: gradient[:1] @ weight)(
        x, weight, bias, group
    )


def the_bias_meanwhile(x, weight, bias=None, group=None):
    """Its gradient, as a product of ones."""
    return another_product_meanwhile(
        lambda gradient, _: gradient.new_ones(1, len(gradient)) @ gradient
    )(x, weight, bias, group)


def the_same_product_meanwhile(x, weight, bias=None, group=None):
    """As large as that of the weight's gradient, which comes after it all the same."""
    return another_product_meanwhile(lambda gradient, weight: gradient @ weight)(
        x, weight, bias, group
    )


def weight_first_and_the_bias_meanwhile(x, weight, bias=None, group=None):
    def backward(ctx, gradient, x, weight):
        of_x = work = None
        of_weight = weight_gradient(gradient, x)
        if ctx.needs_input_grad[0]:
            of_x, work = started(gradient, weight, ctx.group)
        of_bias = (gradient.new_ones(1, len(rows(gradient))) @ rows(gradient))[0]
        if work is not None:
            work.wait()
        return of_x, of_weight, of_bias if ctx.needs_input_grad[2] else None

    return made_of(backward)(x, weight, bias, group)


def never_waited_for(x, weight, bias=None, group=None):
    """Into a copy, so that no luck can make it right."""

    def backward(ctx, gradient, x, weight):
        of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        if of_x is not None:
            dist.all_reduce(of_x.clone(), group=ctx.group, async_op=True)
        of_bias = rows(gradient).sum(0) if ctx.needs_input_grad[2] else None
        return of_x, weight_gradient(gradient, x), of_bias

    return made_of(backward)(x, weight, bias, group)


def all_ranks(x, weight, bias=None, group=None):
    return right(x, weight, bias, None)


def by_the_library(x, weight, bias=None, group=None):
    return simple_column_linear(x, weight, bias)


# Right ------------------------------------------------------------------------------------------


def by_matmul_of_three_dims(x, weight, bias=None, group=None):
    def backward(ctx, gradient, x, weight):
        for_x, _, for_bias, _ = ctx.needs_input_grad
        total = torch.matmul(gradient, weight) if for_x else None
        work = dist.all_reduce(total, group=ctx.group, async_op=True) if for_x else None
        of_bias = gradient.sum((0, 1)) if for_bias else None
        of_weight = (gradient.transpose(-1, -2) @ x).sum(0)
        if for_x:
            work.wait()
        return total, of_weight, of_bias

    return made_of(backward)(x, weight, bias, group)


def by_einsum(x, weight, bias=None, group=None):
    def backward(ctx, gradient, x, weight):
        of_x = torch.einsum("bso,oi->bsi", gradient, weight).contiguous()
        finish = (
            dist.all_reduce(of_x, group=ctx.group, async_op=True).wait
            if ctx.needs_input_grad[0]
            else lambda: None
        )
        of_weight = torch.einsum("bso,bsi->oi", gradient, x)
        of_bias = gradient.sum((0, 1)) if ctx.needs_input_grad[2] else None
        finish()
        return of_x, of_weight, of_bias

    return made_of(backward)(x, weight, bias, group)


def token_by_token(x, weight, bias=None, group=None):
    """The gradient of the weight in many small products."""

    def backward(ctx, gradient, x, weight):
        of_x = work = None
        if ctx.needs_input_grad[0]:
            of_x, work = started(gradient, weight, ctx.group)
        of_weight = torch.zeros_like(weight)
        for one, other in zip(rows(gradient), rows(x), strict=True):
            of_weight += torch.outer(one, other)
        of_bias = rows(gradient).sum(0) if ctx.needs_input_grad[2] else None
        if work is not None:
            work.wait()
        return of_x, of_weight, of_bias

    return made_of(backward)(x, weight, bias, group)


def weight_and_bias_in_one(x, weight, bias=None, group=None):
    """The bias is the weight of one more feature, which is always 1."""

    def backward(ctx, gradient, x, weight):
        of_x = work = None
        if ctx.needs_input_grad[0]:
            of_x, work = started(gradient, weight, ctx.group)
        features = F.pad(rows(x), (0, 1), value=1.0)
        both = torch.addmm(features.new_zeros(1), features.t(), rows(gradient))
        if work is not None:
            work.wait()
        return of_x, both[:-1].t(), both[-1] if ctx.needs_input_grad[2] else None

    return made_of(backward)(x, weight, bias, group)


RIGHT = [right, by_matmul_of_three_dims, by_einsum, token_by_token, weight_and_bias_in_one]

WRONG = {
    untouched: {"output": "is not written yet"},
    returns_nothing: {"output": "is missing"},
    no_bias: {"output": "its own rows"},
    expects_a_bias: {"output": "Here bias is None: add nothing"},
    a_gradient_of_no_bias: {"output": "return None as its gradient"},
    weight_not_transposed: {"output": "cannot be multiplied"},
    adds_up_the_outputs: {"output": "its own rows"},
    all_outputs: {"output": "with all outputs"},
    without_f: {"gradients": "only this rank's"},
    never_waited_for: {"gradients": "wait for the call"},
    f_behind_it: {"gradients": "only this rank's"},
    g_in_front: {"gradients": "gradient of x"},
    the_mean: {"gradients": "the mean over the ranks"},
    bias_forgotten_in_backward: {"gradients": "the gradient of bias is missing"},
    bias_of_one_sequence: {"gradients": "it sums over all tokens"},
    bias_summed_too: {"gradients": "the right value times the number of ranks"},
    weight_gradient_transposed: {"output": "invalid gradient"},
    summed_too_early: {"gradients": "the gradient of x is off"},
    also_where_nobody_needs_it: {"calls": "only if x needs one"},
    x_from_the_first: {"calls": "A rank has all of x"},
    gathers_gradients: {"calls": "all_gather"},
    made_of_f: {"overlap": "compute the weight's gradient while it runs"},
    waits_at_once: {"overlap": "wait last"},
    weight_first: {"overlap": "compute the weight's gradient while it runs"},
    one_token_meanwhile: {"overlap": "wait last"},
    the_bias_meanwhile: {"overlap": "wait last"},
    the_same_product_meanwhile: {"overlap": "wait last"},
    weight_first_and_the_bias_meanwhile: {
        "overlap": "Compute that gradient during the all-reduce"
    },
    all_ranks: {"group": "pass `group` to every function"},
    by_the_library: {"output": "finished code"},
}

ANY_ORDER = "neither needs the other"
THROWN_AWAY = "a gradient that nobody needs: it is never sent, and autograd throws it away"
SMALL = "the product of the weight still goes beside it, and the bias takes next to nothing"
ONCE_MORE = "the second time it does what is done"
EQUIVALENT = {
    "ctx.save_for_backward(x, weight); ctx.group = group "
    "-> ctx.group = group; ctx.save_for_backward(x, weight)": ANY_ORDER,
    "ctx.save_for_backward(x, weight) "
    "-> ctx.save_for_backward(x, weight); ctx.save_for_backward(x, weight)": ONCE_MORE,
    "of_x = gradient @ weight if for_x else None "
    "-> of_x = gradient @ weight if True else None": THROWN_AWAY,
    "work.wait() -> work.wait(); work.wait()": ONCE_MORE,
    "of_bias = rows.sum(0) if for_bias else None; if for_x:; work.wait() "
    "-> if for_x:; work.wait(); of_bias = rows.sum(0) if for_bias else None": SMALL,
}
