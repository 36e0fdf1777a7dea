"""Answers to 06/many_biases: each rank adds the bias to its part of a sum.

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
    gather_from_region,
    reduce_from_region,
)
from dtlab.units.unit06.runs_scripts import share_out, train_bias

SAID = {"symptom": "wrong start", "number": 4, "line": 6}


def steps(model, batches, rate=0.1):
    optimizer = SGD(model.parameters(), lr=rate)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained(model, batches, narrow, rate=0.1):
    """`narrow(layer, inner)` is what a layer adds."""

    def forward(layer, x):
        inner = F.linear(copy_to_region(layer.norm(x)), layer.wide.weight, layer.wide.bias)
        return x + narrow(layer, F.gelu(inner))

    share_out(model, forward)
    return steps(model, batches, rate)


def after_the_sum(layer, inner):
    return reduce_from_region(F.linear(inner, layer.narrow.weight)) + layer.narrow.bias


def right(model, batches):
    return trained(model, batches, after_the_sum)


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": right}


def narrows(narrow):
    """The right diagnosis, and a program in which a layer adds this."""

    def program(model, batches):
        return trained(model, batches, narrow)

    return functools.wraps(narrow)(lambda: {"diagnosis": SAID, "mended": program})


# Wrong ------------------------------------------------------------------------------------------


def says_drift():
    return said(symptom="drift")


def says_stands():
    return said(symptom="stands")


def says_no_symptom():
    return said(symptom="bias")


def too_many():
    return said(number=3)


def once():
    return said(number=1)


def all_layers():
    return said(number=12)


def a_quarter():
    return said(number=0.25)


def the_line_of_the_first_product():
    return said(line=5)


def the_line_of_the_reduction():
    return said(line="return x + reduce_from_region(part)")


def a_function_alone():
    return right


@mended
def not_written(model, batches):
    raise NotImplementedError()


@mended
def still_broken(model, batches):
    return train_bias(model, batches)


@narrows
def no_bias(layer, inner):
    return reduce_from_region(F.linear(inner, layer.narrow.weight))


@narrows
def the_mean(layer, inner):
    part = F.linear(inner, layer.narrow.weight, layer.narrow.bias)
    return reduce_from_region(part) / dist.get_world_size()


@narrows
def bias_before_and_after(layer, inner):
    part = F.linear(inner, layer.narrow.weight, layer.narrow.bias)
    return reduce_from_region(part) - layer.narrow.bias


@narrows
def not_added_up(layer, inner):
    return F.linear(inner, layer.narrow.weight, layer.narrow.bias)


@narrows
def a_part_of_the_bias(layer, inner):
    """The sum is right, and each rank finds a part of the gradient."""
    bias = layer.narrow.bias / dist.get_world_size()
    return reduce_from_region(F.linear(inner, layer.narrow.weight, bias))


@narrows
def the_bias_of_rank_0(layer, inner):
    """The other ranks have one that never moves."""
    bias = layer.narrow.bias if dist.get_rank() == 0 else None
    return reduce_from_region(F.linear(inner, layer.narrow.weight, bias))


@mended
def a_smaller_bias_from_the_start(model, batches):
    """Right before the first step; then the parts move as much as the whole."""
    for layer in model.layers:
        layer.narrow.bias.data /= dist.get_world_size()

    def narrow(layer, inner):
        return reduce_from_region(F.linear(inner, layer.narrow.weight, layer.narrow.bias))

    return trained(model, batches, narrow)


@narrows
def a_bias_that_is_not_trained(layer, inner):
    return reduce_from_region(F.linear(inner, layer.narrow.weight)) + layer.narrow.bias.detach()


@narrows
def gathered_and_added_up(layer, inner):
    """The same sum for more bytes."""
    part = F.linear(inner, layer.narrow.weight)
    parts = gather_from_region(part).unflatten(-1, (dist.get_world_size(), -1))
    return parts.sum(-2) + layer.narrow.bias


@mended
def nothing_shared(model, batches):
    return steps(model, batches)


@mended
def another_rate(model, batches):
    return trained(model, batches, after_the_sum, rate=0.2)


@mended
def without_f(model, batches):
    def forward(layer, x):
        inner = F.linear(layer.norm(x), layer.wide.weight, layer.wide.bias)
        return x + after_the_sum(layer, F.gelu(inner))

    share_out(model, forward)
    return steps(model, batches)


# Right ------------------------------------------------------------------------------------------


@mended
def added_after_the_sum(model, batches):
    return right(model, batches)


@mended
def column_and_row(model, batches):
    for layer in model.layers:
        layer.wide = ColumnParallelLinear.from_dense(layer.wide)
        layer.narrow = RowParallelLinear.from_dense(layer.narrow)
    return steps(model, batches)


@narrows
def on_rank_0_with_everyones_gradient(layer, inner):
    """Ranks other than 0 add none of it, and find its gradient all the same."""
    bias = layer.narrow.bias
    part = F.linear(inner, layer.narrow.weight)
    if dist.get_rank() == 0:
        return reduce_from_region(part + bias)
    return reduce_from_region(part + (bias - bias.detach()))


@narrows
def taken_off_again(layer, inner):
    """One bias is left of as many as there are ranks, also in backward."""
    part = F.linear(inner, layer.narrow.weight, layer.narrow.bias.detach())
    extra = (dist.get_world_size() - 1) * layer.narrow.bias.detach()
    own = layer.narrow.bias - layer.narrow.bias.detach()
    return torch.sub(reduce_from_region(part), extra) + own


def said_by_text():
    return said(
        symptom="Wrong Start", number="4",
        line="part = F.linear(F.gelu(inner), layer.narrow.weight, layer.narrow.bias)",
    )  # fmt: skip


RIGHT = [
    added_after_the_sum, column_and_row, on_rank_0_with_everyones_gradient, taken_off_again,
    said_by_text,
]  # fmt: skip

WRONG = {
    says_drift: {"symptom": "that is not what happens"},
    says_stands: {"symptom": "0 of the parameters"},
    says_no_symptom: {"symptom": "is no symptom. There are: gathers"},
    too_many: {"number": "only the biases that are too many"},
    once: {"number": "this would be right in one process"},
    all_layers: {"number": "that is all layers"},
    a_quarter: {"number": "the other way round"},
    the_line_of_the_first_product: {"line": "does what it should here"},
    the_line_of_the_reduction: {"line": "which part of it must be added only once?"},
    a_function_alone: {"symptom": "many_biases must be a dict"},
    not_written: {"outputs": "mended is not written yet"},
    still_broken: {"outputs": "that must be added only once?"},
    no_bias: {"outputs": "the first loss of rank 0"},
    the_mean: {"outputs": "the first loss of rank 0"},
    bias_before_and_after: {"outputs": "the first loss of rank 0"},
    not_added_up: {"outputs": "the first loss of rank 0"},
    a_part_of_the_bias: {"training": "Change only what is broken"},
    the_bias_of_rank_0: {"training": "is not what one process ends with"},
    a_smaller_bias_from_the_start: {"training": "Change only what is broken"},
    a_bias_that_is_not_trained: {"training": "Change only what is broken"},
    gathered_and_added_up: {"training": "bytes in all_gather"},
    nothing_shared: {"training": "Keep the layers sharded"},
    another_rate: {"training": "Change only what is broken"},
    without_f: {"training": "Change only what is broken"},
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
