"""Answers to 02/script_8: samples are shared out by the rank in the node.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools
import os

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
    changes_of_losses,
    cleared_later,
    neighbours,
)

SAID = {"line": 6}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": on_its_own_card}


def of_launcher(name):
    return int(os.environ[name])


def trained(model, data, epochs, device, *, net=None, **share):
    """SGD on a device."""
    sampler = DistributedSampler(data, seed=8, **share)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    net = net or DDP(model.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(images.to(device)), labels.to(device)).backward()
            optimizer.step()


def on_its_own_card(model, data, epochs, card):
    trained(model, data, epochs, card(of_launcher("LOCAL_RANK")))


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_card():
    return said(line="device = card(rank)")


def the_line_of_the_wrapper():
    return said(line="replica = DDP(model)")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs, card):
    rank, size = of_launcher("LOCAL_RANK"), of_launcher("LOCAL_WORLD_SIZE")
    trained(model, data, epochs, card(rank), num_replicas=size, rank=rank)


@fixed
def the_global_rank_for_cards_too(model, data, epochs, card):
    trained(model, data, epochs, card(dist.get_rank()))


@fixed
def samples_by_the_number_of_the_node(model, data, epochs, card):
    nodes = dist.get_world_size() // of_launcher("LOCAL_WORLD_SIZE")
    share = {"num_replicas": nodes, "rank": of_launcher("GROUP_RANK")}
    trained(model, data, epochs, card(of_launcher("LOCAL_RANK")), **share)


@fixed
def a_rank_made_of_both_numbers(model, data, epochs, card):
    local, per_node = of_launcher("LOCAL_RANK"), of_launcher("LOCAL_WORLD_SIZE")
    rank = of_launcher("GROUP_RANK") * local + local
    share = {"num_replicas": dist.get_world_size(), "rank": rank % (2 * per_node)}
    trained(model, data, epochs, card(local), **share)


@fixed
def always_card_0(model, data, epochs, card):
    trained(model, data, epochs, card(0))


@fixed
def card_0_where_there_is_no_other(model, data, epochs, card):
    try:
        device = card(dist.get_rank())
    except RuntimeError:
        device = card(0)
    trained(model, data, epochs, device)


@fixed
def the_rest_of_a_division(model, data, epochs, card):
    trained(model, data, epochs, card(dist.get_rank() % of_launcher("LOCAL_WORLD_SIZE")))


@fixed
def the_rest_by_two(model, data, epochs, card):
    trained(model, data, epochs, card(dist.get_rank() % 2))


@fixed
def the_number_of_the_node(model, data, epochs, card):
    trained(model, data, epochs, card(of_launcher("GROUP_RANK")))


@fixed
def half_the_ranks_to_each_node(model, data, epochs, card):
    trained(model, data, epochs, card(dist.get_rank() // 2))


@fixed
def no_card_at_all(model, data, epochs, card):
    trained(model, data, epochs, torch.device("cpu"))


@fixed
def a_number_as_text(model, data, epochs, card):
    trained(model, data, epochs, card(os.environ["LOCAL_RANK"]))


@fixed
def not_written(model, data, epochs, card):
    raise NotImplementedError()


@fixed
def the_local_rank_for_samples_too(model, data, epochs, card):
    rank, size = of_launcher("LOCAL_RANK"), dist.get_world_size()
    trained(model, data, epochs, card(rank), num_replicas=size, rank=rank)


@fixed
def the_wrapper_is_lost_on_the_way(model, data, epochs, card):
    DDP(model)
    trained(model, data, epochs, card(of_launcher("LOCAL_RANK")), net=model)


# Right, written differently ---------------------------------------------------------------------


@fixed
def the_launchers_local_rank(model, data, epochs, card):
    on_its_own_card(model, data, epochs, card)


def said_by_a_piece():
    return said(line='rank, size = int(os.environ["LOCAL_RANK"])')


@fixed
def asked_of_torch(model, data, epochs, card):
    trained(model, data, epochs, card(dist.get_node_local_rank()))


@fixed
def samples_by_the_global_rank(model, data, epochs, card):
    local = int(os.getenv("LOCAL_RANK", "0"))
    rank, size = of_launcher("RANK"), of_launcher("WORLD_SIZE")
    trained(model, data, epochs, card(local), num_replicas=size, rank=rank)


RIGHT = [
    the_launchers_local_rank,
    said_by_a_piece,
    asked_of_torch,
    samples_by_the_global_rank,
]

WRONG = {
    the_line_of_the_card: {"line": "which ranks take the same samples?"},
    the_line_of_the_wrapper: {"line": "which ranks take the same samples?"},
    still_broken: {"samples": "more than once"},
    the_global_rank_for_cards_too: {"samples": "requests a card that its node does not have"},
    samples_by_the_number_of_the_node: {"samples": "every rank goes through all"},
    a_rank_made_of_both_numbers: {"samples": "are in no rank's batches"},
    always_card_0: {"training": "on its node has too"},
    card_0_where_there_is_no_other: {"training": "rank 2 requests card 2"},
    the_rest_of_a_division: {"training": "however the ranks are placed"},
    the_rest_by_two: {"training": "on its node has too"},
    the_number_of_the_node: {"training": "on its node has too"},
    half_the_ranks_to_each_node: {"training": "rank 1 requests card 0"},
    no_card_at_all: {"training": "rank 0 requests no card"},
    a_number_as_text: {"samples": "TypeError"},
    not_written: {"samples": "not_written is not written yet"},
    the_local_rank_for_samples_too: {"samples": "are in no rank's batches"},
    the_wrapper_is_lost_on_the_way: {"training": "Which gradient does each rank step with?"},
}

_MOVED = "images, labels = (images.to(device), labels.to(device))"
_SAMPLER = "sampler = DistributedSampler(data, num_replicas=size, rank=rank, seed=8)"
_ON_THE_CPU = "there are no cards here: what counts is which one a rank asks for"

EQUIVALENT = changes_of_losses(
    "sampler.set_epoch(epoch); total = 0.0 -> total = 0.0; sampler.set_epoch(epoch)",
    "for images, labels in loader:; images, labels = (images.to(device), "
    "labels.to(device)); ... -> losses.append(total / len(loader)); for images, labels in"
    " loader:; ...",
    "optimizer.step(); total += loss.item() -> total += loss.item(); optimizer.step()",
) | {
    **EPOCHS_BACKWARDS,
    **SET_TWICE,
    **cleared_later("replica"),
    **neighbours("... num_replicas=size, rank=rank, seed={})", 8, ANOTHER_ORDER),
    **neighbours("loader = DataLoader(data, batch_size={}, sampler=sampler)", 16, OTHER_BATCHES),
    "model.to(device) -> nothing": _ON_THE_CPU,
    f"{_MOVED} -> nothing": _ON_THE_CPU,
    "model.to(device) -> model.to(device); model.to(device)": TWICE,
    f"model.to(device); {_SAMPLER} -> {_SAMPLER}; model.to(device)": FREE,
    f"{_MOVED}; optimizer.zero_grad() -> optimizer.zero_grad(); {_MOVED}": FREE,
}
