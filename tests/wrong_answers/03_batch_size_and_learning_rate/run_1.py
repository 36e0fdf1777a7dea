"""Answers to 03/run_1: an update takes sixteen times the samples, at the rate of one.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim import SGD

from dtlab.parallel.data import DataParallel
from dtlab.training.accumulation import accumulate as accumulated
from tests.wrong_answers.accumulated_runs import (
    UNREAD,
    EverySample,
    InOrder,
    averaged,
    changes_alike,
    gradients,
    linear,
    per_update,
    trained,
)

SAID = {"symptom": "rate too low", "number": 16, "line": 7}


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": trained}


# Wrong: the diagnosis ---------------------------------------------------------------------------


def says_rate_gone():
    return said(symptom="rate gone")


def says_too_short():
    return said(symptom="too short")


def says_samples_left_out():
    return said(symptom="samples left out")


def says_no_symptom():
    return said(symptom="the loss is too high")


def the_square_root():
    return said(number=4)


def as_if_there_were_one_rank():
    return said(number="8")


def as_if_there_were_one_micro_batch():
    return said(number=2)


def the_other_way_round():
    return said(number=1 / 16)


def the_samples_of_an_update():
    return said(number=512)


def a_number_that_cannot_be_read():
    return said(number="sixteen")


def some_other_number():
    return said(number=25)


def the_line_of_the_schedule():
    return said(line=8)


def the_line_of_the_batch():
    return said(line="batch = micro * accumulate * dist.get_world_size()")


def a_line_that_is_not_there():
    return said(line=40)


def a_function_alone():
    return trained


# Wrong: the function ----------------------------------------------------------------------------


@mended
def still_broken(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=0.05)


@mended
def by_the_square_root(model, data, epochs, micro, accumulate):
    peak = 0.05 * math.sqrt(per_update(micro, accumulate) / 32)
    trained(model, data, epochs, micro, accumulate, peak=peak)


@mended
def by_the_ranks_alone(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=0.05 * dist.get_world_size())


@mended
def by_the_micro_batches_alone(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=0.05 * accumulate)


@mended
def by_the_forward_passes(model, data, epochs, micro, accumulate):
    peak = 0.05 * accumulate * dist.get_world_size()
    trained(model, data, epochs, micro, accumulate, peak=peak)


@mended
def by_the_samples_of_one_rank(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=linear(micro * accumulate))


@mended
def sixteen_times_whatever_the_batch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=0.8)


@mended
def from_twice_the_base_rate(model, data, epochs, micro, accumulate):
    """A 2 that has nothing to do with ranks."""
    peak = 2 * linear(per_update(micro, accumulate))
    trained(model, data, epochs, micro, accumulate, peak=peak)


@mended
def without_a_warm_up(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, warm_up=0)


@mended
def from_a_tenth_on(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, start_factor=0.1)


@mended
def without_a_decay(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, decay="constant")


@mended
def losses_added_up_instead(model, data, epochs, micro, accumulate):
    def loss(net, batch, count):
        return F.cross_entropy(net(batch[0]), batch[1])

    trained(model, data, epochs, micro, accumulate, peak=0.05, loss=loss)


@mended
def a_smaller_batch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, 1)


@mended
def all_at_once(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro * accumulate, 1)


@mended
def one_epoch_too_few(model, data, epochs, micro, accumulate):
    trained(model, data, epochs - 1, micro, accumulate)


@mended
def each_rank_by_itself(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sends=lambda number, count: False)


@mended
def a_step_for_each_micro_batch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, steps_in=lambda number, count: True)


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
def all_samples_on_every_rank(model, data, epochs, micro, accumulate):
    epochs /= dist.get_world_size()
    trained(model, data, math.ceil(epochs), micro, accumulate, sampler=EverySample(data))


@mended
def another_rank_ends_elsewhere(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate)
    if dist.get_rank():
        for parameter in model.parameters():
            parameter.data *= 1 + 1e-6


@mended
def a_weight_decay(model, data, epochs, micro, accumulate):
    def make(parameters, lr):
        return SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-3)

    trained(model, data, epochs, micro, accumulate, make=make)


@mended
def the_last_update_is_undone(model, data, epochs, micro, accumulate):
    before = []

    def keep():
        before[:] = [parameter.detach().clone() for parameter in model.parameters()]

    trained(model, data, epochs, micro, accumulate, before_step=keep)
    for parameter, old in zip(model.parameters(), before, strict=True):
        parameter.data.copy_(old)


# Right, written differently ---------------------------------------------------------------------


@mended
def by_the_linear_rule(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate)


def said_by_text():
    optimizer = "optimizer = SGD(replica.parameters(), lr=0.05, momentum=0.9)"
    return said(symptom=" Rate_too_low", number="16x", line=optimizer)


def said_in_words():
    return said(number="16 times")


@mended
def dtlabs_wrapper(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, wrap=DataParallel)


@mended
def averaged_by_hand(model, data, epochs, micro, accumulate):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)

    def average():
        averaged(gradients(model))

    trained(model, data, epochs, micro, accumulate, wrap=lambda net: net, before_step=average)


@mended
def by_accumulate_of_the_library(model, data, epochs, micro, accumulate):
    """Samples in another order, and the sum of losses over all samples divided by their number."""
    replica = DataParallel(model)
    rank, size = dist.get_rank(), dist.get_world_size()
    batch = micro * accumulate * size
    peak, updates = linear(batch), epochs * len(data) // batch
    warm = 3 * updates // 8
    optimizer, update = SGD(replica.parameters(), lr=peak, momentum=0.9, fused=True), 0

    def loss_sum(net, part):
        images, labels = part
        return F.cross_entropy(net(images), labels, reduction="sum")

    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(100 + epoch))
        for samples in order.split(batch):
            parts = [data[part] for part in samples.chunk(size)[rank].split(micro)]
            factor = (
                32 / batch + (1 - 32 / batch) * update / warm
                if update < warm
                else (1 + math.cos(math.pi * (update - warm) / (updates - warm))) / 2
            )
            optimizer.param_groups[0]["lr"] = peak * factor
            accumulated(replica, parts, loss_sum)
            optimizer.step()
            optimizer.zero_grad()
            update += 1


RIGHT = [
    by_the_linear_rule,
    said_by_text,
    said_in_words,
    dtlabs_wrapper,
    averaged_by_hand,
    by_accumulate_of_the_library,
]

COMPARE = "Print the rates, and compare them"
WRONG = {
    says_rate_gone: {"symptom": "none of 64 updates had a rate of 0"},
    says_too_short: {"symptom": "was as long as its rate and the mean gradient"},
    says_samples_left_out: {"symptom": "4096 of 4096 samples were taken in an epoch"},
    says_no_symptom: {"symptom": "is no symptom. There are: rate too low, "},
    the_square_root: {"number": "that is the square-root rule"},
    as_if_there_were_one_rank: {"number": "an update takes the samples of all ranks"},
    as_if_there_were_one_micro_batch: {"number": "an update has several microbatches"},
    the_other_way_round: {"number": "that is the inverse"},
    the_samples_of_an_update: {"number": "these are the samples of an update"},
    a_number_that_cannot_be_read: {"number": "'sixteen' cannot be read"},
    some_other_number: {"number": "25 times is not it. Count the samples of an update"},
    the_line_of_the_schedule: {"line": "Where is the peak of the rate set?"},
    the_line_of_the_batch: {"line": "does what it should here"},
    a_line_that_is_not_there: {"line": "train_1 has no line 40"},
    a_function_alone: {"symptom": "run_1 must be a dict"},
    still_broken: {"rate": "That is the rate of batch 32; an update takes"},
    by_the_square_root: {"rate": "That is the square-root rule"},
    by_the_ranks_alone: {"rate": "not with the ranks alone"},
    by_the_micro_batches_alone: {"rate": "not with microbatches alone"},
    by_the_forward_passes: {"rate": "Count samples, not forward passes"},
    by_the_samples_of_one_rank: {"rate": "An update takes the samples of all ranks"},
    sixteen_times_whatever_the_batch: {"rate": "times as far as they should"},
    from_twice_the_base_rate: {"rate": "All of them go 2 times as far as they should."},
    without_a_warm_up: {"rate": COMPARE},
    from_a_tenth_on: {"rate": COMPARE},
    without_a_decay: {"rate": COMPARE},
    losses_added_up_instead: {"rate": "not with microbatches alone"},
    a_smaller_batch: {"rate": "the parameters change within an update"},
    all_at_once: {"rate": "samples at once. A microbatch has"},
    one_epoch_too_few: {"rate": "forward passes."},
    each_rank_by_itself: {"rate": "does not follow the gradient of the mean loss"},
    a_step_for_each_micro_batch: {"rate": "The optimizer must step once, after the last one"},
    not_written: {"rate": "mended is not written yet"},
    gradients_travel_every_time: {"training": "left rank 0 in"},
    every_epoch_the_first: {"training": "in the order of epoch 0"},
    never_shuffled: {"training": "in the order of epoch 0"},
    all_samples_on_every_rank: {"rate": "is as long as with a rate of"},
    a_weight_decay: {"training": "the rate and the optimizer of the script"},
    another_rank_ends_elsewhere: {"training": "the copies of rank 0 and rank 1 differ"},
    the_last_update_is_undone: {"rate": COMPARE},
}

EQUIVALENT = changes_alike(seed=1) | {
    "for number, (images, labels) in enumerate(step, start=1):; with replica.no_sync() if number "
    "< len(step) else nullcontext():; ... -> curve.append((mean, schedule.get_last_lr()[0])); "
    "for number, (images, labels) in enumerate(step, start=1):; ...": UNREAD,
}
