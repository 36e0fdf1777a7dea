"""Answers to 06/drift: f is missing, so that each rank goes on with its part of a gradient.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim import SGD

from dtlab.parallel.tensor import (
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_region,
    naive_column_linear,
    reduce_from_region,
)
from dtlab.units.unit06.runs import cut_dim
from dtlab.units.unit06.runs_scripts import share_out, train_drift

SAID = {"symptom": "drift", "number": 3, "line": 5}


def nothing(model):
    """What is done between backward and the step, as a rule."""


def steps(model, batches, rate=0.1, before=nothing, after=nothing):
    optimizer = SGD([one for one in model.parameters() if one.requires_grad], lr=rate)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        before(model)
        optimizer.step()
        after(model)
        losses.append(loss.item())
    return losses


def narrow(layer, x, inner):
    part = F.linear(F.gelu(inner), layer.narrow.weight)
    return x + reduce_from_region(part) + layer.narrow.bias


def wide(layer, hidden):
    return F.linear(hidden, layer.wide.weight, layer.wide.bias)


def with_f(layer, x):
    return narrow(layer, x, wide(layer, copy_to_region(layer.norm(x))))


def without_f(layer, x):
    return narrow(layer, x, wide(layer, layer.norm(x)))


def trained(model, batches, forward, **options):
    share_out(model, forward)
    return steps(model, batches, **options)


def right(model, batches):
    return trained(model, batches, with_f)


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": right}


def forwards(forward):
    """The right diagnosis, and a program whose layers compute like this."""

    def program(model, batches):
        return trained(model, batches, forward)

    return functools.wraps(forward)(lambda: {"diagnosis": SAID, "mended": program})


# Wrong ------------------------------------------------------------------------------------------


def says_wrong_start():
    return said(symptom="wrong start")


def says_explodes():
    return said(symptom="explodes")


def says_no_symptom():
    return said(symptom="gradient")


def what_it_takes():
    return said(number=6)


def the_whole_run():
    return said(number=12)


def all_ranks():
    return said(number=24)


def one_layer():
    return said(number=1)


def backward_alone():
    return said(number=0)


def the_line_of_the_second_product():
    return said(line=6)


def the_line_of_the_sum():
    return said(line="return x + reduce_from_region(part) + layer.narrow.bias")


def a_function_alone():
    return right


@mended
def not_written(model, batches):
    raise NotImplementedError()


@mended
def still_broken(model, batches):
    return train_drift(model, batches)


@forwards
def f_before_the_norm(layer, x):
    """The norm's own gradients stay parts."""
    return narrow(layer, x, wide(layer, layer.norm(copy_to_region(x))))


@forwards
def f_behind_the_product(layer, x):
    """There each rank has other features."""
    return narrow(layer, x, _summed(wide(layer, layer.norm(x))))


def _summed(inner):
    """f on as many features as each rank has at least."""
    least = torch.tensor(inner.shape[-1])
    dist.all_reduce(least, dist.ReduceOp.MIN)
    own = inner[..., : int(least)]
    return torch.cat([copy_to_region(own), inner[..., int(least) :]], -1)


def sum_gradients(model, of, times=1.0):
    for name, one in model.named_parameters():
        if of in name and cut_dim(name) is None:
            dist.all_reduce(one.grad)
            one.grad *= times


@mended
def norms_added_up_later(model, batches):
    """The first linear layer finds a part of its gradient, too."""
    return trained(model, batches, without_f, before=lambda model: sum_gradients(model, "norm"))


@mended
def norms_frozen(model, batches):
    for layer in model.layers:
        layer.norm.requires_grad_(False)
    return trained(model, batches, without_f)


@mended
def averaged_gradients(model, batches):
    """As in data parallelism: copies stay equal, and are not what they should be."""
    times = 1 / dist.get_world_size()
    return trained(model, batches, without_f, before=lambda m: sum_gradients(m, "", times))


@mended
def summed_gradients(model, batches):
    """What is added to the way round is there as often as there are ranks."""
    return trained(model, batches, without_f, before=lambda model: sum_gradients(model, ""))


@mended
def sent_out_by_rank_0(model, batches):
    def send_out(model):
        for name, one in model.named_parameters():
            if cut_dim(name) is None:
                dist.broadcast(one.data, src=0)

    return trained(model, batches, without_f, after=send_out)


@forwards
def f_twice(layer, x):
    hidden = copy_to_region(copy_to_region(layer.norm(x)))
    return narrow(layer, x, wide(layer, hidden))


@forwards
def a_g_that_adds_up_backward_too(layer, x):
    """As autograd has it for a sum of which each rank goes on with another loss."""
    part = F.linear(F.gelu(wide(layer, copy_to_region(layer.norm(x)))), layer.narrow.weight)
    return x + reduce_from_region(copy_to_region(part)) + layer.narrow.bias


@forwards
def nothing_comes_back(layer, x):
    """Copies stay equal, since no gradient comes through."""
    return narrow(layer, x, wide(layer, layer.norm(x).detach()))


@mended
def nothing_shared(model, batches):
    return steps(model, batches)


@mended
def another_rate(model, batches):
    return trained(model, batches, with_f, rate=0.05)


# Right ------------------------------------------------------------------------------------------


@forwards
def f_behind_the_norm(layer, x):
    return with_f(layer, x)


@mended
def column_and_row(model, batches):
    for layer in model.layers:
        layer.wide = ColumnParallelLinear.from_dense(layer.wide)
        layer.narrow = RowParallelLinear.from_dense(layer.narrow)
    return steps(model, batches)


@forwards
def the_naive_function(layer, x):
    inner = naive_column_linear(layer.norm(x), layer.wide.weight, layer.wide.bias)
    return narrow(layer, x, inner)


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


@forwards
def an_f_of_ones_own(layer, x):
    return narrow(layer, x, wide(layer, _Own.apply(layer.norm(x))))


@forwards
def a_hook(layer, x):
    hidden = layer.norm(x)

    def add_up(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

    hidden.register_hook(add_up)
    return narrow(layer, x, wide(layer, hidden))


def said_by_text():
    return said(
        symptom="Drift", number="3",
        line="inner = F.linear(layer.norm(x), layer.wide.weight, layer.wide.bias)",
    )  # fmt: skip


RIGHT = [
    f_behind_the_norm, column_and_row, the_naive_function, an_f_of_ones_own, a_hook, said_by_text,
]  # fmt: skip

WRONG = {
    says_wrong_start: {"symptom": "that is not what happens"},
    says_explodes: {"symptom": "the loss went from"},
    says_no_symptom: {"symptom": "is no symptom. There are: gathers"},
    what_it_takes: {"number": "a right step has so many calls"},
    the_whole_run: {"number": "that is the whole run"},
    all_ranks: {"number": "those are the calls of all ranks"},
    one_layer: {"number": "that is one layer"},
    backward_alone: {"number": "the backward pass only"},
    the_line_of_the_second_product: {"line": "does what it should here"},
    the_line_of_the_sum: {"line": "only a part of a gradient?"},
    a_function_alone: {"symptom": "drift must be a dict"},
    not_written: {"copies": "mended is not written yet"},
    still_broken: {"copies": "the copies of"},
    f_before_the_norm: {"copies": "norm"},
    f_behind_the_product: {"copies": "the copies of"},
    norms_added_up_later: {"copies": "the copies of"},
    norms_frozen: {"copies": "the copies of"},
    averaged_gradients: {"training": "Change only what is broken"},
    summed_gradients: {"training": "Change only what is broken"},
    sent_out_by_rank_0: {"training": "Change only what is broken"},
    f_twice: {"training": "Change only what is broken"},
    a_g_that_adds_up_backward_too: {"training": "Change only what is broken"},
    nothing_comes_back: {"training": "Change only what is broken"},
    nothing_shared: {"training": "Keep the layers sharded"},
    another_rate: {"training": "Change only what is broken"},
}

# Mutants that no check can tell from the solution ------------------------------------------------

EQUIVALENT = {
    "optimizer.zero_grad(); loss = F.cross_entropy(model(images), labels) -> "
    "loss = F.cross_entropy(model(images), labels); optimizer.zero_grad()": (
        "gradients are set to zero at any time before backward adds to them"
    ),
    "optimizer.zero_grad() -> optimizer.zero_grad(); optimizer.zero_grad()": (
        "what is zero is set to zero again"
    ),
    "optimizer.step(); losses.append(loss.item()) -> "
    "losses.append(loss.item()); optimizer.step()": (
        "a step does not change the loss that was computed before it"
    ),
    "losses.append(loss.item()) -> "
    "losses.append(loss.item()); for images, labels in batches:; ...": (
        "batches can be gone through once"
    ),
}
