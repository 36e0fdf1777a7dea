"""Answers to 02/script_4: a rank with a loss of NaN leaves out a step that the others make.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dtlab.parallel.data import DataParallel
from tests.wrong_answers.changed_scripts import (
    ANOTHER_ORDER,
    EPOCHS_BACKWARDS,
    OTHER_BATCHES,
    SET_TWICE,
    TWICE,
    TWO_LINES,
    changes_of_losses,
    cleared_later,
    neighbours,
)

SAID = {"line": 14}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": decided_together}


def trained(model, data, epochs, step, *, net=None, seed=4, rate=0.1, **share):
    """SGD by `step(optimizer, loss)`, which runs backward and steps, or does not."""
    sampler = DistributedSampler(data, seed=seed, **share)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    net = net or DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            step(optimizer, F.cross_entropy(net(images), labels))


def all_finite(number):
    """Whether the number is finite on all ranks."""
    finite = number.detach().isfinite().float()
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    return bool(finite)


def if_all_are_finite(optimizer, loss):
    if all_finite(loss):
        loss.backward()
        optimizer.step()


def decided_together(model, data, epochs):
    trained(model, data, epochs, if_all_are_finite)


# Wrong: the diagnosis ---------------------------------------------------------------------------


def the_line_in_which_it_waits():
    return said(line="loss.backward()")


def the_line_of_the_wrapper():
    return said(line="replica = DataParallel(model)")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs):
    def step(optimizer, loss):
        if loss.isfinite():
            loss.backward()
            optimizer.step()

    trained(model, data, epochs, step)


@fixed
def nothing_left_out(model, data, epochs):
    def step(optimizer, loss):
        loss.backward()
        optimizer.step()

    trained(model, data, epochs, step)


@fixed
def only_the_step_left_out(model, data, epochs):
    def step(optimizer, loss):
        loss.backward()
        if loss.isfinite():
            optimizer.step()

    trained(model, data, epochs, step)


@fixed
def a_loss_of_zero_for_it(model, data, epochs):
    def step(optimizer, loss):
        if not loss.isfinite():
            loss = sum(parameter.sum() for parameter in model.parameters()) * 0
        loss.backward()
        optimizer.step()

    trained(model, data, epochs, step)


@fixed
def joined(model, data, epochs):
    net = DataParallel(model)

    def step(optimizer, loss):
        if loss.isfinite():
            loss.backward()
            optimizer.step()

    with net.join():
        trained(model, data, epochs, step, net=net)


@fixed
def a_barrier_instead(model, data, epochs):
    def step(optimizer, loss):
        if loss.isfinite():
            loss.backward()
            optimizer.step()
        dist.barrier()

    trained(model, data, epochs, step)


@fixed
def rank_0_decides(model, data, epochs):
    def step(optimizer, loss):
        finite = loss.detach().isfinite().float()
        dist.broadcast(finite, src=0)
        if finite:
            loss.backward()
            optimizer.step()

    trained(model, data, epochs, step)


@fixed
def left_out_if_all_are_nan(model, data, epochs):
    def step(optimizer, loss):
        finite = loss.detach().isfinite().float()
        dist.all_reduce(finite, op=dist.ReduceOp.MAX)
        if finite:
            loss.backward()
            optimizer.step()

    trained(model, data, epochs, step)


@fixed
def every_second_step_left_out(model, data, epochs):
    steps = []

    def step(optimizer, loss):
        steps.append(loss)
        if all_finite(loss) and len(steps) % 2:
            loss.backward()
            optimizer.step()

    trained(model, data, epochs, step)


@fixed
def the_rest_of_the_epoch_left_out(model, data, epochs):
    sampler = DistributedSampler(data, seed=4)
    loader, net = DataLoader(data, batch_size=8, sampler=sampler), DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            if not all_finite(loss):
                break
            loss.backward()
            optimizer.step()


@fixed
def the_samples_not_shared_out(model, data, epochs):
    trained(model, data, epochs, if_all_are_finite, num_replicas=1, rank=0)


@fixed
def not_written(model, data, epochs):
    raise NotImplementedError()


@fixed
def each_rank_by_itself(model, data, epochs):
    DataParallel(model)
    trained(model, data, epochs, if_all_are_finite, net=model)


@fixed
def parameters_of_rank_0_after_each_step(model, data, epochs):
    DataParallel(model)

    def step(optimizer, loss):
        if_all_are_finite(optimizer, loss)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)

    trained(model, data, epochs, step, net=model)


@fixed
def another_rate(model, data, epochs):
    trained(model, data, epochs, if_all_are_finite, rate=0.2)


@fixed
def a_loss_counted_twice(model, data, epochs):
    def step(optimizer, loss):
        if all_finite(loss):
            (loss * 2).backward()
            optimizer.step()

    trained(model, data, epochs, step)


# Right, written differently ---------------------------------------------------------------------


@fixed
def decided_by_all_ranks(model, data, epochs):
    decided_together(model, data, epochs)


def said_with_the_other_line():
    return said(line="continue")


@fixed
def by_the_mean_of_the_losses(model, data, epochs):
    def step(optimizer, loss):
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if mean.isfinite():
            loss.backward()
            optimizer.step()

    trained(model, data, epochs, step)


@fixed
def backward_first_then_by_the_gradient(model, data, epochs):
    def step(optimizer, loss):
        loss.backward()
        if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
            optimizer.step()

    trained(model, data, epochs, step)


@fixed
def pytorchs_wrapper(model, data, epochs):
    def step(optimizer, loss):
        loss.backward()
        if all_finite(loss):
            optimizer.step()

    trained(model, data, epochs, step, net=DDP(model))


RIGHT = [
    decided_by_all_ranks,
    said_with_the_other_line,
    by_the_mean_of_the_losses,
    backward_first_then_by_the_gradient,
    pytorchs_wrapper,
]

WRONG = {
    the_line_in_which_it_waits: {"line": "Which line decides how many a rank calls?"},
    the_line_of_the_wrapper: {"line": "Which line decides how many a rank calls?"},
    still_broken: {"steps": "the ranks did not finish"},
    nothing_left_out: {"steps": "NaN is in the parameters"},
    only_the_step_left_out: {"steps": "NaN is in the parameters"},
    a_loss_of_zero_for_it: {"steps": "in which a loss is NaN"},
    joined: {"steps": ""},
    a_barrier_instead: {"steps": ""},
    rank_0_decides: {"steps": ""},
    left_out_if_all_are_nan: {"steps": "NaN is in the parameters"},
    every_second_step_left_out: {"steps": "in which all losses are finite"},
    the_rest_of_the_epoch_left_out: {"steps": "forward passes in 3 epochs"},
    the_samples_not_shared_out: {"steps": "every rank goes through all"},
    not_written: {"steps": "not_written is not written yet"},
    each_rank_by_itself: {"training": "Which gradient does each rank step with?"},
    parameters_of_rank_0_after_each_step: {"training": "one and the same step"},
    another_rate: {"training": "one and the same step"},
    a_loss_counted_twice: {"training": "one and the same step"},
}

_DECIDE = "dist.all_reduce(finite, op=dist.ReduceOp.MIN)"

EQUIVALENT = changes_of_losses(
    "sampler.set_epoch(epoch); total = 0.0 -> total = 0.0; sampler.set_epoch(epoch)",
    "for images, labels in loader:; optimizer.zero_grad(); ... -> losses.append(total / "
    "len(loader)); for images, labels in loader:; ...",
    "optimizer.step(); total += loss.item() -> total += loss.item(); optimizer.step()",
) | {
    **EPOCHS_BACKWARDS,
    **SET_TWICE,
    **cleared_later("replica"),
    **neighbours("sampler = DistributedSampler(data, seed={})", 4, ANOTHER_ORDER),
    **neighbours("loader = DataLoader(data, batch_size={}, sampler=sampler)", 8, OTHER_BATCHES),
    "diagnosis_4 = {'line': 14} -> diagnosis_4 = {'line': 15}": TWO_LINES,
    f"{_DECIDE} -> {_DECIDE}; {_DECIDE}": TWICE,
    "if not finite:; continue; loss.backward() -> loss.backward(); if not finite:; continue": (
        "all ranks run backward, and leave out the step"
    ),
}
