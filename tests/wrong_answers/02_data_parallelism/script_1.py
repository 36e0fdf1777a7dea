"""Answers to 02/script_1: the averaged gradients are not written back to `.grad`.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import copy
import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dtlab.parallel.data import DataParallel, NaiveDataParallel
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

SAID = {"line": 22}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": in_the_wrapper}


def trained(model, data, epochs, gradient, *, sampler=None, after_step=None):
    """Adam with `gradient(images, labels)`, which leaves gradients in `.grad`."""
    sampler = sampler or DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-3)
    for epoch in range(epochs):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            gradient(images, labels)
            optimizer.step()
            if after_step is not None:
                after_step()


def backward(net):
    """Forward and backward of a model or of a wrapper."""
    return lambda images, labels: F.cross_entropy(net(images), labels).backward()


def by_hand(model, change):
    """Backward of the model alone, and then `change(gradient)` for every parameter."""

    def gradient(images, labels):
        F.cross_entropy(model(images), labels).backward()
        for parameter in model.parameters():
            change(parameter.grad)

    return gradient


def averaged(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def in_the_wrapper(model, data, epochs):
    trained(model, data, epochs, backward(DDP(model)))


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_all_reduce():
    return said(line="dist.all_reduce(flat)")


def the_line_of_the_step():
    return said(line="optimizer.step()")


def a_line_that_is_not_there():
    return said(line=40)


def a_text_of_several_lines():
    return said(line="part")


def a_function_alone():
    return in_the_wrapper


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs):
    DDP(model)
    trained(model, data, epochs, backward(model))


@fixed
def the_mean_bound_to_another_name(model, data, epochs):
    DDP(model)

    def gradient(images, labels):
        backward(model)(images, labels)
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        for one in gradients:
            averaged(one)

    trained(model, data, epochs, gradient)


@fixed
def only_the_first_parameter_is_written_back(model, data, epochs):
    DDP(model)

    def gradient(images, labels):
        backward(model)(images, labels)
        averaged(next(model.parameters()).grad)

    trained(model, data, epochs, gradient)


@fixed
def written_back_in_the_other_order(model, data, epochs):
    DDP(model)

    def gradient(images, labels):
        backward(model)(images, labels)
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = torch.cat([one.flatten() for one in reversed(gradients)])
        averaged(flat)
        for one, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            one.copy_(part.view_as(one))

    trained(model, data, epochs, gradient)


@fixed
def inside_no_sync(model, data, epochs):
    replica = DDP(model)

    def gradient(images, labels):
        with replica.no_sync():
            backward(replica)(images, labels)

    trained(model, data, epochs, gradient)


@fixed
def gradients_averaged_after_the_step(model, data, epochs):
    DDP(model)

    def after():
        for parameter in model.parameters():
            averaged(parameter.grad)

    trained(model, data, epochs, backward(model), after_step=after)


@fixed
def another_copy_is_trained(model, data, epochs):
    other = copy.deepcopy(model)
    trained(other, data, epochs, backward(DDP(other)))


@fixed
def each_adds_up_from_itself_on(model, data, epochs):
    DDP(model)
    rank, size = dist.get_rank(), dist.get_world_size()

    def change(gradient):
        parts = [torch.empty_like(gradient) for _ in range(size)]
        dist.all_gather(parts, gradient)
        mean = sum((parts[(rank + k) % size] for k in range(1, size)), parts[rank]) / size
        gradient.copy_(mean)

    trained(model, data, epochs, by_hand(model, change))


@fixed
def not_shared_in_the_beginning(model, data, epochs):
    trained(model, data, epochs, by_hand(model, averaged))


@fixed
def not_written(model, data, epochs):
    raise NotImplementedError()


@fixed
def parameters_of_rank_0_after_each_step(model, data, epochs):
    DDP(model)

    def after():
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)

    trained(model, data, epochs, backward(model), after_step=after)


@fixed
def parameters_averaged_after_each_step(model, data, epochs):
    DDP(model)

    def after():
        for parameter in model.parameters():
            averaged(parameter.data)

    trained(model, data, epochs, backward(model), after_step=after)


@fixed
def parameters_averaged_in_the_end(model, data, epochs):
    DDP(model)
    trained(model, data, epochs, backward(model))
    for parameter in model.parameters():
        averaged(parameter.data)


@fixed
def summed_by_hand(model, data, epochs):
    DDP(model)
    trained(model, data, epochs, by_hand(model, dist.all_reduce))


@fixed
def gradients_of_rank_0(model, data, epochs):
    DDP(model)
    trained(model, data, epochs, by_hand(model, lambda one: dist.broadcast(one, src=0)))


@fixed
def all_samples_on_every_rank(model, data, epochs):
    DDP(model)
    order = torch.Generator().manual_seed(1)
    sampler = torch.utils.data.RandomSampler(data, generator=order)
    trained(model, data, epochs, backward(model), sampler=sampler)


@fixed
def only_rank_0_trains(model, data, epochs):
    if dist.get_rank() == 0:
        trained(model, data, epochs, backward(model), sampler=DistributedSampler(data, 1, 0))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


@fixed
def another_rate(model, data, epochs):
    replica = DDP(model)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, eps=1e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            backward(replica)(images, labels)
            optimizer.step()


# Right, written differently ---------------------------------------------------------------------


@fixed
def the_wrapper_is_called(model, data, epochs):
    in_the_wrapper(model, data, epochs)


def said_by_text():
    return said(line=" gradients=[part.view_as(p) for part, p in zip(  # here")


def said_with_the_word_line():
    return said(line="line 22")


@fixed
def dtlabs_wrapper(model, data, epochs):
    trained(model, data, epochs, backward(DataParallel(model, bucket_cap_mb=0.001)))


@fixed
def one_all_reduce_for_each_parameter(model, data, epochs):
    trained(model, data, epochs, backward(NaiveDataParallel(model)))


@fixed
def averaged_by_hand(model, data, epochs):
    DDP(model)
    trained(model, data, epochs, by_hand(model, averaged))


RIGHT = [
    the_wrapper_is_called,
    said_by_text,
    said_with_the_word_line,
    dtlabs_wrapper,
    one_all_reduce_for_each_parameter,
    averaged_by_hand,
]

WRONG = {
    the_line_of_the_all_reduce: {"line": "does what it should here. Follow one gradient"},
    the_line_of_the_step: {"line": "`optimizer.step()` (line"},
    a_line_that_is_not_there: {"line": "train_1 has no line 40"},
    a_text_of_several_lines: {"line": "lines have that text"},
    a_function_alone: {"line": "script_1 must be a dict"},
    still_broken: {"copies": "Which gradient does each rank step with?"},
    the_mean_bound_to_another_name: {"copies": "Which gradient does each rank step with?"},
    only_the_first_parameter_is_written_back: {"copies": "Which gradient does each rank step"},
    written_back_in_the_other_order: {"training": "Is every step made with the mean of all"},
    inside_no_sync: {"copies": "Which gradient does each rank step with?"},
    gradients_averaged_after_the_step: {"copies": "Which gradient does each rank step with?"},
    another_copy_is_trained: {"copies": "What gives rank 0's parameters to all ranks?"},
    each_adds_up_from_itself_on: {"copies": "by rounding only"},
    not_shared_in_the_beginning: {"copies": "in their first forward pass"},
    not_written: {"copies": "not_written is not written yet"},
    parameters_of_rank_0_after_each_step: {"training": "training on rank 0's samples alone"},
    parameters_averaged_after_each_step: {"training": "averaged after each rank has made its own"},
    parameters_averaged_in_the_end: {"training": "Is every step made with the mean of all"},
    summed_by_hand: {"training": "They step with the sum of the ranks' gradients"},
    gradients_of_rank_0: {"training": "training on rank 0's samples alone"},
    all_samples_on_every_rank: {"training": "every rank goes through all 48 samples"},
    only_rank_0_trains: {"training": "rank 1 makes 0 forward passes"},
    another_rate: {"training": "the rate and the optimizer of the script"},
}

_SIZES = "sizes = [parameter.numel() for parameter in parameters]"
_SHARED, _CUT = "dist.broadcast(parameter.data, src=0)", "dist.broadcast(parameter.data, ..."
_SAMPLER = "sampler = DistributedSampler(data, seed=1)"
_BACK = "parameter.grad.copy_(part.view_as(parameter))"

EQUIVALENT = changes_of_losses(
    "sampler.set_epoch(epoch); total = 0.0 -> total = 0.0; sampler.set_epoch(epoch)",
    "for images, labels in loader:; optimizer.zero_grad(); ... -> losses.append(total / "
    "len(loader)); for images, labels in loader:; ...",
    "optimizer.step(); total += loss.item() -> total += loss.item(); optimizer.step()",
) | {
    **EPOCHS_BACKWARDS,
    **SET_TWICE,
    **cleared_later("model"),
    **neighbours("sampler = DistributedSampler(data, seed={})", 1, ANOTHER_ORDER),
    **neighbours("loader = DataLoader(data, batch_size={}, sampler=sampler)", 16, OTHER_BATCHES),
    "for parameter in parameters: -> for parameter in reversed(parameters):": FREE,
    f"{_SIZES}; for parameter in parameters:; {_SHARED} -> "
    f"for parameter in parameters:; {_SHARED}; {_SIZES}": FREE,
    f"for parameter in parameters:; {_SHARED}; {_SAMPLER} -> "
    f"{_SAMPLER}; for parameter in parameters:; {_SHARED}": FREE,
    f"{_CUT} -> {_SHARED}; {_CUT}": TWICE,
    f"{_CUT} -> {_SHARED}; for parameter in parameters:; {_CUT}": TWICE,
    f"{_BACK} -> parameter.grad = part.view_as(parameter)": "`.grad` may be another tensor",
    f"{_BACK} -> {_BACK}; for part, parameter in zip(parts, parameters, strict=True):; {_BACK}": (
        TWICE
    ),
}
