"""Answers to 05/giant_gather: a wrap policy that takes all layers for one block.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from dtlab.parallel.data import DataParallel
from dtlab.parallel.zero import Zero3
from dtlab.parallel.zero.fully_sharded import NaiveZero3
from dtlab.units.unit05.runs_scripts import Layer, train_gather
from tests.wrong_answers.diagnoses import numbers_near
from tests.wrong_answers.sharded_runs import changes_alike

SAID = {"symptom": "giant gather", "number": 100608, "line": 5}


def trained(model, batches, wrap=lambda model: Zero3(model, blocks=Layer), rate=0.1, zeroes=True):
    sharded = wrap(model)
    optimizer = SGD(sharded.parameters(), lr=rate)
    losses = []
    for images, labels in batches:
        if zeroes:
            optimizer.zero_grad()
        loss = F.cross_entropy(sharded(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": trained}


# Wrong ------------------------------------------------------------------------------------------


def says_grows():
    return said(symptom="grows")


def says_apart():
    return said(symptom="apart")


def says_no_symptom():
    return said(symptom="slow")


def the_whole_model():
    return said(number=110248)


def a_ranks_part():
    return said(number=50304)


def elements():
    return said(number=25152)


def one_layer():
    return said(number=16768)


def the_line_of_the_optimizer():
    return said(line="optimizer = SGD(sharded.parameters(), lr=0.1)")


def a_function_alone():
    return trained


@mended
def not_written(model, batches):
    raise NotImplementedError()


@mended
def still_broken(model, batches):
    return train_gather(model, batches)


@mended
def a_number_for_this_model(model, batches):
    def is_block(module):
        return sum(one.numel() for one in module.parameters()) >= 4000

    return trained(model, batches, lambda model: Zero3(model, blocks=is_block))


def by_share(model, batches, least, most=1.0):
    total = sum(one.numel() for one in model.parameters())

    def is_block(module):
        part = sum(one.numel() for one in module.parameters()) / total
        return least <= part <= most

    return trained(model, batches, lambda model: Zero3(model, blocks=is_block))


@mended
def a_tenth_of_the_model(model, batches):
    """A layer of this one has a seventh."""
    return by_share(model, batches, 0.1)


@mended
def more_than_a_twentieth_and_less_than_half(model, batches):
    return by_share(model, batches, 0.05, 0.5)


@mended
def the_wrong_way_round(model, batches):
    def is_block(module):
        return sum(one.numel() for one in module.parameters()) < 5000

    return trained(model, batches, lambda model: Zero3(model, blocks=is_block))


@mended
def no_blocks(model, batches):
    return trained(model, batches, lambda model: Zero3(model, blocks=[]))


@mended
def the_container(model, batches):
    return trained(model, batches, lambda model: Zero3(model, blocks=[model.layers]))


@mended
def not_sharded_any_more(model, batches):
    return trained(model, batches, DataParallel)


@mended
def layers_stay_whole(model, batches):
    def wrap(model):
        return Zero3(model, blocks=Layer, reshard_after_forward=False)

    return trained(model, batches, wrap)


@mended
def another_rate(model, batches):
    return trained(model, batches, rate=0.05)


@mended
def gradients_pile_up(model, batches):
    return trained(model, batches, zeroes=False)


@mended
def a_batch_too_few(model, batches):
    return trained(model, list(batches)[:-1])


# Right ------------------------------------------------------------------------------------------


@mended
def by_class(model, batches):
    return trained(model, batches)


@mended
def by_list(model, batches):
    return trained(model, batches, lambda model: Zero3(model, blocks=list(model.layers)))


@mended
def by_a_function(model, batches):
    def is_block(module):
        return isinstance(module, nn.Linear)

    assert dist.is_initialized()
    return trained(model, batches, lambda model: Zero3(model, blocks=is_block))


@mended
def by_itself(model, batches):
    return trained(model, batches, NaiveZero3)


def said_by_text():
    return said(symptom="Giant Gather", number="100608", line="Zero3(model, blocks=is_block)")


RIGHT = [by_class, by_list, by_a_function, by_itself, said_by_text]

WRONG = {
    says_grows: {"symptom": "not more with every step"},
    says_apart: {"symptom": "losses differed"},
    says_no_symptom: {"symptom": "is no symptom. There are: giant gather"},
    the_whole_model: {"number": "that is the whole model"},
    a_ranks_part: {"number": "that is one rank's part of it"},
    elements: {"number": "those are elements"},
    one_layer: {"number": "that is one layer, the size"},
    the_line_of_the_optimizer: {"line": "Which line decides"},
    a_function_alone: {"symptom": "giant_gather must be a dict"},
    not_written: {"peak": "mended is not written yet"},
    still_broken: {"peak": "of the model is whole"},
    a_number_for_this_model: {"peak": "of the model is whole"},
    a_tenth_of_the_model: {"peak": "of the model is whole"},
    more_than_a_twentieth_and_less_than_half: {"peak": "no submodule is accepted by blocks="},
    the_wrong_way_round: {"peak": "of the model is whole"},
    no_blocks: {"peak": "of the model is whole"},
    the_container: {"peak": "of the model is whole"},
    not_sharded_any_more: {"peak": "of the model is whole"},
    layers_stay_whole: {"peak": "stayed whole since forward"},
    another_rate: {"training": "Change only what is broken"},
    gradients_pile_up: {"training": "Change only what is broken"},
    a_batch_too_few: {"training": "returns the losses"},
}

_NOTED = "losses.append(loss.item())"
EQUIVALENT = {
    **numbers_near("... 'giant gather', 'number': 100608, 'line': 5}", 100608),
    **changes_alike("sharded"),
    f"{_NOTED} -> {_NOTED}; for images, labels in batches:; ...": "batches come once only",
}
