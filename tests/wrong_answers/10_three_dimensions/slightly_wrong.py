"""Answers to 10/slightly_wrong: two faults over three axes, each of which hides the other.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch.distributed as dist
import torch.nn.functional as F
from torch.optim import SGD

from dtlab.parallel.data import DataParallel
from dtlab.parallel.mesh import make_mesh
from dtlab.parallel.pipeline import PipelineStage, run_schedule
from dtlab.parallel.tensor import gather_from_region
from dtlab.parallel.tensor.sequence import gather_from_sequence, scatter_to_sequence
from dtlab.schedules import gpipe, one_f_one_b
from dtlab.units.unit10.slightly_wrong_script import cut, train

SAID = {"parameter": "head.weight", "factor": 0.5, "lines": [12, 22]}


def whole(x, group):
    """The right gather: all tensor ranks go on alike."""
    return gather_from_sequence(x, group, then_sharded=False)


def mean(parameters, data, tensor):
    for one in parameters:
        dist.all_reduce(one.grad, group=data)
        one.grad /= data.size()


def trained(model, batches, sizes, gather=whole, average=mean, make=one_f_one_b, **options):
    mesh = make_mesh(**sizes)
    data, pipeline, tensor = (mesh.get_group(axis) for axis in ("data", "pipeline", "tensor"))

    def forward(stage, x):
        if stage.is_first:
            x = scatter_to_sequence(stage.embedding(x), tensor)
        for block in stage.blocks.values():
            x = block(x)
        if stage.is_last:
            x = stage.head(gather(stage.norm(x), tensor)).transpose(1, 2)
        return x

    module = cut(model, mesh, forward)
    if options.get("wrap"):
        module = DataParallel(module, group=data)
    stage = PipelineStage(module, group=pipeline)
    optimizer, losses = SGD(model.parameters(), lr=options.get("rate", 0.1)), []
    loss_of = options.get("loss", F.cross_entropy)
    for tokens, targets in batches:
        optimizer.zero_grad()
        result = run_schedule(make(pipeline.size(), 2), stage, tokens, targets, loss_of)
        average(list(model.parameters()), data, tensor)
        if options.get("before_step"):
            options["before_step"](model, tensor)
        optimizer.step()
        losses += [result.loss.item()] if model.is_last else []
    return losses


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": trained}


def nothing(parameters, data, tensor):
    pass


def scaled(by):
    """A mean that is off by a factor, which depends on the groups."""

    def average(parameters, data, tensor):
        mean(parameters, data, tensor)
        for one in parameters:
            one.grad *= by(data.size(), tensor.size())

    return average


def head_scaled(by):
    def before_step(model, tensor):
        if model.is_last:
            model.head.weight.grad *= by(tensor.size())

    return before_step


# Wrong ------------------------------------------------------------------------------------------


def a_function_alone():
    return trained


def a_block():
    return said(parameter="blocks.0.attention_norm.weight")


def no_parameter():
    return said(parameter="the head")


def the_factor_upside_down():
    return said(factor=2)


def one_line():
    return said(lines=[22])


def the_same_line_twice():
    return said(lines=[22, "parameter.grad /= data.size() * tensor.size()"])


def the_line_of_the_all_reduce():
    return said(lines=[12, 21])


def the_line_of_the_embedding():
    return said(lines=[8, 22])


@fixed
def not_written(model, batches, sizes):
    raise NotImplementedError()


@fixed
def still_broken(model, batches, sizes):
    return train(model, batches, sizes)


@fixed
def only_the_divisor(model, batches, sizes):
    """The head is right, and everything before it is t times too large."""
    return trained(model, batches, sizes, gather=gather_from_sequence)


@fixed
def only_the_gather(model, batches, sizes):
    """Every gradient is 1/t of the right one."""
    return trained(model, batches, sizes, average=scaled(lambda d, t: 1 / t))


@fixed
def divided_by_the_world(model, batches, sizes):
    """Microbatches and all ranks."""
    return trained(model, batches, sizes, average=scaled(lambda d, t: d / dist.get_world_size()))


@fixed
def not_divided(model, batches, sizes):
    return trained(model, batches, sizes, average=scaled(lambda d, t: d))


@fixed
def the_rate_made_larger(model, batches, sizes):
    """What is seen in the head, fixed for all parameters."""
    rate = 0.1 * sizes["tensor"]
    average = scaled(lambda d, t: 1 / t)
    return trained(model, batches, sizes, gather_from_sequence, average, rate=rate)


@fixed
def the_head_twice_as_large(model, batches, sizes):
    """Right with two tensor ranks only."""
    average = scaled(lambda d, t: 1 / t)
    before = head_scaled(lambda t: 2)
    return trained(model, batches, sizes, gather_from_sequence, average, before_step=before)


@fixed
def over_the_tensor_ranks_too(model, batches, sizes):
    """Adds up what all tensor ranks have alike, and different shards."""

    def average(parameters, data, tensor):
        for one in parameters:
            dist.all_reduce(one.grad, group=data)
            dist.all_reduce(one.grad, group=tensor)
            one.grad /= data.size() * tensor.size()

    return trained(model, batches, sizes, average=average)


@fixed
def no_mean(model, batches, sizes):
    """Each data rank on its own."""
    return trained(model, batches, sizes, average=nothing)


@fixed
def the_loss_divided(model, batches, sizes):
    """The two divisions, put into the loss: losses are those of a part of it."""

    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets) / sizes["tensor"]

    return trained(model, batches, sizes, loss=loss)


@fixed
def the_losses_of_two_steps(model, batches, sizes):
    return trained(model, batches, sizes)[:2]


@fixed
def the_losses_averaged(model, batches, sizes):
    losses = trained(model, batches, sizes)
    return [sum(losses) / len(losses)] * len(losses) if losses else []


@fixed
def a_decaying_rate(model, batches, sizes):
    """The first step is right, the others are not."""
    done = []

    def before_step(model, tensor):
        for one in model.parameters():
            one.grad *= 0.9 ** len(done)
        done.append(1)

    return trained(model, batches, sizes, before_step=before_step)


# Right, written differently ---------------------------------------------------------------------


@fixed
def both_lines(model, batches, sizes):
    return trained(model, batches, sizes)


@fixed
def wrapped_and_gpipe(model, batches, sizes):
    """Averaged while the backward pass runs."""
    return trained(model, batches, sizes, average=nothing, make=gpipe, wrap=True)


@fixed
def gathered_as_features(model, batches, sizes):
    """`gather_from_region` on the last dim: its backward pass does not add up either."""

    def gather(x, group):
        return gather_from_region(x.transpose(1, 2).contiguous(), group).transpose(1, 2)

    return trained(model, batches, sizes, gather=gather)


@fixed
def the_head_made_larger(model, batches, sizes):
    """The head alone needs what the division took too much."""
    average = scaled(lambda d, t: 1 / t)
    before = head_scaled(lambda t: t)
    return trained(model, batches, sizes, gather_from_sequence, average, before_step=before)


def text_of_lines():
    return said(lines=["gather_from_sequence(stage.norm(x), tensor)", "line 22"], factor=1 / 2)


RIGHT = [
    both_lines, wrapped_and_gpipe, gathered_as_features, the_head_made_larger, text_of_lines,
]  # fmt: skip

SCALE = "that of one process. Which ranks have other samples"
BALANCE = "Between the two is a collective"
WRONG = {
    a_function_alone: {"diagnosis": "must be a dict"},
    a_block: {"diagnosis": "is that of one process"},
    no_parameter: {"diagnosis": "is no parameter"},
    the_factor_upside_down: {"diagnosis": "is not 2 times"},
    one_line: {"diagnosis": "you name 1 line"},
    the_same_line_twice: {"diagnosis": "both lines belong to the same fault"},
    the_line_of_the_all_reduce: {"diagnosis": "does what it should"},
    the_line_of_the_embedding: {"diagnosis": "does what it should"},
    not_written: {"scale": "not written yet"},
    still_broken: {"scale": "is 0.5 times", "balance": BALANCE},
    only_the_divisor: {"balance": "has 2 times"},
    only_the_gather: {"scale": "is 0.5 times"},
    divided_by_the_world: {"scale": SCALE},
    not_divided: {"scale": "is 2 times"},
    the_rate_made_larger: {"balance": BALANCE},
    the_head_twice_as_large: {"scale": SCALE, "balance": BALANCE},
    over_the_tensor_ranks_too: {"balance": "another direction"},
    no_mean: {"scale": "has another direction", "balance": ""},
    the_loss_divided: {"scale": SCALE},
    the_losses_of_two_steps: {"training": "returns the losses"},
    the_losses_averaged: {"training": "returns the losses"},
    a_decaying_rate: {"training": ""},
}


# Mutants that no check can tell from the solution ------------------------------------------------

_SAME = "the same two dims"
_SCHEDULE = "any number of microbatches gives the gradients of the whole batch"
_TWICE = "done once more, with the same outcome"
_ORDER = "neither needs the other to have been done"
_REBOUND = "set anew, to the same value"
_MEAN = "the mean of equal gradients is the same again"
_GONE = "batches can be gone through once"

EQUIVALENT = {
    "x = stage.head(x).transpose(1, 2) -> x = stage.head(x).transpose(2, 1)": _SAME,
    "... (one_f_one_b(pipeline.size(), 2), SGD(model.parameters(), lr=0.1)) -> ... "
    "(one_f_one_b(pipeline.size(), 3), SGD(model.parameters(), lr=0.1))": _SCHEDULE,
    "... (one_f_one_b(pipeline.size(), 2), SGD(model.parameters(), lr=0.1)) -> ... "
    "(one_f_one_b(pipeline.size(), 1), SGD(model.parameters(), lr=0.1))": _SCHEDULE,
    "optimizer.zero_grad() -> optimizer.zero_grad(); optimizer.zero_grad()": _TWICE,
    "dist.all_reduce(parameter.grad, group=data); parameter.grad /= data.size() -> "
    "parameter.grad /= data.size(); dist.all_reduce(parameter.grad, group=data)": _ORDER,
    "parameter.grad /= data.size() -> parameter.grad = parameter.grad / data.size()": _REBOUND,
    "parameter.grad /= data.size() -> parameter.grad /= data.size(); for parameter in "
    "model.parameters():; ...": _MEAN,
    "optimizer.step(); losses += [result.loss.item()] if stage.module.is_last else [] -> "
    "losses += [result.loss.item()] if stage.module.is_last else []; optimizer.step()": _ORDER,
    "losses += [result.loss.item()] if stage.module.is_last else [] -> losses = losses + "
    "([result.loss.item()] if stage.module.is_last else [])": _REBOUND,
    "... if stage.module.is_last else [] -> ... if stage.module.is_last else []; for "
    "tokens, targets in batches:; ...": _GONE,
}
