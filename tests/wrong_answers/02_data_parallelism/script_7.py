"""Answers to 02/script_7: gradients are never set to zero, so they pile up.

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
    CLEARED_TWICE,
    EPOCHS_BACKWARDS,
    OTHER_BATCHES,
    SET_TWICE,
    TWO_LINES,
    changes_of_losses,
    neighbours,
)

SAID = {"symptom": "piled up", "line": 14}


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": with_zeroes}


def nothing(optimizer):
    """In the place of what could be done there."""


def trained(
    model, data, epochs, *, first=nothing, middle=nothing, last=nothing, net=None, rate=0.5
):
    """SGD; `first` comes before forward, `middle` before the step, `last` after it."""
    net = net or DDP(model)
    sampler = DistributedSampler(data, seed=7)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            first(optimizer)
            F.cross_entropy(net(images), labels).backward()
            middle(optimizer)
            optimizer.step()
            last(optimizer)


def zero(optimizer):
    optimizer.zero_grad()


def with_zeroes(model, data, epochs):
    trained(model, data, epochs, first=zero)


# Wrong: the diagnosis ---------------------------------------------------------------------------


def says_sum():
    return said(symptom="sum")


def says_drift():
    return said(symptom="drift")


def the_line_of_the_rate():
    return said(line=6)


def between_backward_and_step():
    return said(line="loss.backward()")


# Wrong: the function ----------------------------------------------------------------------------


@mended
def still_broken(model, data, epochs):
    trained(model, data, epochs)


@mended
def between_the_two(model, data, epochs):
    trained(model, data, epochs, middle=zero)


@mended
def once_in_an_epoch(model, data, epochs):
    seen = []

    def first(optimizer):
        share = -(-len(data) // dist.get_world_size())
        if len(seen) % -(-share // 16) == 0:
            optimizer.zero_grad()
        seen.append(optimizer)

    trained(model, data, epochs, first=first)


@mended
def on_rank_0_only(model, data, epochs):
    trained(model, data, epochs, first=zero if dist.get_rank() == 0 else nothing)


@mended
def every_second_step(model, data, epochs):
    seen = []

    def first(optimizer):
        seen.append(optimizer)
        if len(seen) % 2:
            optimizer.zero_grad()

    trained(model, data, epochs, first=first)


@mended
def a_smaller_rate(model, data, epochs):
    trained(model, data, epochs, rate=0.05)


@mended
def clipped(model, data, epochs):
    def middle(optimizer):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    trained(model, data, epochs, middle=middle)


@mended
def divided_by_the_number_of_steps(model, data, epochs):
    seen = []

    def middle(optimizer):
        seen.append(optimizer)
        for parameter in model.parameters():
            parameter.grad /= len(seen)

    trained(model, data, epochs, middle=middle)


@mended
def another_optimizer(model, data, epochs):
    def first(optimizer):
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).zero_grad()

    trained(model, data, epochs, first=first)


@mended
def only_matrices(model, data, epochs):
    def first(optimizer):
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.grad = None

    trained(model, data, epochs, first=first)


@mended
def each_rank_by_itself(model, data, epochs):
    DDP(model)
    trained(model, data, epochs, first=zero, net=model)


@mended
def parameters_of_rank_0(model, data, epochs):
    DDP(model)

    def last(optimizer):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)

    trained(model, data, epochs, first=zero, last=last, net=model)


@mended
def without_a_sampler(model, data, epochs):
    net = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(epochs):
        for images, labels in DataLoader(data, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()


@mended
def not_written(model, data, epochs):
    raise NotImplementedError()


@mended
def each_adds_up_from_itself_on(model, data, epochs):
    DDP(model)
    rank, size = dist.get_rank(), dist.get_world_size()

    def middle(optimizer):
        for parameter in model.parameters():
            parts = [torch.empty_like(parameter) for _ in range(size)]
            dist.all_gather(parts, parameter.grad)
            others = (parts[(rank + k) % size] for k in range(1, size))
            parameter.grad = sum(others, parts[rank]) / size

    trained(model, data, epochs, first=zero, middle=middle, net=model)


# Right, written differently ---------------------------------------------------------------------


@mended
def before_the_forward_pass(model, data, epochs):
    with_zeroes(model, data, epochs)


def said_with_the_loop():
    return said(line=11, symptom="Piled-up".replace("-", " "))


def said_with_the_line_below_the_step():
    return said(line=15)


def said_with_the_forward_pass():
    return said(line="loss = F.cross_entropy(replica(images), labels)")


@mended
def after_the_step(model, data, epochs):
    trained(model, data, epochs, last=zero)


@mended
def with_zeroes_in_place(model, data, epochs):
    trained(model, data, epochs, last=lambda optimizer: optimizer.zero_grad(set_to_none=False))


@mended
def by_the_model(model, data, epochs):
    trained(model, data, epochs, first=lambda optimizer: model.zero_grad())


@mended
def by_hand(model, data, epochs):
    def last(optimizer):
        for parameter in model.parameters():
            parameter.grad = None

    trained(model, data, epochs, last=last)


RIGHT = [
    before_the_forward_pass,
    said_with_the_loop,
    said_with_the_forward_pass,
    said_with_the_line_below_the_step,
    after_the_step,
    with_zeroes_in_place,
    by_the_model,
    by_hand,
]

WRONG = {
    says_sum: {"symptom": "the sum of the ranks' gradients does not end with these parameters"},
    says_drift: {"symptom": "after the last step the copies were equal"},
    the_line_of_the_rate: {"line": "A line is missing"},
    between_backward_and_step: {"line": "between two backward passes"},
    still_broken: {"training": "Gradients of earlier steps are in every step"},
    between_the_two: {"training": "They are the initial parameters"},
    once_in_an_epoch: {"training": "still holds earlier batches"},
    on_rank_0_only: {"training": "those of this step alone"},
    every_second_step: {"training": "still holds earlier batches"},
    a_smaller_rate: {"training": "those of this step alone"},
    clipped: {"training": "those of this step alone"},
    divided_by_the_number_of_steps: {"training": "those of this step alone"},
    another_optimizer: {"training": "Gradients of earlier steps are in every step"},
    only_matrices: {"training": "those of this step alone"},
    each_rank_by_itself: {"training": "samples alone"},
    parameters_of_rank_0: {"training": "training on rank 0's samples alone"},
    without_a_sampler: {"training": "every rank goes through all 48 samples"},
    not_written: {"training": "mended is not written yet"},
    each_adds_up_from_itself_on: {"copies": "by rounding only"},
}

EQUIVALENT = changes_of_losses(
    "sampler.set_epoch(epoch); total = 0.0 -> total = 0.0; sampler.set_epoch(epoch)",
    "for images, labels in loader:; loss = F.cross_entropy(replica(images), labels); ... "
    "-> losses.append(total / len(loader)); for images, labels in loader:; ...",
    "optimizer.zero_grad(); total += loss.item() -> total += loss.item(); optimizer.zero_grad()",
) | {
    **EPOCHS_BACKWARDS,
    **SET_TWICE,
    **CLEARED_TWICE,
    **neighbours("sampler = DistributedSampler(data, seed={})", 7, ANOTHER_ORDER),
    **neighbours("loader = DataLoader(data, batch_size={}, sampler=sampler)", 16, OTHER_BATCHES),
    "diagnosis_7 = {'symptom': 'piled up', 'line': 14} -> "
    "diagnosis_7 = {'symptom': 'piled up', 'line': 15}": TWO_LINES,
}
