"""Answers to 03/run_3: the rate forgets the ranks, and the losses are not divided.

Fixing only one of the two leaves updates too long or too short.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.parallel.data import DataParallel
from tests.wrong_answers.accumulated_runs import (
    UNREAD,
    InOrder,
    changes_alike,
    gradients,
    linear,
    per_update,
    trained,
)

SAID = {"line": 7}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": trained}


def undivided(net, batch, count):
    """The mean of a microbatch as it is."""
    images, labels = batch
    return F.cross_entropy(net(images), labels)


def summed(net, batch, count):
    """The sum over a microbatch."""
    images, labels = batch
    return F.cross_entropy(net(images), labels, reduction="sum")


def divided(model, by):
    """Divides all gradients before the step."""

    def change():
        for gradient in gradients(model):
            gradient /= by

    return change


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_batch():
    return said(line="batch = micro * accumulate * dist.get_world_size()")


def the_line_of_the_curve():
    return said(line="mean += loss.item() / len(step)")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs, micro, accumulate):
    peak = linear(micro * accumulate)
    trained(model, data, epochs, micro, accumulate, peak=peak, loss=undivided)


@fixed
def only_the_rate_is_fixed(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, loss=undivided)


@fixed
def only_the_loss_is_fixed(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=linear(micro * accumulate))


@fixed
def divided_by_the_ranks(model, data, epochs, micro, accumulate):
    size = dist.get_world_size()
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: undivided(*one) / size)


@fixed
def divided_by_the_ranks_too(model, data, epochs, micro, accumulate):
    size = dist.get_world_size() * accumulate
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: undivided(*one) / size)


@fixed
def divided_twice(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, before_step=divided(model, accumulate))


@fixed
def a_smaller_rate(model, data, epochs, micro, accumulate):
    peak = 0.5 * linear(per_update(micro, accumulate))
    trained(model, data, epochs, micro, accumulate, peak=peak, loss=undivided)


@fixed
def clipped(model, data, epochs, micro, accumulate):
    def clip():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    trained(model, data, epochs, micro, accumulate, loss=undivided, before_step=clip)


@fixed
def only_the_last_micro_batch(model, data, epochs, micro, accumulate):
    trained(
        model, data, epochs, micro, accumulate, loss=undivided,
        clear=lambda number, count: True,
    )  # fmt: skip


@fixed
def only_the_last_one_is_divided(model, data, epochs, micro, accumulate):
    seen = []

    def loss(net, batch, count):
        seen.append(1)
        whole = undivided(net, batch, count)
        return whole / count if len(seen) % count == 0 else whole

    trained(model, data, epochs, micro, accumulate, loss=loss)


@fixed
def a_sum_divided_by_a_micro_batch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: summed(*one) / micro)


@fixed
def a_sum_divided_by_all_samples(model, data, epochs, micro, accumulate):
    """DDP divides by the ranks too."""
    batch = per_update(micro, accumulate)
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: summed(*one) / batch)


@fixed
def divided_by_eight(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: undivided(*one) / 8)


@fixed
def not_written(model, data, epochs, micro, accumulate):
    raise NotImplementedError()


@fixed
def gradients_travel_every_time(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sends=lambda number, count: True)


@fixed
def every_epoch_the_first(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, reshuffle=False)


@fixed
def never_shuffled(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sampler=InOrder(data))


@fixed
def another_rank_ends_elsewhere(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate)
    if dist.get_rank():
        for parameter in model.parameters():
            parameter.data *= 1 + 1e-6


# Right, written differently ---------------------------------------------------------------------


@fixed
def each_loss_divided(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate)


def said_of_the_other_line():
    return said(line='reduction="sum"')


@fixed
def the_gradients_divided(model, data, epochs, micro, accumulate):
    trained(
        model, data, epochs, micro, accumulate, loss=undivided,
        before_step=divided(model, accumulate),
    )  # fmt: skip


@fixed
def sums_over_the_samples_of_a_rank(model, data, epochs, micro, accumulate):
    share = micro * accumulate
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: summed(*one) / share)


@fixed
def the_rate_divided(model, data, epochs, micro, accumulate):
    """For SGD it is the same: the momentum is a sum of gradients."""
    peak = linear(per_update(micro, accumulate)) / accumulate
    trained(model, data, epochs, micro, accumulate, peak=peak, loss=undivided, wrap=DataParallel)


RIGHT = [
    each_loss_divided,
    said_of_the_other_line,
    the_gradients_divided,
    sums_over_the_samples_of_a_rank,
    the_rate_divided,
]

MANY = "microbatches in an update."
WRONG = {
    the_line_of_the_batch: {"line": "By which factor is each of them off?"},
    the_line_of_the_curve: {"line": "By which factor is each of them off?"},
    still_broken: {"rate": "microbatches by 3 ranks."},
    only_the_rate_is_fixed: {"rate": MANY},
    only_the_loss_is_fixed: {"rate": "There are 3 ranks."},
    divided_by_the_ranks: {"rate": "microbatches by 3 ranks."},
    divided_by_the_ranks_too: {"rate": "There are 3 ranks."},
    divided_twice: {"rate": "you divide by it twice"},
    a_smaller_rate: {"rate": "times as far as they should"},
    clipped: {"rate": ""},
    only_the_last_micro_batch: {"rate": "does not follow the gradient"},
    only_the_last_one_is_divided: {"rate": "does not follow the gradient"},
    a_sum_divided_by_a_micro_batch: {"rate": MANY},
    a_sum_divided_by_all_samples: {"rate": "There are 3 ranks."},
    divided_by_eight: {"rate": "times as far as they should"},
    not_written: {"rate": "not_written is not written yet"},
    gradients_travel_every_time: {"training": "left rank 0 in"},
    every_epoch_the_first: {"training": "in the order of epoch 0"},
    never_shuffled: {"training": "in the order of epoch 0"},
    another_rank_ends_elsewhere: {"training": "the copies of rank 0 and rank 1 differ"},
}

EQUIVALENT = changes_alike(seed=3) | {
    "diagnosis_3 = {'line': 17} -> diagnosis_3 = {'line': 18}": "either line may be fixed",
    "for number, (images, labels) in enumerate(step, start=1):; with replica.no_sync() if number "
    "< len(step) else nullcontext():; ... -> curve.append((mean, schedule.get_last_lr()[0])); "
    "for number, (images, labels) in enumerate(step, start=1):; ...": UNREAD,
}
