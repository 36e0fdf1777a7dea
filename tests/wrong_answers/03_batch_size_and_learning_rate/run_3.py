"""Answers to 03/run_3: the means of the microbatches are added up, and not divided.

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

SAID = {"symptom": "too long", "number": 8, "line": 17}


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": trained}


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


# Wrong: the diagnosis ---------------------------------------------------------------------------


def says_rate_too_high():
    return said(symptom="rate too high")


def says_too_many_bytes():
    return said(symptom="too many bytes")


def says_nothing_known():
    return said(symptom=8)


def the_ranks_too():
    return said(number=16)


def the_other_way_round():
    return said(number="1/8")


def as_long_as_it_should_be():
    return said(number=1)


def some_other_number():
    return said(number=0.4)


def the_line_of_the_optimizer():
    return said(line=7)


def the_line_of_the_curve():
    return said(line="mean += F.cross_entropy(outputs.detach(), labels).item() / len(step)")


# Wrong: the function ----------------------------------------------------------------------------


@mended
def still_broken(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, loss=undivided)


@mended
def divided_by_the_ranks(model, data, epochs, micro, accumulate):
    size = dist.get_world_size()
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: undivided(*one) / size)


@mended
def divided_by_the_ranks_too(model, data, epochs, micro, accumulate):
    size = dist.get_world_size() * accumulate
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: undivided(*one) / size)


@mended
def divided_twice(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, before_step=divided(model, accumulate))


@mended
def a_smaller_rate(model, data, epochs, micro, accumulate):
    peak = 0.5 * linear(per_update(micro, accumulate))
    trained(model, data, epochs, micro, accumulate, peak=peak, loss=undivided)


@mended
def clipped(model, data, epochs, micro, accumulate):
    def clip():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    trained(model, data, epochs, micro, accumulate, loss=undivided, before_step=clip)


@mended
def only_the_last_micro_batch(model, data, epochs, micro, accumulate):
    trained(
        model, data, epochs, micro, accumulate, loss=undivided,
        clear=lambda number, count: True,
    )  # fmt: skip


@mended
def only_the_last_one_is_divided(model, data, epochs, micro, accumulate):
    seen = []

    def loss(net, batch, count):
        seen.append(1)
        whole = undivided(net, batch, count)
        return whole / count if len(seen) % count == 0 else whole

    trained(model, data, epochs, micro, accumulate, loss=loss)


@mended
def a_sum_divided_by_a_micro_batch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: summed(*one) / micro)


@mended
def a_sum_divided_by_all_samples(model, data, epochs, micro, accumulate):
    """DDP divides by the ranks too."""
    batch = per_update(micro, accumulate)
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: summed(*one) / batch)


@mended
def divided_by_eight(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: undivided(*one) / 8)


@mended
def not_written(model, data, epochs, micro, accumulate):
    raise NotImplementedError()


@mended
def gradients_travel_every_time(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sends=lambda number, count: True)


@mended
def every_epoch_the_first(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, reshuffle=False)


@mended
def never_shuffled(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sampler=InOrder(data))


@mended
def another_rank_ends_elsewhere(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate)
    if dist.get_rank():
        for parameter in model.parameters():
            parameter.data *= 1 + 1e-6


# Right, written differently ---------------------------------------------------------------------


@mended
def each_loss_divided(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate)


def said_of_the_next_line():
    return said(line=18, number="8 times")


@mended
def the_gradients_divided(model, data, epochs, micro, accumulate):
    trained(
        model, data, epochs, micro, accumulate, loss=undivided,
        before_step=divided(model, accumulate),
    )  # fmt: skip


@mended
def sums_over_the_samples_of_a_rank(model, data, epochs, micro, accumulate):
    share = micro * accumulate
    trained(model, data, epochs, micro, accumulate, loss=lambda *one: summed(*one) / share)


@mended
def the_rate_divided(model, data, epochs, micro, accumulate):
    """For SGD it is the same: the momentum is a sum of gradients."""
    peak = linear(per_update(micro, accumulate)) / accumulate
    trained(model, data, epochs, micro, accumulate, peak=peak, loss=undivided, wrap=DataParallel)


RIGHT = [
    each_loss_divided,
    said_of_the_next_line,
    the_gradients_divided,
    sums_over_the_samples_of_a_rank,
    the_rate_divided,
]

MANY = "An update has as many microbatches: divide each loss"
WRONG = {
    says_rate_too_high: {"symptom": "for such updates the linear rule gives about the same one"},
    says_too_many_bytes: {"symptom": "all-reduced 1 times the bytes of a gradient"},
    says_nothing_known: {"symptom": "8 is no symptom"},
    the_ranks_too: {"number": "DDP has averaged over the ranks already"},
    the_other_way_round: {"number": "that is the inverse"},
    as_long_as_it_should_be: {"number": "if the update had the right length"},
    some_other_number: {"number": "0.4 times is not it"},
    the_line_of_the_optimizer: {"line": "`.grad` is a sum"},
    the_line_of_the_curve: {"line": "`.grad` is a sum"},
    still_broken: {"gradient": MANY},
    divided_by_the_ranks: {"gradient": "DDP has divided by one of the two already"},
    divided_by_the_ranks_too: {"gradient": "DDP has divided by their number already"},
    divided_twice: {"gradient": "you divide by their number twice"},
    a_smaller_rate: {"gradient": "times as far as they should"},
    clipped: {"gradient": ""},
    only_the_last_micro_batch: {"gradient": "does not follow the gradient"},
    only_the_last_one_is_divided: {"gradient": "does not follow the gradient"},
    a_sum_divided_by_a_micro_batch: {"gradient": MANY},
    a_sum_divided_by_all_samples: {"gradient": "DDP has divided by their number"},
    divided_by_eight: {"gradient": "times as far as they should"},
    not_written: {"gradient": "mended is not written yet"},
    gradients_travel_every_time: {"training": "left rank 0 in"},
    every_epoch_the_first: {"training": "in the order of epoch 0"},
    never_shuffled: {"training": "in the order of epoch 0"},
    another_rank_ends_elsewhere: {"training": "the copies of rank 0 and rank 1 differ"},
}

_MEAN = "F.cross_entropy(outputs.detach(), labels).item()"  # of a microbatch, for the curve
_CUT = "F.cross_entropy(outputs.detach(), ..."
_ADD = f"mean += {_MEAN} / len(step)"

EQUIVALENT = {
    change: why
    for change, why in changes_alike(seed=3).items()
    if not change.startswith("mean += loss")  # which the other scripts have here
} | {
    f"... {_CUT} -> ... {_MEAN} / len(step); mean += {_CUT}": UNREAD,
    f"{_ADD} -> nothing": UNREAD,
    f"{_ADD} -> mean += {_MEAN}": UNREAD,
    f"{_ADD} -> mean += {_MEAN} * len(step)": UNREAD,
    f"{_ADD} -> mean += len(step)": UNREAD,
    f"{_ADD} -> mean -= {_MEAN} / len(step)": UNREAD,
    f"mean += {_CUT} -> mean = mean + {_CUT}": ("a float has no memory of its own to add to"),
    "for number, (images, labels) in enumerate(step, start=1):; with replica.no_sync() if number "
    "< len(step) else nullcontext():; ... -> curve.append((mean, schedule.get_last_lr()[0])); "
    "for number, (images, labels) in enumerate(step, start=1):; ...": UNREAD,
    "diagnosis_3 = {'symptom': 'too long', 'number': 8, 'line': 17} -> "
    "diagnosis_3 = {'symptom': 'too long', 'number': 8, 'line': 18}": "either line may be mended",
}
