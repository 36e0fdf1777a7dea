"""Answers to 02/script_5: each rank clips its gradient before it is averaged.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader, DistributedSampler

from tests.wrong_answers.changed_scripts import (
    ANOTHER_ORDER,
    EPOCHS_BACKWARDS,
    FREE,
    OTHER_BATCHES,
    SET_TWICE,
    TWICE,
    changes_of_losses,
    cleared_later,
    neighbours,
)

SAID = {"line": 16}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": with_gradients}


def share_start(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def averaged(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def gradients_averaged(model):
    for parameter in model.parameters():
        averaged(parameter.grad)


def clipped(model, length=0.6):
    clip_grad_norm_(model.parameters(), length)


def trained(model, data, epochs, *before_step, net=None, sampler=None, after_step=None, rate=0.5):
    """SGD from rank 0's start; each function of `before_step` is called with the model."""
    share_start(model)
    sampler = sampler or DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy((net or model)(images), labels).backward()
            for change in before_step:
                change(model)
            optimizer.step()
            if after_step is not None:
                after_step()


def with_gradients(model, data, epochs, max_norm):
    trained(model, data, epochs, gradients_averaged, clipped)


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_start():
    return said(line="dist.broadcast(parameter.data, src=0)")


def the_line_of_the_all_reduce():
    return said(line="dist.all_reduce(parameter.grad)")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs, max_norm):
    trained(model, data, epochs, clipped, gradients_averaged)


@fixed
def not_averaged(model, data, epochs, max_norm):
    trained(model, data, epochs, clipped)


@fixed
def averaged_before_backward(model, data, epochs, max_norm):
    net = DDP(model)
    trained(model, data, epochs, clipped, net=lambda images: net.module(images))


@fixed
def only_matrices_are_averaged(model, data, epochs, max_norm):
    def change(model):
        for parameter in model.parameters():
            if parameter.ndim > 1:
                averaged(parameter.grad)

    trained(model, data, epochs, change, clipped)


@fixed
def every_rank_keeps_its_start(model, data, epochs, max_norm):
    loader = DataLoader(data, 16, sampler=DistributedSampler(data, seed=5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            gradients_averaged(model)
            clipped(model)
            optimizer.step()


@fixed
def each_adds_up_from_itself_on(model, data, epochs, max_norm):
    rank, size = dist.get_rank(), dist.get_world_size()

    def change(model):
        for parameter in model.parameters():
            parts = [torch.empty_like(parameter) for _ in range(size)]
            dist.all_gather(parts, parameter.grad)
            others = (parts[(rank + k) % size] for k in range(1, size))
            parameter.grad = sum(others, parts[rank]) / size

    trained(model, data, epochs, change, clipped)


@fixed
def not_written(model, data, epochs, max_norm):
    raise NotImplementedError()


@fixed
def clipped_twice(model, data, epochs, max_norm):
    trained(model, data, epochs, clipped, gradients_averaged, clipped)


@fixed
def not_clipped(model, data, epochs, max_norm):
    trained(model, data, epochs, gradients_averaged)


@fixed
def clipped_after_the_sum(model, data, epochs, max_norm):
    def added(model):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    def divided(model):
        for parameter in model.parameters():
            parameter.grad /= dist.get_world_size()

    trained(model, data, epochs, added, clipped, divided)


@fixed
def a_longer_limit_for_each_rank(model, data, epochs, max_norm):
    size = dist.get_world_size()
    trained(model, data, epochs, lambda model: clipped(model, 0.6 * size), gradients_averaged)


@fixed
def every_parameter_by_itself(model, data, epochs, max_norm):
    def change(model):
        for parameter in model.parameters():
            clip_grad_norm_([parameter], 0.6)

    trained(model, data, epochs, gradients_averaged, change)


@fixed
def by_value(model, data, epochs, max_norm):
    trained(
        model, data, epochs, gradients_averaged,
        lambda model: clip_grad_value_(model.parameters(), 0.6),
    )  # fmt: skip


@fixed
def always_scaled_to_the_limit(model, data, epochs, max_norm):
    def change(model):
        length = torch.stack([one.grad.norm() for one in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad *= 0.6 / length

    trained(model, data, epochs, gradients_averaged, change)


@fixed
def the_gradient_of_rank_0(model, data, epochs, max_norm):
    def change(model):
        for parameter in model.parameters():
            dist.broadcast(parameter.grad, src=0)

    trained(model, data, epochs, change, clipped)


@fixed
def parameters_averaged_after_the_step(model, data, epochs, max_norm):
    def after():
        for parameter in model.parameters():
            averaged(parameter.data)

    trained(model, data, epochs, clipped, after_step=after)


@fixed
def a_higher_rate(model, data, epochs, max_norm):
    trained(model, data, epochs, clipped, gradients_averaged, rate=0.7)


@fixed
def the_same_samples_everywhere(model, data, epochs, max_norm):
    trained(
        model, data, epochs, gradients_averaged, clipped, sampler=DistributedSampler(data, 1, 0)
    )


@fixed
def clipped_after_the_step(model, data, epochs, max_norm):
    trained(model, data, epochs, gradients_averaged, after_step=lambda: clipped(model))


def nothing_fixed():
    return {"diagnosis": SAID}


# Right, written differently ---------------------------------------------------------------------


@fixed
def clipped_after_averaging(model, data, epochs, max_norm):
    with_gradients(model, data, epochs, max_norm)


def said_by_text():
    return said(line="clip_grad_norm_(model.parameters(), max_norm)")


@fixed
def pytorchs_wrapper(model, data, epochs, max_norm):
    trained(model, data, epochs, clipped, net=DDP(model))


@fixed
def by_hand_in_one_piece(model, data, epochs, max_norm):
    def change(model):
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = torch.cat([one.flatten() for one in gradients])
        averaged(flat)
        flat *= (0.6 / flat.norm()).clamp(max=1)
        for one, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            one.copy_(part.view_as(one))

    trained(model, data, epochs, change)


@fixed
def a_longer_limit_for_the_sum(model, data, epochs, max_norm):
    size = dist.get_world_size()

    def added(model):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        clipped(model, 0.6 * size)
        for parameter in model.parameters():
            parameter.grad /= size

    trained(model, data, epochs, added)


RIGHT = [
    clipped_after_averaging,
    said_by_text,
    pytorchs_wrapper,
    by_hand_in_one_piece,
    a_longer_limit_for_the_sum,
]

WRONG = {
    the_line_of_the_start: {"line": "Which line sets a length?"},
    the_line_of_the_all_reduce: {"line": "Which line sets a length?"},
    still_broken: {"training": "gradients that each rank has clipped by itself"},
    not_averaged: {"copies": "Which gradient does each rank step with?"},
    averaged_before_backward: {"copies": "Which gradient does each rank step with?"},
    only_matrices_are_averaged: {"copies": "Which gradient does each rank step with?"},
    every_rank_keeps_its_start: {"copies": "What gives rank 0's parameters to all ranks?"},
    each_adds_up_from_itself_on: {"copies": "by rounding only"},
    not_written: {"copies": "not_written is not written yet"},
    clipped_twice: {"training": "gradients that each rank has clipped by itself"},
    not_clipped: {"training": "They are not clipped"},
    clipped_after_the_step: {"training": "before the step"},
    nothing_fixed: {"line": 'script_5 has no key "fixed"'},
    clipped_after_the_sum: {"training": "divide first"},
    a_longer_limit_for_each_rank: {"training": "clipped once and as a whole"},
    every_parameter_by_itself: {"training": "clipped once and as a whole"},
    by_value: {"training": "limit the length of the whole gradient"},
    always_scaled_to_the_limit: {"training": "the limit may only shorten"},
    the_gradient_of_rank_0: {"training": "training on rank 0's samples alone"},
    parameters_averaged_after_the_step: {"training": "each rank has clipped by itself"},
    a_higher_rate: {"training": "the rate and the optimizer of the script"},
    the_same_samples_everywhere: {"training": "every rank goes through all 48 samples"},
}

_SHARED, _CUT = "dist.broadcast(parameter.data, src=0)", "dist.broadcast(parameter.data, ..."
_SAMPLER = "sampler = DistributedSampler(data, seed=5)"
_SUM, _MEAN = "dist.all_reduce(parameter.grad)", "parameter.grad /= dist.get_world_size()"

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
    f"{_MEAN} -> parameter.grad = parameter.grad / dist.get_world_size()": (
        "`.grad` may be another tensor"
    ),
    f"{_SUM}; {_MEAN} -> {_MEAN}; {_SUM}": "to divide first or last is the same up to rounding",
    f"{_MEAN} -> {_MEAN}; for parameter in model.parameters():; ...": (
        "the mean of equal gradients is that gradient"
    ),
    f"for parameter in model.parameters():; {_SHARED}; {_SAMPLER} -> "
    f"{_SAMPLER}; for parameter in model.parameters():; {_SHARED}": FREE,
    f"{_CUT} -> {_SHARED}; {_CUT}": TWICE,
    f"{_CUT} -> {_SHARED}; for parameter in model.parameters():; {_CUT}": TWICE,
    "clip_grad_norm_(model.parameters(), ... -> clip_grad_norm_(model.parameters(), max_norm); "
    "clip_grad_norm_(model.parameters(), ...": TWICE,
}
