"""Answers to 07/unsynchronised: only ranks that have a loss average their gradients.

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

SAID = {"symptom": "first apart", "number": 8320, "line": 12}


def trained(stages, batches, average, wrap=None, make=one_f_one_b, after=None, at_end=None):
    """`average` gets the stage's module, the mesh, and the result of a step."""
    mesh = make_mesh(data=dist.get_world_size() // len(stages), pipeline=len(stages))
    module = stages[mesh.get_local_rank("pipeline")]
    stage = PipelineStage(wrap(module, mesh) if wrap else module, group=mesh.get_group("pipeline"))
    optimizer = SGD(module.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        schedule = make(len(stages), 4)
        result = run_schedule(schedule, stage, images, labels, F.cross_entropy)
        if result.loss is not None:
            losses.append(result.loss.item())
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


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def right(stages, batches):
    return trained(stages, batches, mean)


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": right}


# Wrong ------------------------------------------------------------------------------------------


def says_last():
    return said(symptom="last apart")


def says_all():
    return said(symptom="all apart")


def says_mixed():
    return said(symptom="mixed")


def says_no_symptom():
    return said(symptom="drift")


def elements():
    return said(number=2080)


def the_whole_run():
    return said(number=4 * 8320)


def the_other_stage():
    return said(number="1320 B")


def what_is_sent():
    return said(number=0)


def both_stages():
    return said(number=9640)


def the_line_of_the_loss():
    return said(line=13)


def the_line_of_the_mesh():
    return said(line='replicas, place = mesh.get_group("data"), mesh.get_local_rank("pipeline")')


def a_function_alone():
    return right


@mended
def not_written(stages, batches):
    raise NotImplementedError()


@mended
def still_broken(stages, batches):
    return train_replicas(stages, batches)


@mended
def the_other_ranks(stages, batches):
    def average(module, mesh, result):
        if result.loss is None:
            mean(module, mesh, result)

    return trained(stages, batches, average)


@mended
def first_and_last(stages, batches):
    """Right for two stages."""

    def average(module, mesh, result):
        if mesh.get_local_rank("pipeline") in (0, len(stages) - 1):
            mean(module, mesh, result)

    return trained(stages, batches, average)


@mended
def over_the_pipeline(stages, batches):
    def average(module, mesh, result):
        for one in module.parameters():
            dist.all_reduce(one.grad, group=mesh.get_group("pipeline"))

    return trained(stages, batches, average)


@mended
def over_all_ranks(stages, batches):
    def average(module, mesh, result):
        for one in module.parameters():
            dist.all_reduce(one.grad)

    return trained(stages, batches, average)


@mended
def ranks_of_two_stages(stages, batches):
    """Ranks 0 and 2, 1 and 3, as numbers."""

    def average(module, mesh, result):
        group = pairs[dist.get_rank() % 2]
        for one in module.parameters():
            dist.all_reduce(one.grad, group=group)
            one.grad /= 2

    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return trained(stages, batches, average)


@mended
def sums(stages, batches):
    return trained(stages, batches, functools.partial(mean, divide_by=1))


@mended
def by_all_ranks(stages, batches):
    average = functools.partial(mean, divide_by=dist.get_world_size())
    return trained(stages, batches, average)


@mended
def the_first_pipelines_gradients(stages, batches):
    def average(module, mesh, result):
        for one in module.parameters():
            dist.broadcast(one.grad, group=mesh.get_group("data"), group_src=0)

    return trained(stages, batches, average)


@mended
def parameters_of_the_first_pipeline(stages, batches):
    """Alike they are; the other pipeline's batches count for nothing."""

    def after(module, mesh):
        for one in module.parameters():
            dist.broadcast(one.data, group=mesh.get_group("data"), group_src=0)

    return trained(stages, batches, nothing, after=after)


@mended
def once_in_the_end(stages, batches):
    return trained(stages, batches, nothing, at_end=mean_of_parameters)


@mended
def the_last_stage_goes_without(stages, batches):
    """All copies agree, since none of them moves."""

    def average(module, mesh, result):
        for one in module.parameters():
            one.grad.zero_()

    return trained(stages, batches, average)


@mended
def losses_of_nobody(stages, batches):
    trained(stages, batches, mean)
    return []


@mended
def losses_of_all_pipelines(stages, batches):
    losses = torch.tensor(trained(stages, batches, mean))
    if len(losses):
        dist.all_reduce(losses, group=last_ranks(len(stages)))
    else:
        last_ranks(len(stages))
    return (losses / (dist.get_world_size() // len(stages))).tolist()


def last_ranks(count):
    return dist.new_group(range(count - 1, dist.get_world_size(), count))


@mended
def twice(stages, batches):
    def average(module, mesh, result):
        mean(module, mesh, result)
        mean(module, mesh, result)

    return trained(stages, batches, average)


@mended
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


@mended
def gradients_and_parameters(stages, batches):
    return trained(stages, batches, mean, after=mean_of_parameters)


# Right, written differently ---------------------------------------------------------------------


@mended
def for_all_ranks(stages, batches):
    return right(stages, batches)


@mended
def wrapped(stages, batches):
    def wrap(module, mesh):
        return DataParallel(module, group=mesh.get_group("data"))

    return trained(stages, batches, nothing, wrap)


@mended
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


@mended
def parameters_after_each_step(stages, batches):
    """With plain SGD that is the same."""
    return trained(stages, batches, nothing, after=mean_of_parameters)


def text():
    return said(symptom="First apart", number="8320 B", line="if result.loss is not None:")


def the_all_reduce():
    return said(line="dist.all_reduce(parameter.grad, group=replicas)")


RIGHT = [
    for_all_ranks, wrapped, in_one_row_under_gpipe, parameters_after_each_step, text,
    the_all_reduce,
]  # fmt: skip

WRONG = {
    says_last: {"symptom": "of stage 0 they differ"},
    says_all: {"symptom": "of stage 1 they agree"},
    says_mixed: {"symptom": "0 all-reduces"},
    says_no_symptom: {"symptom": "is no symptom"},
    elements: {"number": "those are elements"},
    the_whole_run: {"number": "Divide by steps"},
    the_other_stage: {"number": "the gradients of another stage"},
    what_is_sent: {"number": "What should it send?"},
    both_stages: {"number": "some of these are sent"},
    the_line_of_the_loss: {"line": "reach the all-reduce"},
    the_line_of_the_mesh: {"line": "reach the all-reduce"},
    a_function_alone: {"symptom": "must be a dict"},
    not_written: {"copies": "not written yet"},
    still_broken: {"copies": "the copies of stage 0"},
    the_other_ranks: {"copies": "the copies of stage 1"},
    first_and_last: {"copies": "the copies of stage 1"},
    over_the_pipeline: {"copies": ""},
    over_all_ranks: {"copies": ""},
    ranks_of_two_stages: {"copies": ""},
    sums: {"training": "on what mean?"},
    by_all_ranks: {"training": "on what mean?"},
    the_first_pipelines_gradients: {"training": "on what mean?"},
    parameters_of_the_first_pipeline: {"training": "on what mean?"},
    once_in_the_end: {"training": "on what mean?"},
    the_last_stage_goes_without: {"training": "on what mean?"},
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
