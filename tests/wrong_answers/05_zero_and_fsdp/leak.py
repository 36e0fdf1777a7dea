"""Answers to 05/leak: whole parameters of every step are kept.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.nn.functional as F
from torch.optim import SGD

from dtlab.grading.unit05.runs_scripts import Layer, train_leak
from dtlab.parallel.fully_sharded import NaiveZero3
from dtlab.parallel.zero import Zero3

SAID = {"symptom": "grows", "number": 110248, "line": 12}


def trained(model, batches, after, at_end, wrap=Zero3, rate=0.1):
    """What comes after each step, and at the end, gets the sharded model and a list to keep."""
    sharded = wrap(model, blocks=Layer)
    optimizer = SGD(sharded.parameters(), lr=rate)
    losses, kept = [], []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(sharded(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after(sharded, kept, len(losses))
    with torch.no_grad():
        at_end(sharded, kept, len(losses))
    return losses


@torch.no_grad()
def add(sharded, kept, count):
    if not kept:
        kept += [torch.zeros_like(one) for one in sharded.parameters()]
    for total, piece in zip(kept, sharded.parameters(), strict=True):
        total += piece


def divide(sharded, kept, count):
    for total, piece in zip(kept, sharded.parameters(), strict=True):
        piece.copy_(total / count)


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def right(model, batches):
    return trained(model, batches, add, divide)


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": right}


# Wrong ------------------------------------------------------------------------------------------


def says_giant():
    return said(symptom="giant gather")


def says_apart():
    return said(symptom="apart")


def says_no_symptom():
    return said(symptom="leak")


def a_ranks_part():
    return said(number=55124)


def all_steps():
    return said(number=5 * 110248)


def elements():
    return said(number=27562)


def in_16_bits():
    return said(number="55124")


def the_line_of_the_losses():
    return said(line=11)


def the_line_of_the_mean():
    return said(line="sharded.load_state_dict(mean)")


def a_function_alone():
    return right


@mended
def not_written(model, batches):
    raise NotImplementedError()


@mended
def still_broken(model, batches):
    return train_leak(model, batches)


def whole(sharded, kept, count):
    kept.append(sharded.full_state_dict())


def whole_sum(sharded, kept, count):
    state = sharded.full_state_dict()
    kept[:] = [{name: kept[0][name] + one for name, one in state.items()} if kept else state]


def load_mean(sharded, kept, count):
    sharded.load_state_dict({name: one / count for name, one in kept[0].items()})


@mended
def a_whole_sum(model, batches):
    """It does not grow, and every rank has all of it."""
    return trained(model, batches, whole_sum, load_mean)


@mended
def pieces_of_every_step(model, batches):
    """A share only, but of each step."""

    def keep(sharded, kept, count):
        kept.append([one.detach().clone() for one in sharded.parameters()])

    def mean(sharded, kept, count):
        for piece, *own in zip(sharded.parameters(), *kept, strict=True):
            piece.copy_(sum(own) / count)

    return trained(model, batches, keep, mean)


@mended
def kept_and_not_used(model, batches):
    def keep(sharded, kept, count):
        keep.states = [*getattr(keep, "states", []), sharded.full_state_dict()]
        add(sharded, kept, count)

    return trained(model, batches, keep, divide)


@mended
def the_last_step(model, batches):
    return trained(model, batches, lambda *_: None, lambda *_: None)


@mended
def the_sum(model, batches):
    return trained(model, batches, add, lambda sharded, kept, count: divide(sharded, kept, 1))


@mended
def without_the_first_step(model, batches):
    def later(sharded, kept, count):
        if count > 1:
            add(sharded, kept, count)

    def mean(sharded, kept, count):
        divide(sharded, kept, count - 1)

    return trained(model, batches, later, mean)


@mended
def views_of_the_pieces(model, batches):
    """They are all the last one."""

    def keep(sharded, kept, count):
        kept[:] = [one.detach() for one in sharded.parameters()]

    return trained(model, batches, keep, lambda sharded, kept, count: divide(sharded, kept, 1))


@mended
def a_mean_that_forgets(model, batches):
    def keep(sharded, kept, count):
        pieces = [one.detach() for one in sharded.parameters()]
        kept[:] = [(a + b) / 2 for a, b in zip(kept or pieces, pieces, strict=True)]

    return trained(model, batches, keep, lambda sharded, kept, count: divide(sharded, kept, 1))


@mended
def another_rate(model, batches):
    return trained(model, batches, add, divide, rate=0.05)


# Right ------------------------------------------------------------------------------------------


@mended
def a_sum_of_pieces(model, batches):
    return right(model, batches)


@mended
def a_running_mean(model, batches):
    def keep(sharded, kept, count):
        pieces = [one.detach() for one in sharded.parameters()]
        if not kept:
            kept += [torch.zeros_like(one) for one in pieces]
        for mean, piece in zip(kept, pieces, strict=True):
            mean.lerp_(piece, 1 / count)

    def leave(sharded, kept, count):
        for mean, piece in zip(kept, sharded.parameters(), strict=True):
            piece.data.copy_(mean)

    return trained(model, batches, keep, leave, wrap=NaiveZero3)


def said_by_text():
    return said(number="110248", line="after.append(sharded.full_state_dict())")


RIGHT = [a_sum_of_pieces, a_running_mean, said_by_text]

WRONG = {
    says_giant: {"symptom": "of the model was whole"},
    says_apart: {"symptom": "losses were off"},
    says_no_symptom: {"symptom": "is no symptom. There are: giant gather"},
    a_ranks_part: {"number": "a rank's own pieces"},
    all_steps: {"number": "that is all steps together"},
    elements: {"number": "those are elements"},
    in_16_bits: {"number": "a rank's own pieces"},
    the_line_of_the_losses: {"line": "does what it should here"},
    the_line_of_the_mean: {"line": "who still has it in the next step?"},
    a_function_alone: {"symptom": "leak has to be a dict"},
    not_written: {"memory": "mended is not written yet"},
    still_broken: {"memory": "bytes more before the last batch"},
    a_whole_sum: {"memory": "Is the mean whole?"},
    pieces_of_every_step: {"memory": "bytes more before the last batch"},
    kept_and_not_used: {"memory": "bytes more before the last batch"},
    the_last_step: {"training": "It has the parameters of the last step"},
    the_sum: {"training": "does not end as the mean"},
    without_the_first_step: {"training": "does not end as the mean"},
    views_of_the_pieces: {"training": "It has the parameters of the last step"},
    a_mean_that_forgets: {"training": "does not end as the mean"},
    another_rate: {"training": "Only what is broken has to change"},
}
