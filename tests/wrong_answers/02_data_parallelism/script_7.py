"""Answers to 02/script_7: DDP does not average a layer that was frozen when it was created.

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
    FREE,
    OTHER_BATCHES,
    SET_TWICE,
    TWICE,
    changes_of_losses,
    cleared_later,
    neighbours,
)

SAID = {"line": 7}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": wrapped_again}


def trained(model, data, epochs, net_of, *, before_step=None, after_step=None, rate=0.5, seed=7):
    """SGD; `net_of(epoch)` returns what is called in an epoch."""
    sampler = DistributedSampler(data, seed=seed)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        net = net_of(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            if before_step is not None:
                before_step(epoch)
            optimizer.step()
            if after_step is not None:
                after_step(epoch)


def freezing(model, wrap=DDP, again=True, until=1):
    """Layer 0 is frozen before epoch `until`; the wrapper is made anew then, or not."""
    first = model.layers[0].requires_grad_(False)
    nets = [wrap(model)]

    def net_of(epoch):
        if epoch == until:
            first.requires_grad_(True)
            if again:
                nets.append(wrap(model))
        return nets[-1]

    return net_of


def averaged(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def wrapped_again(model, data, epochs):
    trained(model, data, epochs, freezing(model))


# Wrong: the diagnosis ---------------------------------------------------------------------------


def the_line_of_the_optimizer():
    return said(line="optimizer = torch.optim.SGD(model.parameters(), lr=0.5)")


def the_line_of_the_forward_pass():
    return said(line="loss = F.cross_entropy(replica(images), labels)")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs):
    trained(model, data, epochs, freezing(model, again=False))


@fixed
def dtlabs_wrapper_before(model, data, epochs):
    trained(model, data, epochs, freezing(model, wrap=DataParallel, again=False))


@fixed
def another_optimizer_instead(model, data, epochs):
    net_of = freezing(model, again=False)
    for epoch in range(epochs):
        trained(model, data, 1, lambda _, epoch=epoch: net_of(epoch), seed=7 + epoch)


@fixed
def the_copies_made_equal_when_it_begins(model, data, epochs):
    net_of = freezing(model, again=False)

    def shared(epoch):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        return net_of(epoch)

    trained(model, data, epochs, shared)


@fixed
def only_its_bias_averaged_by_hand(model, data, epochs):
    def before(epoch):
        if epoch:
            averaged(model.layers[0].bias.grad)

    trained(model, data, epochs, freezing(model, again=False), before_step=before)


@fixed
def not_written(model, data, epochs):
    raise NotImplementedError()


@fixed
def each_adds_up_from_itself_on(model, data, epochs):
    rank, size = dist.get_rank(), dist.get_world_size()

    def before(epoch):
        for parameter in model.layers[0].parameters() if epoch else ():
            parts = [torch.empty_like(parameter) for _ in range(size)]
            dist.all_gather(parts, parameter.grad)
            others = (parts[(rank + k) % size] for k in range(1, size))
            parameter.grad = sum(others, parts[rank]) / size

    trained(model, data, epochs, freezing(model, again=False), before_step=before)


@fixed
def never_frozen(model, data, epochs):
    net = DDP(model)
    trained(model, data, epochs, lambda epoch: net)


@fixed
def frozen_for_ever(model, data, epochs):
    trained(model, data, epochs, freezing(model, until=epochs))


@fixed
def frozen_for_two_epochs(model, data, epochs):
    trained(model, data, epochs, freezing(model, until=2))


@fixed
def layer_0_of_rank_0(model, data, epochs):
    def after(epoch):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)

    trained(model, data, epochs, freezing(model, again=False), after_step=after)


@fixed
def layer_0_averaged_at_the_end(model, data, epochs):
    trained(model, data, epochs, freezing(model, again=False))
    for parameter in model.parameters():
        averaged(parameter.data)


@fixed
def summed_by_hand(model, data, epochs):
    def before(epoch):
        for parameter in model.layers[0].parameters() if epoch else ():
            dist.all_reduce(parameter.grad)

    trained(model, data, epochs, freezing(model, again=False), before_step=before)


@fixed
def another_rate(model, data, epochs):
    trained(model, data, epochs, freezing(model), rate=0.25)


@fixed
def another_order_on_each_rank(model, data, epochs):
    trained(model, data, epochs, freezing(model), seed=dist.get_rank())


# Right, written differently ---------------------------------------------------------------------


@fixed
def another_wrapper_from_epoch_1(model, data, epochs):
    wrapped_again(model, data, epochs)


def said_with_the_other_line():
    return said(line="first.requires_grad_(True)")


@fixed
def a_wrapper_for_each_epoch(model, data, epochs):
    first = model.layers[0]
    trained(
        model, data, epochs, lambda epoch: (first.requires_grad_(epoch > 0), DDP(model))[1]
    )  # fmt: skip


@fixed
def gradients_thrown_away_in_epoch_0(model, data, epochs):
    net = DDP(model)

    def before(epoch):
        for parameter in model.layers[0].parameters() if epoch == 0 else ():
            parameter.grad = None

    trained(model, data, epochs, lambda epoch: net, before_step=before)


@fixed
def wrapped_before_it_is_frozen(model, data, epochs):
    net = DDP(model, find_unused_parameters=True)

    def net_of(epoch):
        model.layers[0].requires_grad_(epoch > 0)
        return net

    trained(model, data, epochs, net_of)


@fixed
def the_rest_averaged_by_hand(model, data, epochs):
    def before(epoch):
        for parameter in model.layers[0].parameters() if epoch else ():
            averaged(parameter.grad)

    trained(model, data, epochs, freezing(model, again=False), before_step=before)


RIGHT = [
    another_wrapper_from_epoch_1,
    said_with_the_other_line,
    a_wrapper_for_each_epoch,
    gradients_thrown_away_in_epoch_0,
    wrapped_before_it_is_frozen,
    the_rest_averaged_by_hand,
]

WRONG = {
    the_line_of_the_optimizer: {"line": "When is that decided?"},
    the_line_of_the_forward_pass: {"line": "When is that decided?"},
    still_broken: {"copies": "Which gradient does each rank step with?"},
    dtlabs_wrapper_before: {"copies": "Which gradient does each rank step with?"},
    another_optimizer_instead: {"copies": "Which gradient does each rank step with?"},
    the_copies_made_equal_when_it_begins: {"copies": "Which gradient does each rank step with?"},
    only_its_bias_averaged_by_hand: {"copies": "Which gradient does each rank step with?"},
    not_written: {"copies": "not_written is not written yet"},
    each_adds_up_from_itself_on: {"copies": "by rounding only"},
    never_frozen: {"training": "changes in epoch 0"},
    frozen_for_ever: {"training": "does not change after epoch 0"},
    frozen_for_two_epochs: {"training": "trains layer 0 from epoch 1 on"},
    layer_0_of_rank_0: {"training": "trains layer 0 from epoch 1 on"},
    layer_0_averaged_at_the_end: {"training": "trains layer 0 from epoch 1 on"},
    summed_by_hand: {"training": "trains layer 0 from epoch 1 on"},
    another_rate: {"training": "and is the learning rate that of the script?"},
    another_order_on_each_rank: {"training": "are in no rank's batches"},
}

_SAMPLER = "sampler = DistributedSampler(data, seed=7)"

EQUIVALENT = changes_of_losses(
    "for images, labels in loader:; optimizer.zero_grad(); ... -> losses.append(total / "
    "len(loader)); for images, labels in loader:; ...",
    "optimizer.step(); total += loss.item() -> total += loss.item(); optimizer.step()",
) | {
    **SET_TWICE,
    **cleared_later("replica"),
    **neighbours("sampler = DistributedSampler(data, seed={})", 7, ANOTHER_ORDER),
    **neighbours("loader = DataLoader(data, batch_size={}, sampler=sampler)", 16, OTHER_BATCHES),
    f"first.requires_grad_(False); {_SAMPLER} -> {_SAMPLER}; first.requires_grad_(False)": FREE,
    "sampler.set_epoch(epoch); if epoch == 1:; ... -> "
    "if epoch == 1:; first.requires_grad_(True); ...": FREE,
    "if epoch == 1:; first.requires_grad_(True); ... -> total = 0.0; if epoch == 1:; ...": FREE,
    **{
        f"first.requires_grad_({on}) -> " + "; ".join(2 * [f"first.requires_grad_({on})"]): TWICE
        for on in (True, False)
    },
}
