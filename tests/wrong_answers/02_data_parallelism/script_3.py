"""Answers to 02/script_3: the batches of the first epoch are kept in a list.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset

from tests.wrong_answers.changed_scripts import (
    ANOTHER_ORDER,
    EPOCHS_BACKWARDS,
    OTHER_BATCHES,
    SET_TWICE,
    changes_of_losses,
    cleared_later,
    neighbours,
)

SAID = {"line": 4}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": with_epochs}


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def trained(model, epochs, batches_of, *, net=None):
    """Momentum on the batches of each epoch."""
    net, optimizer = net or DDP(model), momentum(model)
    for epoch in range(epochs):
        for images, labels in batches_of(epoch):
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()


def told(data, tell, **options):
    """The batches of a DistributedSampler; `tell(sampler, epoch)` comes before each epoch."""
    sampler = DistributedSampler(data, **{"seed": 3, **options})
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    def of(epoch):
        tell(sampler, epoch)
        return loader

    return of


def with_epochs(model, data, epochs):
    trained(model, epochs, told(data, DistributedSampler.set_epoch))


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_sampler():
    return said(line="sampler = DistributedSampler(data, shuffle=True, seed=3)")


def the_line_of_the_epoch():
    return said(line="sampler.set_epoch(epoch)")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs):
    kept = list(told(data, DistributedSampler.set_epoch)(0))
    trained(model, epochs, lambda epoch: kept)


@fixed
def the_list_shuffled_by_each_epoch(model, data, epochs):
    kept = list(told(data, DistributedSampler.set_epoch)(0))

    def of(epoch):
        order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(epoch))
        return [kept[place] for place in order]

    trained(model, epochs, of)


@fixed
def a_list_for_every_second_epoch(model, data, epochs):
    own = told(data, DistributedSampler.set_epoch)
    kept = [list(own(0)), list(own(1))]
    trained(model, epochs, lambda epoch: kept[epoch % 2])


@fixed
def no_epoch_is_told(model, data, epochs):
    trained(model, epochs, told(data, lambda sampler, epoch: None))


@fixed
def always_epoch_0(model, data, epochs):
    trained(model, epochs, told(data, lambda sampler, epoch: sampler.set_epoch(0)))


@fixed
def the_rank_for_the_epoch(model, data, epochs):
    trained(model, epochs, told(data, lambda sampler, epoch: sampler.set_epoch(dist.get_rank())))


@fixed
def another_epoch_on_each_rank(model, data, epochs):
    def tell(sampler, epoch):
        sampler.set_epoch(epoch * dist.get_world_size() + dist.get_rank())

    trained(model, epochs, told(data, tell))


@fixed
def told_when_the_epoch_is_over(model, data, epochs):
    trained(model, epochs, told(data, lambda sampler, epoch: sampler.set_epoch(max(0, epoch - 1))))


@fixed
def told_among_the_batches(model, data, epochs):
    sampler = DistributedSampler(data, seed=3)
    loader, net, optimizer = DataLoader(data, 16, sampler=sampler), DDP(model), momentum(model)
    for epoch in range(epochs):
        for images, labels in loader:
            sampler.set_epoch(epoch)
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()


@fixed
def every_second_epoch(model, data, epochs):
    trained(model, epochs, told(data, lambda sampler, epoch: sampler.set_epoch(epoch // 2)))


@fixed
def two_orders_by_turns(model, data, epochs):
    trained(model, epochs, told(data, lambda sampler, epoch: sampler.set_epoch(epoch % 2)))


@fixed
def three_orders_by_turns(model, data, epochs):
    trained(model, epochs, told(data, lambda sampler, epoch: sampler.set_epoch(epoch % 3)))


@fixed
def the_rest_left_out(model, data, epochs):
    trained(model, epochs, told(data, DistributedSampler.set_epoch, drop_last=True))


@fixed
def torch_is_seeded_anew(model, data, epochs):
    trained(model, epochs, told(data, lambda sampler, epoch: torch.manual_seed(epoch)))


@fixed
def the_same_sampler_made_anew(model, data, epochs):
    trained(model, epochs, lambda epoch: told(data, lambda *_: None)(epoch))


@fixed
def a_share_shuffled_in_itself(model, data, epochs):
    share = Subset(data, list(DistributedSampler(data, seed=3)))
    loader = DataLoader(share, 16, shuffle=True)
    trained(model, epochs, lambda epoch: loader)


@fixed
def shuffled_without_a_sampler(model, data, epochs):
    loader = DataLoader(data, 16, shuffle=True, generator=torch.Generator().manual_seed(3))
    trained(model, epochs, lambda epoch: loader)


@fixed
def batches_the_other_way_round(model, data, epochs):
    own = told(data, lambda *_: None)
    trained(model, epochs, lambda epoch: list(own(epoch))[:: 1 - 2 * (epoch % 2)])


@fixed
def not_written(model, data, epochs):
    raise NotImplementedError()


@fixed
def everything_made_anew(model, data, epochs):
    for epoch in range(epochs):
        trained(model, 1, told(data, lambda *_: None, seed=epoch))


@fixed
def the_wrapper_is_lost_on_the_way(model, data, epochs):
    DDP(model)
    trained(model, epochs, told(data, DistributedSampler.set_epoch), net=model)


# Right, written differently ---------------------------------------------------------------------


@fixed
def told_before_the_batches(model, data, epochs):
    with_epochs(model, data, epochs)


def said_by_a_piece():
    return said(line="list(DataLoader(data, batch_size=16")


@fixed
def told_at_the_end(model, data, epochs):
    """The epoch that comes next."""
    sampler = DistributedSampler(data, seed=3)
    loader, net, optimizer = DataLoader(data, 16, sampler=sampler), DDP(model), momentum(model)
    for epoch in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
        sampler.set_epoch(epoch + 1)


@fixed
def told_through_the_loader(model, data, epochs):
    loader = DataLoader(data, 16, sampler=DistributedSampler(data))

    def of(epoch):
        loader.sampler.set_epoch(100 + epoch)
        return loader

    trained(model, epochs, of)


@fixed
def another_sampler_for_each_epoch(model, data, epochs):
    trained(model, epochs, lambda epoch: told(data, lambda *_: None, seed=epoch)(epoch))


@fixed
def a_list_for_each_epoch(model, data, epochs):
    own = told(data, DistributedSampler.set_epoch)
    kept = [list(own(epoch)) for epoch in range(epochs)]
    trained(model, epochs, lambda epoch: kept[epoch])


RIGHT = [
    told_before_the_batches,
    said_by_a_piece,
    told_at_the_end,
    a_list_for_each_epoch,
    told_through_the_loader,
    another_sampler_for_each_epoch,
]

WRONG = {
    the_line_of_the_sampler: {"line": "When does the loader ask the sampler"},
    the_line_of_the_epoch: {"line": "When does the loader ask the sampler"},
    still_broken: {"order": "epoch 1 takes the samples in the order of epoch 0"},
    the_list_shuffled_by_each_epoch: {"order": "only their order is new"},
    a_list_for_every_second_epoch: {"order": "epoch 2 takes the samples in the order of epoch 0"},
    no_epoch_is_told: {"order": "epoch 1 takes the samples in the order of epoch 0"},
    always_epoch_0: {"order": "epoch 1 takes the samples in the order of epoch 0"},
    the_rank_for_the_epoch: {"order": "are in no rank's batches"},
    another_epoch_on_each_rank: {"order": "are in no rank's batches"},
    told_when_the_epoch_is_over: {"order": "before its batches are drawn"},
    told_among_the_batches: {"order": "before its batches are drawn"},
    every_second_epoch: {"order": "epoch 1 takes the samples in the order of epoch 0"},
    two_orders_by_turns: {"order": "epoch 2 takes the samples in the order of epoch 0"},
    three_orders_by_turns: {"order": "epoch 3 takes the samples in the order of epoch 0"},
    the_rest_left_out: {"order": "have some repeated instead"},
    torch_is_seeded_anew: {"order": "epoch 1 takes the samples in the order of epoch 0"},
    the_same_sampler_made_anew: {"order": "epoch 1 takes the samples in the order of epoch 0"},
    a_share_shuffled_in_itself: {"order": "only their order is new"},
    shuffled_without_a_sampler: {"order": "every rank goes through all 48 samples"},
    batches_the_other_way_round: {"order": "only their order is new"},
    not_written: {"order": "not_written is not written yet"},
    everything_made_anew: {"training": "the rate and the optimizer of the script"},
    the_wrapper_is_lost_on_the_way: {"training": "Which gradient does each rank step with?"},
}

EQUIVALENT = changes_of_losses(
    "sampler.set_epoch(epoch); total = 0.0 -> total = 0.0; sampler.set_epoch(epoch)",
    "for images, labels in loader:; optimizer.zero_grad(); ... -> losses.append(total / "
    "len(loader)); for images, labels in loader:; ...",
    "optimizer.step(); total += loss.item() -> total += loss.item(); optimizer.step()",
) | {
    **EPOCHS_BACKWARDS,
    **SET_TWICE,
    **cleared_later("replica"),
    **neighbours("sampler = DistributedSampler(data, shuffle=True, seed={})", 3, ANOTHER_ORDER),
    **neighbours("loader = DataLoader(data, batch_size={}, sampler=sampler)", 16, OTHER_BATCHES),
}
