"""Answers to 02/script_5: a hook that averages the parameter, not its gradient.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from tests.wrong_answers.changed_scripts import (
    ANOTHER_ORDER,
    EPOCHS_BACKWARDS,
    FREE,
    OTHER_BATCHES,
    SET_TWICE,
    TWICE,
    TWO_LINES,
    changes_of_losses,
    cleared_later,
    neighbours,
)

SAID = {"symptom": "one step apart", "line": 6}


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": with_gradients}


def share_start(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def averaged(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def hooked(model, hook):
    """The start of rank 0, and this hook on every parameter."""
    share_start(model)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


def trained(model, data, epochs, *, net=None, sampler=None, before_step=None, after_step=None):
    """Adam, with something before or after each step."""
    sampler = sampler or DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy((net or model)(images), labels).backward()
            if before_step is not None:
                before_step()
            optimizer.step()
            if after_step is not None:
                after_step()


def with_gradients(model, data, epochs):
    hooked(model, lambda parameter: averaged(parameter.grad))
    trained(model, data, epochs)


# Wrong: the diagnosis ---------------------------------------------------------------------------


def says_drift():
    return said(symptom="drift")


def says_sum():
    return said(symptom="sum")


def the_line_of_the_start():
    return said(line="dist.broadcast(parameter.data, src=0)")


def the_line_of_the_registration():
    return said(line=11)


# Wrong: the function ----------------------------------------------------------------------------


@mended
def still_broken(model, data, epochs):
    hooked(model, lambda parameter: averaged(parameter.data))
    trained(model, data, epochs)


@mended
def without_hooks(model, data, epochs):
    share_start(model)
    trained(model, data, epochs)


@mended
def only_matrices(model, data, epochs):
    hooked(model, lambda one: averaged(one.grad) if one.ndim > 1 else None)
    trained(model, data, epochs)


@mended
def divided_only(model, data, epochs):
    def hook(parameter):
        parameter.grad /= dist.get_world_size()

    hooked(model, hook)
    trained(model, data, epochs)


@mended
def a_copy_of_the_gradient(model, data, epochs):
    hooked(model, lambda parameter: averaged(parameter.grad.clone()))
    trained(model, data, epochs)


@mended
def gradients_after_the_step(model, data, epochs):
    share_start(model)

    def after():
        for parameter in model.parameters():
            averaged(parameter.grad)

    trained(model, data, epochs, after_step=after)


@mended
def every_rank_keeps_its_start(model, data, epochs):
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: averaged(one.grad))
    trained(model, data, epochs)


@mended
def each_adds_up_from_itself_on(model, data, epochs):
    rank, size = dist.get_rank(), dist.get_world_size()

    def hook(parameter):
        parts = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(parts, parameter.grad)
        others = (parts[(rank + k) % size] for k in range(1, size))
        parameter.grad = sum(others, parts[rank]) / size

    hooked(model, hook)
    trained(model, data, epochs)


@mended
def not_written(model, data, epochs):
    raise NotImplementedError()


@mended
def parameters_after_the_step(model, data, epochs):
    share_start(model)

    def after():
        for parameter in model.parameters():
            averaged(parameter.data)

    trained(model, data, epochs, after_step=after)


@mended
def parameters_of_rank_0_after_the_step(model, data, epochs):
    share_start(model)
    trained(model, data, epochs, after_step=lambda: share_start(model))


@mended
def parameters_once_more_in_the_end(model, data, epochs):
    hooked(model, lambda parameter: averaged(parameter.data))
    trained(model, data, epochs)
    share_start(model)


@mended
def summed_and_not_divided(model, data, epochs):
    hooked(model, lambda parameter: dist.all_reduce(parameter.grad))
    trained(model, data, epochs)


@mended
def divided_twice(model, data, epochs):
    def hook(parameter):
        parameter.grad /= dist.get_world_size()
        averaged(parameter.grad)

    hooked(model, hook)
    trained(model, data, epochs)


@mended
def the_gradient_of_rank_0(model, data, epochs):
    hooked(model, lambda parameter: dist.broadcast(parameter.grad, src=0))
    trained(model, data, epochs)


@mended
def the_parameters_as_well(model, data, epochs):
    def average(parameter):
        averaged(parameter.grad)
        averaged(parameter.data)

    hooked(model, average)
    trained(model, data, epochs)


@mended
def the_same_samples_everywhere(model, data, epochs):
    share_start(model)
    trained(model, data, epochs, sampler=DistributedSampler(data, 1, 0))


# Right, written differently ---------------------------------------------------------------------


@mended
def the_gradient_is_averaged(model, data, epochs):
    with_gradients(model, data, epochs)


def said_with_the_other_line():
    return said(line="parameter.data /= size")


@mended
def before_it_is_added(model, data, epochs):
    def hook(gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()

    share_start(model)
    for parameter in model.parameters():
        parameter.register_hook(hook)
    trained(model, data, epochs)


@mended
def all_of_them_before_the_step(model, data, epochs):
    share_start(model)

    def before():
        for parameter in model.parameters():
            averaged(parameter.grad)

    trained(model, data, epochs, before_step=before)


@mended
def in_one_piece(model, data, epochs):
    share_start(model)

    def before():
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = torch.cat([one.flatten() for one in gradients])
        averaged(flat)
        parts = flat.split([one.numel() for one in gradients])
        for one, part in zip(gradients, parts, strict=True):
            one.copy_(part.view_as(one))

    trained(model, data, epochs, before_step=before)


@mended
def pytorchs_wrapper(model, data, epochs):
    trained(model, data, epochs, net=DDP(model))


RIGHT = [
    the_gradient_is_averaged,
    said_with_the_other_line,
    before_it_is_added,
    all_of_them_before_the_step,
    in_one_piece,
    pytorchs_wrapper,
]

WRONG = {
    says_drift: {"symptom": "the distance does not grow"},
    says_sum: {"symptom": "the sum of the ranks' gradients does not end with these parameters"},
    the_line_of_the_start: {"line": "before the optimizer steps, or after it"},
    the_line_of_the_registration: {"line": "What is averaged, and when"},
    still_broken: {"copies": "Which gradient does each rank step with?"},
    without_hooks: {"copies": "Which gradient does each rank step with?"},
    only_matrices: {"copies": "Which gradient does each rank step with?"},
    divided_only: {"copies": "Which gradient does each rank step with?"},
    a_copy_of_the_gradient: {"copies": "Which gradient does each rank step with?"},
    gradients_after_the_step: {"copies": "Which gradient does each rank step with?"},
    every_rank_keeps_its_start: {"copies": "What gives rank 0's parameters to all ranks?"},
    each_adds_up_from_itself_on: {"copies": "by rounding only"},
    not_written: {"copies": "mended is not written yet"},
    parameters_after_the_step: {"training": "averaged after each rank has made its own step"},
    parameters_of_rank_0_after_the_step: {"training": "training on rank 0's samples alone"},
    parameters_once_more_in_the_end: {"training": "Is every step made with the mean of all"},
    summed_and_not_divided: {"training": "They step with the sum of the ranks' gradients"},
    divided_twice: {"training": "Is every step made with the mean of all"},
    the_gradient_of_rank_0: {"training": "training on rank 0's samples alone"},
    the_parameters_as_well: {"training": "What else is averaged, and what for?"},
    the_same_samples_everywhere: {"training": "every rank goes through all 48 samples"},
}

EQUIVALENT = changes_of_losses(
    "sampler.set_epoch(epoch); total = 0.0 -> total = 0.0; sampler.set_epoch(epoch)",
    "for images, labels in loader:; optimizer.zero_grad(); ... -> losses.append(total / "
    "len(loader)); for images, labels in loader:; ...",
    "optimizer.step(); total += loss.item() -> total += loss.item(); optimizer.step()",
) | {
    **EPOCHS_BACKWARDS,
    **SET_TWICE,
    **cleared_later("model"),
    **neighbours("sampler = DistributedSampler(data, seed={})", 5, ANOTHER_ORDER),
    **neighbours("loader = DataLoader(data, batch_size={}, sampler=sampler)", 16, OTHER_BATCHES),
    "diagnosis_5 = {'symptom': 'one step apart', 'line': 6} -> "
    "diagnosis_5 = {'symptom': 'one step apart', 'line': 7}": TWO_LINES,
    "dist.all_reduce(parameter.grad); parameter.grad /= size -> "
    "parameter.grad /= size; dist.all_reduce(parameter.grad)": (
        "to divide first or last is the same up to rounding"
    ),
    "parameter.grad /= size -> parameter.grad = parameter.grad / size": (
        "`.grad` may be another tensor"
    ),
    "for parameter in model.parameters():; dist.broadcast(parameter.data, src=0); ... -> "
    "sampler = DistributedSampler(data, seed=5); for parameter in model.parameters():; ...": FREE,
    "dist.broadcast(parameter.data, src=0); "
    "parameter.register_post_accumulate_grad_hook(average) -> "
    "parameter.register_post_accumulate_grad_hook(average); "
    "dist.broadcast(parameter.data, src=0)": FREE,
    "dist.broadcast(parameter.data, ... -> dist.broadcast(parameter.data, src=0); "
    "dist.broadcast(parameter.data, ...": TWICE,
}
