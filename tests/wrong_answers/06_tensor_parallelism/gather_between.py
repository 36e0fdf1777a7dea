"""Answers to 06/gather_between: what a column parallel layer gives is gathered, and cut again.

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
    naive_column_linear,
    naive_row_linear,
    reduce_from_region,
    scatter_to_region,
)
from dtlab.units.unit06.runs_scripts import share_out, train_gather

SAID = {"symptom": "gathers", "number": 61440, "line": 6}


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


def trained(model, batches, forward, rate=0.1):
    share_out(model, forward)
    return steps(model, batches, rate)


def wide(layer, x):
    return F.linear(copy_to_region(layer.norm(x)), layer.wide.weight, layer.wide.bias)


def narrow(layer, x, inner):
    return x + reduce_from_region(F.linear(inner, layer.narrow.weight)) + layer.narrow.bias


def right_forward(layer, x):
    return narrow(layer, x, F.gelu(wide(layer, x)))


def right(model, batches):
    return trained(model, batches, right_forward)


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": right}


# Wrong ------------------------------------------------------------------------------------------


def says_drift():
    return said(symptom="drift")


def says_whole():
    return said(symptom="whole")


def says_no_symptom():
    return said(symptom="too many bytes")


def the_whole_run():
    return said(number=4 * 61440)


def forward_alone():
    return said(number=61440 / 2)


def one_layer():
    return said(number=61440 // 3)


def what_is_reduced():
    return said(number=12288)


def elements():
    return said(number="15360")


def all_that_is_sent():
    return said(number=61440 + 12288)


def the_line_of_the_product():
    return said(line=5)


def the_line_of_the_sum():
    return said(line="return x + reduce_from_region(part) + layer.narrow.bias")


def a_function_alone():
    return right


@mended
def not_written(model, batches):
    raise NotImplementedError()


@mended
def still_gathered(model, batches):
    """It says how many features there are, and gathers them all the same."""

    def forward(layer, x):
        total = layer.narrow.in_features
        inner = F.gelu(gather_from_region(wide(layer, x), total=total))
        return narrow(layer, x, scatter_to_region(inner))

    return trained(model, batches, forward)


@mended
def as_handed_out(model, batches):
    return train_gather(model, batches)


@mended
def gelu_before_the_gather(model, batches):
    def forward(layer, x):
        inner = gather_from_region(F.gelu(wide(layer, x)))
        return narrow(layer, x, scatter_to_region(inner))

    return trained(model, batches, forward)


@mended
def cut_by_hand(model, batches):
    """Backward sends nothing more; forward does."""

    def forward(layer, x):
        inner = gather_from_region(wide(layer, x))
        own = F.gelu(inner).tensor_split(dist.get_world_size(), -1)[dist.get_rank()]
        return narrow(layer, x, own)

    return trained(model, batches, forward)


@mended
def by_the_layers_of_the_library(model, batches):
    for layer in model.layers:
        layer.wide = ColumnParallelLinear.from_dense(layer.wide, gather_output=True)
        layer.narrow = RowParallelLinear.from_dense(layer.narrow, input_is_parallel=False)
    return steps(model, batches)


@mended
def nothing_shared(model, batches):
    return steps(model, batches)


@mended
def one_reduction_more(model, batches):
    """To be sure: of what is the same everywhere."""

    def forward(layer, x):
        out = right_forward(layer, x)
        same = out.detach().clone()
        dist.all_reduce(same, dist.ReduceOp.MAX)
        return out

    return trained(model, batches, forward)


@mended
def without_f(model, batches):
    def forward(layer, x):
        inner = F.linear(layer.norm(x), layer.wide.weight, layer.wide.bias)
        return narrow(layer, x, F.gelu(inner))

    return trained(model, batches, forward)


@mended
def another_rate(model, batches):
    return trained(model, batches, right_forward, rate=0.05)


@mended
def no_gelu(model, batches):
    return trained(model, batches, lambda layer, x: narrow(layer, x, wide(layer, x)))


@mended
def a_bias_per_rank(model, batches):
    def forward(layer, x):
        part = F.linear(F.gelu(wide(layer, x)), layer.narrow.weight, layer.narrow.bias)
        return x + reduce_from_region(part)

    return trained(model, batches, forward)


@mended
def no_way_round(model, batches):
    return trained(model, batches, lambda layer, x: right_forward(layer, x) - x)


# Right ------------------------------------------------------------------------------------------


@mended
def by_hand(model, batches):
    return right(model, batches)


@mended
def column_and_row(model, batches):
    for layer in model.layers:
        layer.wide = ColumnParallelLinear.from_dense(layer.wide)
        layer.narrow = RowParallelLinear.from_dense(layer.narrow)
    return steps(model, batches)


@mended
def by_the_naive_functions(model, batches):
    def forward(layer, x):
        inner = naive_column_linear(layer.norm(x), layer.wide.weight, layer.wide.bias)
        return x + naive_row_linear(F.gelu(inner), layer.narrow.weight, layer.narrow.bias)

    return trained(model, batches, forward)


@mended
def products_of_matrices(model, batches):
    def forward(layer, x):
        inner = copy_to_region(layer.norm(x)) @ layer.wide.weight.T + layer.wide.bias
        part = reduce_from_region(torch.nn.functional.gelu(inner) @ layer.narrow.weight.T)
        return x + part + layer.narrow.bias

    return trained(model, batches, forward)


def said_by_text():
    return said(
        symptom="Gathers", number="61440",
        line="part = F.linear(scatter_to_region(inner), layer.narrow.weight)",
    )  # fmt: skip


RIGHT = [by_hand, column_and_row, by_the_naive_functions, products_of_matrices, said_by_text]

WRONG = {
    says_drift: {"symptom": "that is not what happens"},
    says_whole: {"symptom": "80 of 160 features"},
    says_no_symptom: {"symptom": "is no symptom. There are: gathers"},
    the_whole_run: {"number": "that is the whole run"},
    forward_alone: {"number": "one of the two passes"},
    one_layer: {"number": "that is one layer"},
    what_is_reduced: {"number": "those are the bytes of all-reduces"},
    elements: {"number": "those are elements"},
    all_that_is_sent: {"number": "some of these are all-reduces"},
    the_line_of_the_product: {"line": "does what it should here"},
    the_line_of_the_sum: {"line": "which rank already has them?"},
    a_function_alone: {"symptom": "gather_between must be a dict"},
    not_written: {"bytes": "mended is not written yet"},
    still_gathered: {"bytes": "bytes in all_gather"},
    as_handed_out: {"bytes": "bytes in all_gather"},
    gelu_before_the_gather: {"bytes": "bytes in all_gather"},
    cut_by_hand: {"bytes": "bytes in all_gather"},
    by_the_layers_of_the_library: {"bytes": "bytes in all_gather"},
    nothing_shared: {"bytes": "Keep the layers sharded"},
    one_reduction_more: {"bytes": "1.50 times"},
    without_f: {"bytes": "A call is missing"},
    another_rate: {"training": "Change only what is broken"},
    no_gelu: {"training": "Change only what is broken"},
    a_bias_per_rank: {"training": "Change only what is broken"},
    no_way_round: {"training": "Change only what is broken"},
}

# Mutants that no check can tell from the solution ------------------------------------------------

EQUIVALENT = {
    "diagnosis_gather = {'symptom': 'gathers', 'number': 61440, 'line': 6} -> "
    "diagnosis_gather = {'symptom': 'gathers', 'number': 61440, 'line': 7}": (
        "the gather and the cut are one mistake in two lines, and either may be named"
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
