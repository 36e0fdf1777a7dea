"""Answers to 07/run_a: only ranks that have a loss average gradients, and the loss is divided too.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim import SGD

from dtlab.parallel.data import DataParallel
from dtlab.parallel.mesh import make_mesh
from dtlab.parallel.pipeline import PipelineStage, run_schedule
from dtlab.schedules import gpipe, one_f_one_b
from dtlab.units.unit07.replicas_script import train_replicas

SAID = {"number": 0.5, "line": 16}


def trained(
    stages,
    batches,
    average,
    wrap=None,
    make=one_f_one_b,
    after=None,
    at_end=None,
    divided=False,
):
    """`average` gets the stage's module, the mesh, and the result of a step.

    If `divided`, the loss is divided by the number of pipelines before backward.
    """
    mesh = make_mesh(data=dist.get_world_size() // len(stages), pipeline=len(stages))
    module = stages[mesh.get_local_rank("pipeline")]
    stage = PipelineStage(wrap(module, mesh) if wrap else module, group=mesh.get_group("pipeline"))
    optimizer = SGD(module.parameters(), lr=0.1)
    count = mesh.get_group("data").size() if divided else 1

    def loss(outputs, labels):
        return F.cross_entropy(outputs, labels) / count

    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        schedule = make(len(stages), 4)
        result = run_schedule(schedule, stage, images, labels, loss)
        if result.loss is not None:
            losses.append(result.loss.item() * count)
        average(module, mesh, result)
        optimizer.step()
        if after:
            after(module, mesh)
    if at_end:
        at_end(module, mesh)
    return losses


def nothing(module, mesh, result):
    pass


def mean(module, mesh, result, divide_by=None):
    group = mesh.get_group("data")
    for one in module.parameters():
        dist.all_reduce(one.grad, group=group)
        one.grad /= divide_by or group.size()


@torch.no_grad()
def mean_of_parameters(module, mesh):
    for one in module.parameters():
        dist.all_reduce(one, group=mesh.get_group("data"))
        one /= mesh.get_group("data").size()


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def right(stages, batches):
    return trained(stages, batches, mean)


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": right}


# Wrong ------------------------------------------------------------------------------------------


def as_it_should_be():
    return said(number=1)


def the_other_way_round():
    return said(number=2)


def a_quarter():
    return said(number=0.25)


def of_one_batch():
    return said(number=0.75)


def the_line_of_the_loss():
    return said(line=17)


def the_line_of_the_mesh():
    return said(line='replicas, place = mesh.get_group("data"), mesh.get_local_rank("pipeline")')


def a_function_alone():
    return right


@fixed
def not_written(stages, batches):
    raise NotImplementedError()


@fixed
def still_broken(stages, batches):
    return train_replicas(stages, batches)


@fixed
def only_the_loop_moved(stages, batches):
    """All copies agree, and all stages move half as far as they should."""
    return trained(stages, batches, mean, divided=True)


@fixed
def only_divided_once(stages, batches):
    """The last stage is right, and the first stage's copies still drift apart."""

    def average(module, mesh, result):
        if result.loss is not None:
            mean(module, mesh, result)

    return trained(stages, batches, average)


@fixed
def only_a_loss_divided(stages, batches):
    def average(module, mesh, result):
        if result.loss is not None:
            mean(module, mesh, result, divide_by=1)

    return trained(stages, batches, average, divided=True)


@fixed
def reports_a_part_of_the_loss(stages, batches):
    losses = trained(stages, batches, mean)
    return [loss / 2 for loss in losses]


@fixed
def the_other_ranks(stages, batches):
    def average(module, mesh, result):
        if result.loss is None:
            mean(module, mesh, result)

    return trained(stages, batches, average)


@fixed
def first_and_last(stages, batches):
    """Right for two stages."""

    def average(module, mesh, result):
        if mesh.get_local_rank("pipeline") in (0, len(stages) - 1):
            mean(module, mesh, result)

    return trained(stages, batches, average)


@fixed
def over_the_pipeline(stages, batches):
    def average(module, mesh, result):
        for one in module.parameters():
            dist.all_reduce(one.grad, group=mesh.get_group("pipeline"))

    return trained(stages, batches, average)


@fixed
def gradients_never_cleared(stages, batches):
    sums = {}

    def average(module, mesh, result):
        mean(module, mesh, result)
        for one in module.parameters():
            sums[one] = one.grad = sums.get(one, 0) + one.grad

    return trained(stages, batches, average)


@fixed
def over_all_ranks(stages, batches):
    def average(module, mesh, result):
        for one in module.parameters():
            dist.all_reduce(one.grad)

    return trained(stages, batches, average)


@fixed
def ranks_of_two_stages(stages, batches):
    """Ranks 0 and 2, 1 and 3, as numbers."""

    def average(module, mesh, result):
        group = pairs[dist.get_rank() % 2]
        for one in module.parameters():
            dist.all_reduce(one.grad, group=group)
            one.grad /= 2

    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return trained(stages, batches, average)


@fixed
def sums(stages, batches):
    return trained(stages, batches, functools.partial(mean, divide_by=1))


@fixed
def by_all_ranks(stages, batches):
    average = functools.partial(mean, divide_by=dist.get_world_size())
    return trained(stages, batches, average)


@fixed
def the_first_pipelines_gradients(stages, batches):
    def average(module, mesh, result):
        for one in module.parameters():
            dist.broadcast(one.grad, group=mesh.get_group("data"), group_src=0)

    return trained(stages, batches, average)


@fixed
def parameters_of_the_first_pipeline(stages, batches):
    """Alike they are; the other pipeline's batches count for nothing."""

    def after(module, mesh):
        for one in module.parameters():
            dist.broadcast(one.data, group=mesh.get_group("data"), group_src=0)

    return trained(stages, batches, nothing, after=after)


@fixed
def once_in_the_end(stages, batches):
    return trained(stages, batches, nothing, at_end=mean_of_parameters)


@fixed
def the_last_stage_goes_without(stages, batches):
    """All copies agree, since none of them moves."""

    def average(module, mesh, result):
        for one in module.parameters():
            one.grad.zero_()

    return trained(stages, batches, average)


@fixed
def losses_of_nobody(stages, batches):
    trained(stages, batches, mean)
    return []


@fixed
def losses_of_all_pipelines(stages, batches):
    losses = torch.tensor(trained(stages, batches, mean))
    if len(losses):
        dist.all_reduce(losses, group=last_ranks(len(stages)))
    else:
        last_ranks(len(stages))
    return (losses / (dist.get_world_size() // len(stages))).tolist()


def last_ranks(count):
    return dist.new_group(range(count - 1, dist.get_world_size(), count))


@fixed
def twice(stages, batches):
    def average(module, mesh, result):
        mean(module, mesh, result)
        mean(module, mesh, result)

    return trained(stages, batches, average)


@fixed
def all_stages_with_zeros(stages, batches):
    """Every rank has a place for every stage's gradient."""

    def average(module, mesh, result):
        sizes = [sum(one.numel() for one in stage.parameters()) for stage in stages]
        row = torch.zeros(sum(sizes))
        own = row.split(sizes)[mesh.get_local_rank("pipeline")]
        own.copy_(torch.cat([one.grad.flatten() for one in module.parameters()]))
        dist.all_reduce(row)
        at = 0
        for one in module.parameters():
            one.grad.copy_(own[at : at + one.numel()].view_as(one))
            one.grad /= mesh.get_group("data").size()
            at += one.numel()

    return trained(stages, batches, average)


@fixed
def gradients_and_parameters(stages, batches):
    return trained(stages, batches, mean, after=mean_of_parameters)


# Right, written differently ---------------------------------------------------------------------


@fixed
def for_all_ranks(stages, batches):
    return right(stages, batches)


@fixed
def wrapped(stages, batches):
    def wrap(module, mesh):
        return DataParallel(module, group=mesh.get_group("data"))

    return trained(stages, batches, nothing, wrap)


@fixed
def in_one_row_under_gpipe(stages, batches):
    def average(module, mesh, result):
        group = mesh.get_group("data")
        row = torch.cat([one.grad.flatten() for one in module.parameters()]) / group.size()
        dist.all_reduce(row, group=group)
        for one, part in zip(
            module.parameters(), row.split([p.numel() for p in module.parameters()]), strict=True
        ):
            one.grad.copy_(part.view_as(one))

    return trained(stages, batches, average, make=gpipe)


@fixed
def a_sum_of_divided_losses(stages, batches):
    return trained(stages, batches, functools.partial(mean, divide_by=1), divided=True)


@fixed
def parameters_after_each_step(stages, batches):
    """With plain SGD that is the same."""
    return trained(stages, batches, nothing, after=mean_of_parameters)


def text():
    return said(number="0.5", line="if result.loss is not None:")


def the_all_reduce():
    return said(line="dist.all_reduce(parameter.grad, group=replicas)")


def the_loss():
    return said(line="return F.cross_entropy(outputs, labels) / replicas.size()")


RIGHT = [
    for_all_ranks, wrapped, in_one_row_under_gpipe, parameters_after_each_step, text,
    a_sum_of_divided_losses, the_all_reduce, the_loss,
]  # fmt: skip

WRONG = {
    as_it_should_be: {"number": "the size of a right update"},
    the_other_way_round: {"number": "that is the inverse"},
    a_quarter: {"number": "only one half of it"},
    of_one_batch: {"number": "the batches of both"},
    the_line_of_the_loss: {"line": "does what it should here"},
    the_line_of_the_mesh: {"line": "does what it should here"},
    a_function_alone: {"number": "must be a dict"},
    not_written: {"copies": "not written yet"},
    still_broken: {"copies": "the copies of stage 0"},
    only_divided_once: {"copies": "the copies of stage 0"},
    only_a_loss_divided: {"copies": "the copies of stage 0"},
    only_the_loop_moved: {"training": "compare their updates"},
    reports_a_part_of_the_loss: {"training": "returns the losses"},
    the_other_ranks: {"copies": "the copies of stage 1"},
    first_and_last: {"copies": "the copies of stage 1"},
    over_the_pipeline: {"copies": ""},
    over_all_ranks: {"copies": "If it is meant for a smaller group, pass"},
    ranks_of_two_stages: {"copies": ""},
    sums: {"training": "The copies agree"},
    by_all_ranks: {"training": "The copies agree"},
    the_first_pipelines_gradients: {"training": "The copies agree"},
    parameters_of_the_first_pipeline: {"training": "The copies agree"},
    gradients_never_cleared: {"training": "right up to step 2, so the update of step 2 is"},
    once_in_the_end: {"training": "The copies agree"},
    the_last_stage_goes_without: {"training": "The copies agree"},
    losses_of_nobody: {"training": "returns the losses []"},
    losses_of_all_pipelines: {"training": "in one process those of its batches"},
    twice: {"traffic": "once in a step is enough"},
    all_stages_with_zeros: {"traffic": "without gradients of other stages"},
    gradients_and_parameters: {"traffic": "and not 32 as in the notebook"},
}

_SAME = "any number of microbatches gives the gradients of the whole batch"

EQUIVALENT = {
    "schedule = one_f_one_b(len(stages), 4) -> schedule = one_f_one_b(len(stages), 5)": _SAME,
    "schedule = one_f_one_b(len(stages), 4) -> schedule = one_f_one_b(len(stages), 3)": _SAME,
    "optimizer.zero_grad() -> optimizer.zero_grad(); optimizer.zero_grad()": (
        "done once more, with the same outcome"
    ),
    "if result.loss is not None:; losses.append(result.loss.item()); optimizer.step() -> "
    "optimizer.step(); if result.loss is not None:; losses.append(result.loss.item())": (
        "neither needs the other to have been done"
    ),
    "optimizer.step() -> optimizer.step(); for images, labels in batches:; ...": (
        "batches can be gone through once"
    ),
}
