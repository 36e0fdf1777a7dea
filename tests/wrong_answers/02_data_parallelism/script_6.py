"""Answers to 02/script_6: gradients are cleared too often, and the losses are not divided.

Fixing only one of the two makes steps too short or too long, as they were not before.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import contextlib
import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dtlab.parallel.data import DataParallel
from dtlab.training.accumulation import accumulate as accumulated
from dtlab.training.accumulation import per_step
from tests.wrong_answers.changed_scripts import (
    ANOTHER_ORDER,
    CLEARED_TWICE,
    EPOCHS_BACKWARDS,
    SET_TWICE,
    neighbours,
)

SAID = {"line": 13}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": with_the_forward_pass}


def epochs_of(data, epochs, batch_size=8):
    """A loader for each epoch."""
    sampler = DistributedSampler(data, seed=6)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield loader


def sgd(model, rate=0.1):
    return torch.optim.SGD(model.parameters(), lr=rate)


def trained(model, data, epochs, accumulate, *, quiet, share=None, net=None, zero=False):
    """A step every `accumulate` microbatches; `quiet(number)` ones are in no_sync as a whole."""
    net, optimizer = net or DDP(model), sgd(model)
    for loader in epochs_of(data, epochs):
        for number, (images, labels) in enumerate(loader, start=1):
            if zero:
                optimizer.zero_grad()
            with net.no_sync() if quiet(number) else contextlib.nullcontext():
                (F.cross_entropy(net(images), labels) / (share or accumulate)).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()


def with_the_forward_pass(model, data, epochs, accumulate):
    trained(model, data, epochs, accumulate, quiet=lambda number: number % accumulate)


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_condition():
    return said(line="if last:")


def the_line_of_the_context():
    return said(line="with nullcontext() if last else replica.no_sync():")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs, accumulate):
    with_share(model, data, epochs, accumulate, share=1, zero=True)


@fixed
def only_the_division_is_fixed(model, data, epochs, accumulate):
    with_share(model, data, epochs, accumulate, share=accumulate, zero=True)


@fixed
def only_the_clearing_is_fixed(model, data, epochs, accumulate):
    with_share(model, data, epochs, accumulate, share=1)


@fixed
def a_smaller_rate_for_the_sum(model, data, epochs, accumulate):
    net, optimizer = DDP(model), sgd(model, 0.1 / dist.get_world_size())
    for loader in epochs_of(data, epochs):
        for number, (images, labels) in enumerate(loader, start=1):
            with net.no_sync() if number % accumulate else contextlib.nullcontext():
                F.cross_entropy(net(images), labels).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()


@fixed
def the_forward_pass_outside(model, data, epochs, accumulate):
    net, optimizer = DDP(model), sgd(model)
    for loader in epochs_of(data, epochs):
        for number, (images, labels) in enumerate(loader, start=1):
            loss = F.cross_entropy(net(images), labels) / accumulate
            with net.no_sync() if number % accumulate else contextlib.nullcontext():
                loss.backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()


@fixed
def without_no_sync(model, data, epochs, accumulate):
    trained(model, data, epochs, accumulate, quiet=lambda number: False)


@fixed
def the_other_way_round(model, data, epochs, accumulate):
    trained(model, data, epochs, accumulate, quiet=lambda number: number % accumulate == 0)


@fixed
def always_in_no_sync(model, data, epochs, accumulate):
    trained(model, data, epochs, accumulate, quiet=lambda number: True)


@fixed
def half_the_bits(model, data, epochs, accumulate):
    net = DDP(model)
    net.register_comm_hook(None, fp16_compress_hook)
    trained(model, data, epochs, accumulate, quiet=lambda number: False, net=net)


@fixed
def parameters_besides(model, data, epochs, accumulate):
    net = DDP(model)

    def quiet(number):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        return number % accumulate

    trained(model, data, epochs, accumulate, quiet=quiet, net=net)


@fixed
def not_written(model, data, epochs, accumulate):
    raise NotImplementedError()


@fixed
def the_first_one_sends(model, data, epochs, accumulate):
    trained(model, data, epochs, accumulate, quiet=lambda number: number % accumulate != 1)


@fixed
def divided_by_the_ranks_too(model, data, epochs, accumulate):
    with_share(model, data, epochs, accumulate, share=accumulate * dist.get_world_size())


@fixed
def divided_by_the_ranks_alone(model, data, epochs, accumulate):
    with_share(model, data, epochs, accumulate, share=dist.get_world_size())


def with_share(model, data, epochs, accumulate, share, zero=False):
    trained(
        model, data, epochs, accumulate, quiet=lambda n: n % accumulate, share=share, zero=zero
    )


@fixed
def in_one_large_batch(model, data, epochs, accumulate):
    net, optimizer = DDP(model), sgd(model)
    for loader in epochs_of(data, epochs, 8 * accumulate):
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()


@fixed
def the_other_micro_batches_left_out(model, data, epochs, accumulate):
    net, optimizer = DDP(model), sgd(model)
    for loader in epochs_of(data, epochs):
        for number, (images, labels) in enumerate(loader, start=1):
            if number % accumulate == 0:
                optimizer.zero_grad()
                F.cross_entropy(net(images), labels).backward()
                optimizer.step()


@fixed
def own_steps_and_a_mean_of_parameters(model, data, epochs, accumulate):
    DDP(model)
    optimizer = sgd(model, 0.1)
    for loader in epochs_of(data, epochs):
        for number, (images, labels) in enumerate(loader, start=1):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if number % accumulate == 0:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.data)
                    parameter.data /= dist.get_world_size()


@fixed
def never_zeroed(model, data, epochs, accumulate):
    net, optimizer = DDP(model), sgd(model)
    for loader in epochs_of(data, epochs):
        for number, (images, labels) in enumerate(loader, start=1):
            with net.no_sync() if number % accumulate else contextlib.nullcontext():
                (F.cross_entropy(net(images), labels) / accumulate).backward()
            if number % accumulate == 0:
                optimizer.step()


# Right, written differently ---------------------------------------------------------------------


@fixed
def the_forward_pass_inside(model, data, epochs, accumulate):
    with_the_forward_pass(model, data, epochs, accumulate)


def said_with_the_other_line():
    return said(line="loss = F.cross_entropy(replica(images), labels)")


@fixed
def dtlabs_wrapper(model, data, epochs, accumulate):
    net = DataParallel(model)
    trained(model, data, epochs, accumulate, quiet=lambda n: n % accumulate, net=net)


@fixed
def dtlabs_accumulate(model, data, epochs, accumulate):
    net, optimizer = DDP(model), sgd(model)

    def loss_sum(net, batch):
        return F.cross_entropy(net(batch[0]), batch[1], reduction="sum")

    for loader in epochs_of(data, epochs):
        for micro_batches in per_step(loader, accumulate):
            accumulated(net, micro_batches, loss_sum)
            optimizer.step()
            optimizer.zero_grad()


@fixed
def averaged_by_hand(model, data, epochs, accumulate):
    parameters, optimizer = list(model.parameters()), sgd(model)
    for parameter in parameters:
        dist.broadcast(parameter.data, src=0)
    for loader in epochs_of(data, epochs):
        for micro_batches in per_step(loader, accumulate):
            for images, labels in micro_batches:
                F.cross_entropy(model(images), labels).backward()
            for parameter in parameters:
                dist.all_reduce(parameter.grad)
                parameter.grad /= accumulate * dist.get_world_size()
            optimizer.step()
            optimizer.zero_grad()


@fixed
def pytorchs_own_switch(model, data, epochs, accumulate):
    net, optimizer = DDP(model), sgd(model)
    for loader in epochs_of(data, epochs):
        for number, (images, labels) in enumerate(loader, start=1):
            net.require_backward_grad_sync = number % accumulate == 0
            (F.cross_entropy(net(images), labels) / accumulate).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()


RIGHT = [
    the_forward_pass_inside,
    said_with_the_other_line,
    dtlabs_wrapper,
    dtlabs_accumulate,
    averaged_by_hand,
    pytorchs_own_switch,
]

WRONG = {
    the_line_of_the_condition: {"line": "Which microbatches are in `.grad`"},
    the_line_of_the_context: {"line": "Which microbatches are in `.grad`"},
    still_broken: {"training": "step with the last microbatch of each step alone."},
    only_the_division_is_fixed: {"training": "alone, and it counts as one of several"},
    only_the_clearing_is_fixed: {"training": "the sum over the microbatches, not with the mean"},
    a_smaller_rate_for_the_sum: {"training": "is the rate the script's?"},
    the_forward_pass_outside: {"traffic": "is it inside `no_sync` by then?"},
    without_no_sync: {"traffic": "is it inside `no_sync` by then?"},
    the_other_way_round: {"traffic": "is it inside `no_sync` by then?"},
    always_in_no_sync: {"traffic": "Something must be sent in every step"},
    half_the_bits: {"traffic": "is it inside `no_sync` by then?"},
    parameters_besides: {"traffic": "is it inside `no_sync` by then?"},
    not_written: {"traffic": "not_written is not written yet"},
    the_first_one_sends: {"training": "Which gradient does each rank step with?"},
    divided_by_the_ranks_too: {"training": "They step with 0.5 times the mean"},
    divided_by_the_ranks_alone: {"training": "2 times the mean over all microbatches"},
    in_one_large_batch: {"training": "a forward pass takes 32 samples at once"},
    the_other_micro_batches_left_out: {"training": "are in no rank's batches"},
    own_steps_and_a_mean_of_parameters: {"training": "Is every step made with the mean of all"},
    never_zeroed: {"training": "Gradients of earlier steps are in every step"},
}

# The losses that are returned are to be looked at: nothing is graded of them.
EQUIVALENT = dict.fromkeys(
    [
        "sampler.set_epoch(epoch); total = 0.0 -> total = 0.0; sampler.set_epoch(epoch)",
        "total = 0.0 -> total = 1.0",
        "total = 0.0 -> total = -1.0",
        "total += loss.item(); if last:; ... -> if last:; optimizer.step(); ...",
        "for number, (images, labels) in enumerate(loader, start=1):; "
        "last = number % accumulate == 0; ..."
        " -> losses.append(total * accumulate / len(loader)); for number, (images, labels) in enumerate(loader, start=1):; ...",  # noqa: E501
        "total += loss.item() -> total -= loss.item()",
        "total += loss.item() -> nothing",
        "total += loss.item() -> total += loss.item(); total += loss.item()",
        "total += loss.item() -> total = total + loss.item()",
        "losses.append(total * accumulate / len(loader))"
        " -> losses.append(total ** accumulate / len(loader))",
        "losses.append(total * accumulate / len(loader))"
        " -> losses.append(total * accumulate * len(loader))",
        "losses.append(total * accumulate / len(loader)) -> losses.append(total * accumulate)",
        "losses.append(total * accumulate / len(loader)) -> losses.append(len(loader))",
        "losses.append(total * accumulate / len(loader)) -> losses.append(total / len(loader))",
        "losses.append(total * accumulate / len(loader))"
        " -> losses.append(accumulate / len(loader))",
        "losses.append(total * accumulate / len(loader)) -> nothing",
        "losses.append(total * accumulate ..."
        " -> losses.append(total * accumulate / len(loader)); losses.append(total * accumulate ...",  # noqa: E501
        "return losses -> nothing",
        "return losses -> return",
    ],
    "the losses are returned to be looked at",
) | {
    **EPOCHS_BACKWARDS,
    **SET_TWICE,
    **CLEARED_TWICE,
    **neighbours("sampler = DistributedSampler(data, seed={})", 6, ANOTHER_ORDER),
}
