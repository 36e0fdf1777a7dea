"""Answers to 06/program_1: f is applied twice, so that backward has two all-reduces for it.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from dtlab.parallel.tensor import copy_to_region, gather_from_region, reduce_from_region
from dtlab.units.unit06.runs_scripts import own, train_1

SAID = {"number": 6144, "line": 7}


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


# Wrong ------------------------------------------------------------------------------------------


def all_bytes():
    return said(number=18432)


def what_is_needed():
    return said(number=12288)


def the_whole_run():
    return said(number=24576)


def one_layer():
    return said(number=2048)


def elements():
    return said(number=1536)


def counted_calls():
    return said(number=3)


def the_line_of_the_sum():
    return said(line="return x + reduce_from_region(part) + layer.narrow.bias")


def the_line_of_the_chunks():
    return said(line=6)


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
    return train_1(model, batches)


@forwards
def f_before_and_behind_the_norm(layer, x):
    return behind(layer, x, copy_to_region(layer.norm(copy_to_region(x))))


def twice(layer, x, gate_input, values_input):
    gate_weight, weight = layer.wide.weight.chunk(2)
    gate, values = F.linear(gate_input, gate_weight), F.linear(values_input, weight)
    part = F.linear(F.silu(gate) * values, layer.narrow.weight)
    return x + reduce_from_region(part) + layer.narrow.bias


@forwards
def the_norm_computed_twice(layer, x):
    """The norm's own gradients are summed twice as well."""
    return twice(layer, x, copy_to_region(layer.norm(x)), copy_to_region(layer.norm(x)))


@forwards
def f_for_the_gate_alone(layer, x):
    """The bytes are right, and the gradient through the values stays a part of a sum."""
    hidden = layer.norm(x)
    return twice(layer, x, copy_to_region(hidden), hidden)


@forwards
def f_for_the_values_alone(layer, x):
    hidden = layer.norm(x)
    return twice(layer, x, hidden, copy_to_region(hidden))


@forwards
def f_before_the_norm(layer, x):
    """The norm's own gradients stay parts of a sum."""
    return behind(layer, x, layer.norm(copy_to_region(x)))


@forwards
def f_on_the_residual_stream(layer, x):
    x = copy_to_region(x)
    return behind(layer, x, layer.norm(x))


@forwards
def without_f(layer, x):
    return behind(layer, x, layer.norm(x))


@forwards
def without_g(layer, x):
    return behind(layer, x, copy_to_region(layer.norm(x)), lambda part: part)


@forwards
def gathered_hidden_features(layer, x):
    """Right, for more bytes."""
    gate, values = F.linear(copy_to_region(layer.norm(x)), layer.wide.weight).chunk(2, -1)
    inner = gather_from_region(F.silu(gate) * values)
    inner = inner.tensor_split(dist.get_world_size(), -1)[dist.get_rank()]
    return x + reduce_from_region(F.linear(inner, layer.narrow.weight)) + layer.narrow.bias


@fixed
def another_rate(model, batches):
    return trained(model, batches, right_forward, rate=0.2)


@fixed
def gate_and_values_exchanged(model, batches):
    def forward(layer, x):
        values, gate = F.linear(copy_to_region(layer.norm(x)), layer.wide.weight).chunk(2, -1)
        part = F.linear(F.silu(gate) * values, layer.narrow.weight)
        return x + reduce_from_region(part) + layer.narrow.bias

    return trained(model, batches, forward)


# Right ------------------------------------------------------------------------------------------


@forwards
def one_product(layer, x):
    return right_forward(layer, x)


@forwards
def two_products_of_one_f(layer, x):
    hidden = copy_to_region(layer.norm(x))
    return twice(layer, x, hidden, hidden)


@forwards
def a_hook(layer, x):
    def add_up(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

    hidden = layer.norm(x)
    hidden.register_hook(add_up)
    return twice(layer, x, hidden, hidden)


def said_by_text():
    return said(number="6144", line="values = F.linear(copy_to_region(hidden), weight)")


def said_the_line_of_the_norm():
    return said(line=5)


RIGHT = [one_product, two_products_of_one_f, a_hook, said_by_text, said_the_line_of_the_norm]

@fixed
def one_sum_more_in_the_whole_run(model, batches):
    """In a run of one step it sends as many bytes as all other calls; "Run this case" agrees."""
    losses = right(model, batches)
    dist.all_reduce(torch.zeros(2 * len(model.layers), 16, model.layers[0].norm.weight.numel()))
    return losses


WRONG = {
    all_bytes: {"number": "some of these bytes are needed"},
    what_is_needed: {"number": "that a right step passes"},
    the_whole_run: {"number": "that is the whole run"},
    one_layer: {"number": "that is one layer"},
    elements: {"number": "those are elements"},
    counted_calls: {"number": "subtract what two all-reduces"},
    the_line_of_the_sum: {"line": "does what it should here"},
    the_line_of_the_chunks: {"line": "that another one could include?"},
    a_function_alone: {"number": "program_1 must be a dict"},
    not_written: {"bytes": "not_written is not written yet"},
    nothing_shared: {"bytes": "its part is"},
    still_broken: {"bytes": "1.50 times"},
    f_before_and_behind_the_norm: {"bytes": "1.50 times"},
    the_norm_computed_twice: {"bytes": "1.50 times"},
    one_sum_more_in_the_whole_run: {"bytes": "2.00 times"},
    without_f: {"bytes": "A call is missing"},
    without_g: {"bytes": "A call is missing"},
    gathered_hidden_features: {"bytes": "bytes in all_gather"},
    f_for_the_gate_alone: {"training": "is not what one process ends with"},
    f_for_the_values_alone: {"training": "is not what one process ends with"},
    f_before_the_norm: {"training": "is not what one process ends with"},
    f_on_the_residual_stream: {"training": "is not what one process ends with"},
    another_rate: {"training": "is not what one process ends with"},
    gate_and_values_exchanged: {"training": "Change only what is broken"},
}

# Mutants that no check can tell from the solution ------------------------------------------------

EQUIVALENT = {
    "diagnosis_1 = {'number': 6144, 'line': 7} -> diagnosis_1 = {'number': 6144, 'line': 8}": (
        "f is applied in both lines, and either may be named"
    ),
    "for layer in model.layers: -> for layer in reversed(model.layers):": (
        "the layers are cut in any order"
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
