"""Answers to 03/run_4: one GPU's batch is shared out, and its rate grows with the forward passes.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools
import math

import torch.distributed as dist

from dtlab.parallel.data import DataParallel
from tests.wrong_answers.accumulated_runs import (
    UNREAD,
    InOrder,
    changes_alike,
    linear,
    trained,
)

SAID = {"line": 8}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": by_the_recipe}


def shared_out(model, data, epochs, batch, rate, parts, **different):
    """Train with the batch shared out over ranks and microbatches."""
    micro = batch // (dist.get_world_size() * parts)
    trained(model, data, epochs, micro, parts, **{"peak": rate, **different})


def by_the_recipe(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts)


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_micro_batch():
    return said(line=4)


def the_line_of_the_schedule():
    return said(line="schedule.step()")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs, batch, rate, parts):
    peak = rate * dist.get_world_size() * parts
    shared_out(model, data, epochs, batch, rate, parts, peak=peak)


@fixed
def by_the_ranks(model, data, epochs, batch, rate, parts):
    peak = rate * dist.get_world_size()
    shared_out(model, data, epochs, batch, rate, parts, peak=peak)


@fixed
def by_the_micro_batches(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts, peak=rate * parts)


@fixed
def divided_instead(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts, peak=rate / dist.get_world_size())


@fixed
def divided_by_the_forward_passes(model, data, epochs, batch, rate, parts):
    peak = rate / (dist.get_world_size() * parts)
    shared_out(model, data, epochs, batch, rate, parts, peak=peak)


@fixed
def the_rate_of_the_notebook(model, data, epochs, batch, rate, parts):
    """Ignores the argument."""
    shared_out(model, data, epochs, batch, rate, parts, peak=0.8)


@fixed
def by_the_square_root(model, data, epochs, batch, rate, parts):
    peak = rate * math.sqrt(dist.get_world_size() * parts)
    shared_out(model, data, epochs, batch, rate, parts, peak=peak)


@fixed
def another_recipe(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts, peak=linear(batch))


@fixed
def a_batch_that_grows(model, data, epochs, batch, rate, parts):
    """Right where an update may take more samples; here it has to take `batch`."""
    trained(model, data, epochs, batch // parts, parts, peak=rate)


@fixed
def all_at_once(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, 1)


@fixed
def without_a_warm_up(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts, warm_up=0)


@fixed
def each_rank_by_itself(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts, sends=lambda number, count: False)


@fixed
def not_written(model, data, epochs, batch, rate, parts):
    raise NotImplementedError()


@fixed
def gradients_travel_every_time(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts, sends=lambda number, count: True)


@fixed
def every_epoch_the_first(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts, reshuffle=False)


@fixed
def never_shuffled(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts, sampler=InOrder(data))


@fixed
def another_rank_ends_elsewhere(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts)
    if dist.get_rank():
        for parameter in model.parameters():
            parameter.data *= 1 + 1e-6


# Right, written differently ---------------------------------------------------------------------


@fixed
def the_rate_of_the_recipe(model, data, epochs, batch, rate, parts):
    by_the_recipe(model, data, epochs, batch, rate, parts)


def said_by_a_piece():
    return said(line="lr=size * parts * rate")


@fixed
def dtlabs_wrapper(model, data, epochs, batch, rate, parts):
    shared_out(model, data, epochs, batch, rate, parts, wrap=DataParallel, seed=4)


@fixed
def by_the_samples_of_an_update(model, data, epochs, batch, rate, parts):
    """The linear rule, from the recipe: an update takes as many samples as it says."""
    micro = batch // (dist.get_world_size() * parts)
    taken = micro * parts * dist.get_world_size()
    shared_out(model, data, epochs, batch, rate, parts, peak=rate * taken / batch)


RIGHT = [
    the_rate_of_the_recipe,
    said_by_a_piece,
    dtlabs_wrapper,
    by_the_samples_of_an_update,
]

WRONG = {
    the_line_of_the_micro_batch: {"line": "does that grow here?"},
    the_line_of_the_schedule: {"line": "does that grow here?"},
    still_broken: {"rate": "times as far as they should. An update has that many forward passes"},
    by_the_ranks: {"rate": "How many samples does an update take"},
    by_the_micro_batches: {"rate": "Each loss is divided by their number, and the rate grows"},
    divided_instead: {"rate": "The rate is divided by 2. It belongs to the batch"},
    divided_by_the_forward_passes: {"rate": "It belongs to the batch of an update"},
    the_rate_of_the_notebook: {"rate": "Use the argument `rate`"},
    by_the_square_root: {"rate": "times as far as they should"},
    another_recipe: {"rate": "times as far as they should"},
    a_batch_that_grows: {"rate": "samples at once. A microbatch has"},
    all_at_once: {"rate": "samples at once. A microbatch has"},
    without_a_warm_up: {"rate": "Print the rates"},
    each_rank_by_itself: {"rate": "does not follow the gradient"},
    not_written: {"rate": "not_written is not written yet"},
    gradients_travel_every_time: {"training": "left rank 0 in"},
    every_epoch_the_first: {"training": "in the order of epoch 0"},
    never_shuffled: {"training": "in the order of epoch 0"},
    another_rank_ends_elsewhere: {"training": "the copies of rank 0 and rank 1 differ"},
}

EQUIVALENT = changes_alike(seed=4) | {
    "for number, (images, labels) in enumerate(step, start=1):; with replica.no_sync() if number "
    "< len(step) else nullcontext():; ... -> curve.append((mean, schedule.get_last_lr()[0])); "
    "for number, (images, labels) in enumerate(step, start=1):; ...": UNREAD,
}
