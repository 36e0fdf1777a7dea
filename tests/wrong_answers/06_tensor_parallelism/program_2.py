"""Answers to 06/program_2: gate and values are cut as if they were one matrix.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from dtlab.parallel.tensor import copy_to_region, reduce_from_region
from dtlab.units.unit06.runs_scripts import own, train_2

SAID = {"line": 11}


def steps(model, batches, before=lambda model: None, rate=0.1, momentum=0.0):
    """`before` is called before the optimizer's step."""
    optimizer = SGD(model.parameters(), lr=rate, momentum=momentum)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        before(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def halves(weight):
    """This rank's rows of both halves of a weight."""
    return torch.cat([own(half, 0) for half in weight.chunk(2)])


def trained(model, batches, forward, wide=halves, **options):
    """`forward(layer, x)` is what a layer computes, and `wide` cuts its first weight."""
    for layer in model.layers:
        layer.wide.weight = nn.Parameter(wide(layer.wide.weight.detach()))
        layer.narrow.weight = nn.Parameter(own(layer.narrow.weight, 1))
        layer.forward = functools.partial(forward, layer)
    return steps(model, batches, **options)


def behind(layer, x, hidden, g=reduce_from_region):
    """What a layer returns, given what goes into its first linear layer."""
    gate, values = F.linear(hidden, layer.wide.weight).chunk(2, -1)
    part = F.linear(F.silu(gate) * values, layer.narrow.weight)
    return x + g(part) + layer.narrow.bias


def right_forward(layer, x):
    return behind(layer, x, copy_to_region(layer.norm(x)))


def right(model, batches):
    return trained(model, batches, right_forward)


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def forwards(forward):
    """The right diagnosis, and a program whose layers compute like this."""

    def program(model, batches):
        return trained(model, batches, forward)

    return functools.wraps(forward)(lambda: {"diagnosis": SAID, "fixed": program})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": right}


def cuts(wide):
    """The right diagnosis, and a program that cuts the first weight of a layer like this."""

    def program(model, batches):
        return trained(model, batches, right_forward, wide)

    return functools.wraps(wide)(lambda: {"diagnosis": SAID, "fixed": program})


# Wrong ------------------------------------------------------------------------------------------


def the_line_of_the_other_weight():
    return said(line=12)


def the_line_of_the_products():
    return said(line="gate, values = F.linear(hidden, layer.wide.weight).chunk(2, -1)")


def the_line_of_the_sum():
    return said(line=8)


def no_such_line():
    return said(line=99)


def a_function_alone():
    return right


@fixed
def not_written(model, batches):
    raise NotImplementedError()


@fixed
def nothing_shared(model, batches):
    return steps(model, batches)


@fixed
def still_broken(model, batches):
    return train_2(model, batches)


@cuts
def the_gate_twice(weight):
    gate, _ = weight.chunk(2)
    return torch.cat([own(gate, 0), own(gate, 0)])


@cuts
def values_first(weight):
    gate, values = weight.chunk(2)
    return torch.cat([own(values, 0), own(gate, 0)])


@cuts
def every_other_row(weight):
    """Gate and values fit, but the columns of `narrow` belong to other features."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return torch.cat([half[rank::ranks] for half in weight.chunk(2)]).clone()


@cuts
def the_next_rank(weight):
    ranks = dist.get_world_size()
    each = [half.tensor_split(ranks)[(dist.get_rank() + 1) % ranks] for half in weight.chunk(2)]
    return torch.cat(each)


@fixed
def chunks_exchanged_in_forward(model, batches):
    """The rows that a rank has stay the wrong ones."""

    def forward(layer, x):
        hidden = copy_to_region(layer.norm(x))
        values, gate = F.linear(hidden, layer.wide.weight).chunk(2, -1)
        part = F.linear(F.silu(gate) * values, layer.narrow.weight)
        return x + reduce_from_region(part) + layer.narrow.bias

    return trained(model, batches, forward, lambda weight: own(weight, 0))


@fixed
def rows_in_turn(model, batches):
    """A row of the gate, a row of the values: all is right, but the order."""

    def forward(layer, x):
        hidden = copy_to_region(layer.norm(x))
        gate, values = F.linear(hidden, layer.wide.weight).unflatten(-1, (-1, 2)).unbind(-1)
        part = F.linear(F.silu(gate) * values, layer.narrow.weight)
        return x + reduce_from_region(part) + layer.narrow.bias

    def in_turn(weight):
        return torch.stack([own(half, 0) for half in weight.chunk(2)], 1).flatten(0, 1)

    return trained(model, batches, forward, in_turn)


@fixed
def losses_not_returned(model, batches):
    trained(model, batches, right_forward)


@forwards
def a_mean_for_the_sum(layer, x):
    hidden = copy_to_region(layer.norm(x))
    return behind(layer, x, hidden, lambda y: reduce_from_region(y) / dist.get_world_size())


@forwards
def without_f(layer, x):
    return behind(layer, x, layer.norm(x))


@forwards
def f_before_the_norm(layer, x):
    return behind(layer, x, layer.norm(copy_to_region(x)))


@forwards
def f_behind_the_product(layer, x):
    """There each rank has other features: their gradients do not belong together."""
    gate, values = copy_to_region(F.linear(layer.norm(x), layer.wide.weight)).chunk(2, -1)
    part = F.linear(F.silu(gate) * values, layer.narrow.weight)
    return x + reduce_from_region(part) + layer.narrow.bias


@fixed
def another_rate(model, batches):
    return trained(model, batches, right_forward, rate=0.05)


@forwards
def a_sum_too_many(layer, x):
    """Right outputs and gradients, for more bytes."""
    y = right_forward(layer, x)
    dist.all_reduce(y.detach().clone())
    return y


# Right ------------------------------------------------------------------------------------------


@cuts
def both_halves(weight):
    return halves(weight)


@cuts
def in_three_dims(weight):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    width = weight.shape[1]
    return weight.view(2, -1, width).tensor_split(ranks, 1)[rank].reshape(-1, width).clone()


@cuts
def by_numbers_of_rows(weight):
    inner, ranks = len(weight) // 2, dist.get_world_size()
    rows = torch.arange(inner).tensor_split(ranks)[dist.get_rank()]
    return weight[torch.cat([rows, inner + rows])]


def said_by_text():
    return said(line="layer.wide.weight = nn.Parameter(own(layer.wide.weight, 0))")


RIGHT = [both_halves, in_three_dims, by_numbers_of_rows, said_by_text]

WRONG = {
    the_line_of_the_other_weight: {"line": "does what it should here"},
    the_line_of_the_products: {"line": "does what it should here"},
    the_line_of_the_sum: {"line": "which features each line has"},
    no_such_line: {"line": "has no line 99"},
    a_function_alone: {"line": "program_2 must be a dict"},
    not_written: {"outputs": "not_written is not written yet"},
    still_broken: {"outputs": "No step was made yet"},
    the_gate_twice: {"outputs": "the first loss of rank 0"},
    values_first: {"outputs": "the first loss of rank 0"},
    every_other_row: {"outputs": "the first loss of rank 0"},
    the_next_rank: {"outputs": "the first loss of rank 0"},
    chunks_exchanged_in_forward: {"outputs": "the first loss of rank 0"},
    a_mean_for_the_sum: {"outputs": "the first loss of rank 0"},
    nothing_shared: {"training": "its part is"},
    rows_in_turn: {"training": "has its rows in another order than the text asks"},
    losses_not_returned: {"outputs": "returns None: return the losses"},
    without_f: {"training": "is not what one process ends with"},
    f_before_the_norm: {"training": "is not what one process ends with"},
    f_behind_the_product: {"training": "is not what one process ends with"},
    another_rate: {"training": "is not what one process ends with"},
    a_sum_too_many: {"training": "times the bytes"},
}

# Mutants that no check can tell from the solution ------------------------------------------------

EQUIVALENT = {
    "for layer in model.layers: -> for layer in reversed(model.layers):": (
        "the layers are cut in any order"
    ),
    "gate, values = F.linear(hidden, layer.wide.weight).chunk(2, -1) -> "
    "gate, values = F.linear(hidden, layer.wide.weight).chunk(2, 1)": (
        "of two dims the last one is dim 1"
    ),
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
