"""Answers to 02/script_2: each rank shuffles with another seed.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, Subset

from dtlab.parallel.data import DataParallel
from dtlab.training.datasets import batches
from tests.wrong_answers.changed_scripts import (
    ANOTHER_ORDER,
    EPOCHS_BACKWARDS,
    OTHER_BATCHES,
    SET_TWICE,
    changes_of_losses,
    cleared_later,
    neighbours,
)

SAID = {"line": 5}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": with_a_sampler}


def trained(model, epochs, batches_of, *, net=None, rate=0.1):
    """SGD on the batches of each epoch."""
    net = net or DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(epochs):
        for images, labels in batches_of(epoch):
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()


def sampled(data, tell=True, **options):
    """The batches of a DistributedSampler, which may be told the epoch."""
    sampler = DistributedSampler(data, **options)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    def of(epoch):
        if tell:
            sampler.set_epoch(epoch)
        return loader

    return of


def shuffled(data, seed=2, size=16):
    """The batches of a loader that shuffles by itself."""
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, batch_size=size, shuffle=True, generator=order)
    return lambda epoch: loader


def with_a_sampler(model, data, epochs):
    trained(model, epochs, sampled(data))


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_global_seed():
    return said(line="torch.manual_seed(seed)")


def the_line_of_the_epoch():
    return said(line="sampler.set_epoch(epoch)")


def a_text_that_is_not_there():
    return said(line="sampler = DistributedSampler(data)")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs):
    trained(model, epochs, sampled(data, seed=2 + dist.get_rank()))


@fixed
def all_samples_on_every_rank(model, data, epochs):
    trained(model, epochs, shuffled(data))


@fixed
def another_order_on_each_rank(model, data, epochs):
    trained(model, epochs, shuffled(data, seed=dist.get_rank()))


@fixed
def smaller_batches(model, data, epochs):
    trained(model, epochs, shuffled(data, size=16 // dist.get_world_size()))


@fixed
def fewer_of_the_same_batches(model, data, epochs):
    own, size = shuffled(data), dist.get_world_size()

    def of(epoch):
        loader = own(epoch)
        return itertools.islice(loader, -(-len(loader) // size))

    trained(model, epochs, of)


@fixed
def a_share_drawn_by_each_rank_for_itself(model, data, epochs):
    draw, share = torch.Generator().manual_seed(dist.get_rank()), len(data) // 2

    def of(epoch):
        order = torch.randperm(len(data), generator=draw)[:share]
        return DataLoader(Subset(data, order.tolist()), batch_size=16)

    trained(model, epochs, of)


@fixed
def the_first_share_on_every_rank(model, data, epochs):
    share = Subset(data, range(len(data) // dist.get_world_size()))
    trained(model, epochs, shuffled(share))


@fixed
def fewer_epochs(model, data, epochs):
    trained(model, epochs // dist.get_world_size(), shuffled(data))


@fixed
def blocks_in_their_order(model, data, epochs):
    share = Subset(data, torch.arange(len(data)).tensor_split(size())[dist.get_rank()].tolist())
    loader = DataLoader(share, batch_size=16)
    trained(model, epochs, lambda epoch: loader)


@fixed
def blocks_shuffled_in_themselves(model, data, epochs):
    share = Subset(data, torch.arange(len(data)).tensor_split(size())[dist.get_rank()].tolist())
    trained(model, epochs, shuffled(share))


@fixed
def a_sampler_that_is_not_told_the_epoch(model, data, epochs):
    trained(model, epochs, sampled(data, tell=False))


@fixed
def a_sampler_for_two_ranks(model, data, epochs):
    trained(model, epochs, sampled(data, num_replicas=2, rank=dist.get_rank() % 2))


@fixed
def the_rank_in_the_epoch(model, data, epochs):
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    def of(epoch):
        sampler.set_epoch(epoch + dist.get_rank())
        return loader

    trained(model, epochs, of)


@fixed
def a_sampler_that_drops_the_rest(model, data, epochs):
    trained(model, epochs, sampled(data, drop_last=True))


@fixed
def only_rank_0_trains(model, data, epochs):
    if dist.get_rank() == 0:
        trained(model, epochs, shuffled(data), net=model)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


@fixed
def not_written(model, data, epochs):
    raise NotImplementedError()


@fixed
def the_wrapper_is_lost_on_the_way(model, data, epochs):
    DataParallel(model)
    trained(model, epochs, sampled(data), net=model)


@fixed
def a_rate_for_all_ranks(model, data, epochs):
    trained(model, epochs, sampled(data), rate=0.1 * dist.get_world_size())


def size():
    return dist.get_world_size()


# Right, written differently ---------------------------------------------------------------------


@fixed
def a_sampler_that_is_told_the_epoch(model, data, epochs):
    with_a_sampler(model, data, epochs)


def said_by_a_piece():
    return said(line="DistributedSampler(data, seed")


def said_with_the_seed():
    return said(line="seed = 2 + dist.get_rank()")


@fixed
def one_order_dealt_out(model, data, epochs):
    draw = torch.Generator().manual_seed(2)

    def of(epoch):
        order = torch.randperm(len(data), generator=draw)[dist.get_rank() :: size()]
        return DataLoader(Subset(data, order.tolist()), batch_size=16)

    trained(model, epochs, of)


@fixed
def dtlabs_batches(model, data, epochs):
    def of(epoch):
        sampler = DistributedSampler(data, seed=epoch)
        return batches(data, 8, sampler=sampler)

    trained(model, epochs, of)


RIGHT = [
    a_sampler_that_is_told_the_epoch,
    said_by_a_piece,
    said_with_the_seed,
    one_order_dealt_out,
    dtlabs_batches,
]

WRONG = {
    the_line_of_the_global_seed: {"line": "so that their shares fit together"},
    the_line_of_the_epoch: {"line": "so that their shares fit together"},
    a_text_that_is_not_there: {"line": "train_2 has no line"},
    still_broken: {"samples": "are in no rank's batches"},
    all_samples_on_every_rank: {"samples": "every rank goes through all 48 samples"},
    another_order_on_each_rank: {"samples": "every rank goes through all 48 samples"},
    smaller_batches: {"samples": "every rank goes through all 48 samples"},
    fewer_of_the_same_batches: {"samples": "are in no rank's batches"},
    a_share_drawn_by_each_rank_for_itself: {"samples": "are in no rank's batches"},
    the_first_share_on_every_rank: {"samples": "are in no rank's batches"},
    fewer_epochs: {"samples": ""},
    blocks_in_their_order: {"samples": "takes the samples in the order of epoch 0"},
    blocks_shuffled_in_themselves: {"samples": "only their order is new"},
    a_sampler_that_is_not_told_the_epoch: {"samples": "in the order of epoch 0"},
    a_sampler_for_two_ranks: {"samples": "more than once"},
    the_rank_in_the_epoch: {"samples": "are in no rank's batches"},
    a_sampler_that_drops_the_rest: {"samples": "have some repeated instead"},
    only_rank_0_trains: {"samples": ""},
    not_written: {"samples": "not_written is not written yet"},
    the_wrapper_is_lost_on_the_way: {"training": "Which gradient does each rank step with?"},
    a_rate_for_all_ranks: {"training": ""},
}

_SEED, _GLOBAL = "seed = 2 + dist.get_rank()", "torch.manual_seed(seed)"
_SAMPLER = "sampler = DistributedSampler(data, seed=2)"

EQUIVALENT = changes_of_losses(
    "sampler.set_epoch(epoch); total = 0.0 -> total = 0.0; sampler.set_epoch(epoch)",
    "for images, labels in loader:; optimizer.zero_grad(); ... -> losses.append(total / "
    "len(loader)); for images, labels in loader:; ...",
    "optimizer.step(); total += loss.item() -> total += loss.item(); optimizer.step()",
) | {
    **EPOCHS_BACKWARDS,
    **SET_TWICE,
    **cleared_later("replica"),
    **neighbours("sampler = DistributedSampler(data, seed={})", 2, ANOTHER_ORDER),
    **neighbours("loader = DataLoader(data, batch_size={}, sampler=sampler)", 16, OTHER_BATCHES),
    **dict.fromkeys(
        (
            f"{_SEED} -> seed = 3 + dist.get_rank()",
            f"{_SEED} -> seed = 1 + dist.get_rank()",
            f"{_SEED} -> seed = 2 - dist.get_rank()",
            f"{_SEED} -> seed = 2",
            f"{_SEED} -> seed = dist.get_rank()",
            f"{_SEED} -> seed = 2 + dist.get_world_size()",
            f"{_GLOBAL} -> nothing",
            f"{_GLOBAL} -> {_GLOBAL}; {_GLOBAL}",
            f"{_GLOBAL}; {_SAMPLER} -> {_SAMPLER}; {_GLOBAL}",
        ),
        "the sampler has its own seed, and nothing else draws random numbers",
    ),
}
