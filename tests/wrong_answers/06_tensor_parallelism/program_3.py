"""Answers to 06/program_3: f comes too early, and a sum of gradients hides it in the norms.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from dtlab.parallel.tensor import copy_to_region, reduce_from_region
from dtlab.units.unit06.runs_scripts import own, train_3

SAID = {"number": 4, "line": 5}


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


def whole_of(model):
    names = ("wide.weight", "narrow.weight")
    return {name: p for name, p in model.named_parameters() if not name.endswith(names)}


def sum_gradients(model, of="", times=1.0):
    for name, p in whole_of(model).items():
        if of in name:
            dist.all_reduce(p.grad)
            p.grad *= times


def early_f(layer, x):
    return behind(layer, x, layer.norm(copy_to_region(x)))


# Wrong ------------------------------------------------------------------------------------------


def on_two_ranks():
    return said(number=2)


def as_the_norms():
    return said(number=1)


def the_other_way_round():
    return said(number=0.25)


def the_excess():
    return said(number=3)


def the_line_of_the_products():
    return said(line=6)


def the_line_of_the_function():
    return said(line="def forward(layer, x):")


def the_line_of_the_sum():
    return said(line="return x + reduce_from_region(part) + layer.narrow.bias")


def the_line_of_the_step():
    return said(line="optimizer.step()")


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
    return train_3(model, batches)


@fixed
def only_the_sum_taken_out(model, batches):
    """Now the norms' copies drift apart."""
    return trained(model, batches, early_f)


@fixed
def only_f_moved(model, batches):
    """Now the norms' gradients are summed too often, too."""
    return trained(model, batches, right_forward, before=sum_gradients)


@fixed
def a_mean_for_the_sum(model, batches):
    """The norms' gradients are then too small."""
    return trained(
        model,
        batches,
        early_f,
        before=lambda model: sum_gradients(model, times=1 / dist.get_world_size()),
    )


@fixed
def only_norms_summed_behind_f(model, batches):
    return trained(model, batches, right_forward, before=lambda m: sum_gradients(m, "norm"))


@fixed
def copies_sent_by_rank_0(model, batches):
    """Copies agree again, and the norms have moved by a part of their gradient."""

    def send(model):
        for name, p in whole_of(model).items():
            if "norm" in name:
                dist.broadcast(p.grad, src=0)

    return trained(model, batches, early_f, before=send)


@fixed
def divided_for_the_norms_alone(model, batches):
    def halfway(model):
        sum_gradients(model)
        for name, p in whole_of(model).items():
            if "norm" in name:
                p.grad /= dist.get_world_size()

    return trained(model, batches, right_forward, before=halfway)


@fixed
def a_smaller_rate(model, batches):
    """Right for what is summed, too small for everything else."""
    return trained(
        model, batches, right_forward, before=sum_gradients, rate=0.1 / dist.get_world_size()
    )


@forwards
def without_f(layer, x):
    return behind(layer, x, layer.norm(x))


@forwards
def f_on_the_residual_stream(layer, x):
    x = copy_to_region(x)
    return behind(layer, x, layer.norm(x))


@forwards
def f_twice(layer, x):
    return behind(layer, x, copy_to_region(layer.norm(copy_to_region(x))))


@fixed
def norms_not_trained(model, batches):
    for layer in model.layers:
        layer.norm.requires_grad_(False)
    return trained(model, batches, right_forward)


@fixed
def with_momentum(model, batches):
    """The first step is right."""
    return trained(model, batches, right_forward, momentum=0.9)


@fixed
def mean_of_equal_gradients(model, batches):
    """Right, for more bytes."""
    return trained(
        model,
        batches,
        right_forward,
        before=lambda model: sum_gradients(model, times=1 / dist.get_world_size()),
    )


# Right ------------------------------------------------------------------------------------------


@forwards
def f_behind_the_norm(layer, x):
    return right_forward(layer, x)


@fixed
def only_the_norms_summed(model, batches):
    """As Megatron-LM does for norms under sequence parallelism."""
    return trained(model, batches, early_f, before=lambda model: sum_gradients(model, "norm"))


@forwards
def a_hook(layer, x):
    def add_up(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient

    hidden = layer.norm(x)
    hidden.register_hook(add_up)
    return behind(layer, x, hidden)


def said_the_other_fault():
    return said(number="4", line="dist.all_reduce(parameter.grad)")


def said_which_gradients_are_summed():
    return said(line=16)


RIGHT = [f_behind_the_norm, only_the_norms_summed, a_hook, said_the_other_fault,
         said_which_gradients_are_summed]  # fmt: skip

WRONG = {
    on_two_ranks: {"number": "that is what it is on two ranks"},
    as_the_norms: {"number": "what the norms' updates have"},
    the_other_way_round: {"number": "that is the inverse"},
    the_excess: {"number": "only the excess"},
    the_line_of_the_products: {"line": "does what it should here"},
    the_line_of_the_function: {"line": "`def forward(layer, x):` (line 4"},
    the_line_of_the_sum: {"line": "which are only parts?"},
    the_line_of_the_step: {"line": "does what it should here"},
    a_function_alone: {"number": "program_3 must be a dict"},
    not_written: {"copies": "not_written is not written yet"},
    only_the_sum_taken_out: {"copies": "the copies of layers.0.norm.weight"},
    without_f: {"copies": "the copies of"},
    f_on_the_residual_stream: {"copies": "the copies of"},
    still_broken: {"updates": "leave.bias on rank 0 is 3 times"},
    only_f_moved: {"updates": "leave.bias on rank 0 is 3 times"},
    a_mean_for_the_sum: {"updates": "norm.bias on rank 0 is 0.333 times"},
    only_norms_summed_behind_f: {"updates": "norm.bias on rank 0 is 3 times"},
    copies_sent_by_rank_0: {"updates": "norm.bias on rank 0 is"},
    divided_for_the_norms_alone: {"updates": "leave.bias on rank 0 is 3 times"},
    a_smaller_rate: {"updates": "narrow.weight on rank 0 is 0.333 times"},
    f_twice: {"updates": "times that of one process"},
    norms_not_trained: {"updates": "norm.bias on rank 0 is 0 times"},
    nothing_shared: {"updates": "its part is"},
    with_momentum: {"training": "Change only what is broken"},
    mean_of_equal_gradients: {"training": "times the bytes"},
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
