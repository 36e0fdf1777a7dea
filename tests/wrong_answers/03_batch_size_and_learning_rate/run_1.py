"""Answers to 03/run_1: the length of the schedule is divided by the ranks twice.

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
from dtlab.training.learning_rate import WarmupThenDecay
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

SAID = {"line": 4}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def with_a_length_of(model, data, epochs, micro, accumulate, times, steps=1):
    """A schedule that expects `times` as many updates, and makes `steps` steps for each."""
    batch = per_update(micro, accumulate)
    updates = int(times * epochs * len(data) // batch)
    warm, factors, done = 3 * updates // 8, [], []

    def make(parameters, lr):
        optimizer = SGD(parameters, lr=lr, momentum=0.9)
        factors.append(WarmupThenDecay(optimizer, warm, updates, start_factor=32 / batch).factor)
        done.append(optimizer)
        return optimizer

    def set_rate():
        update = len(done) - 1
        done[0].param_groups[0]["lr"] = linear(batch) * factors[0](steps * update)
        done.append(None)

    trained(model, data, epochs, micro, accumulate, make=make, before_step=set_rate)


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": trained}


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_batch():
    return said(line="batch = micro * accumulate * dist.get_world_size()")


def the_line_of_the_optimizer():
    return said(line=8)


def a_line_that_is_not_there():
    return said(line=40)


def a_function_alone():
    return trained


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs, micro, accumulate):
    size = dist.get_world_size()
    with_a_length_of(model, data, epochs, micro, accumulate, 1 / size)


@fixed
def as_long_as_for_one_rank(model, data, epochs, micro, accumulate):
    with_a_length_of(model, data, epochs, micro, accumulate, dist.get_world_size())


@fixed
def as_long_as_one_microbatch_would_need(model, data, epochs, micro, accumulate):
    with_a_length_of(model, data, epochs, micro, accumulate, accumulate)


@fixed
def the_schedule_steps_for_every_rank(model, data, epochs, micro, accumulate):
    """Ends where it should, but each number of ranks has other rates."""
    size = dist.get_world_size()
    with_a_length_of(model, data, epochs, micro, accumulate, size, steps=size)


@fixed
def at_the_base_rate(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=0.05)


@fixed
def by_the_square_root(model, data, epochs, micro, accumulate):
    peak = 0.05 * math.sqrt(per_update(micro, accumulate) / 32)
    trained(model, data, epochs, micro, accumulate, peak=peak)


@fixed
def by_the_ranks_alone(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=0.05 * dist.get_world_size())


@fixed
def by_the_micro_batches_alone(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=0.05 * accumulate)


@fixed
def by_the_forward_passes(model, data, epochs, micro, accumulate):
    peak = 0.05 * accumulate * dist.get_world_size()
    trained(model, data, epochs, micro, accumulate, peak=peak)


@fixed
def by_the_samples_of_one_rank(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=linear(micro * accumulate))


@fixed
def sixteen_times_whatever_the_batch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, peak=0.8)


@fixed
def from_twice_the_base_rate(model, data, epochs, micro, accumulate):
    """A 2 that has nothing to do with ranks."""
    peak = 2 * linear(per_update(micro, accumulate))
    trained(model, data, epochs, micro, accumulate, peak=peak)


@fixed
def without_a_warm_up(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, warm_up=0)


@fixed
def from_a_tenth_on(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, start_factor=0.1)


@fixed
def without_a_decay(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, decay="constant")


@fixed
def losses_added_up_instead(model, data, epochs, micro, accumulate):
    def loss(net, batch, count):
        return F.cross_entropy(net(batch[0]), batch[1])

    trained(model, data, epochs, micro, accumulate, peak=0.05, loss=loss)


@fixed
def a_smaller_batch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, 1)


@fixed
def all_at_once(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro * accumulate, 1)


@fixed
def one_epoch_too_few(model, data, epochs, micro, accumulate):
    trained(model, data, epochs - 1, micro, accumulate)


@fixed
def each_rank_by_itself(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sends=lambda number, count: False)


@fixed
def a_step_for_each_micro_batch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, steps_in=lambda number, count: True)


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
def all_samples_on_every_rank(model, data, epochs, micro, accumulate):
    epochs /= dist.get_world_size()
    trained(model, data, math.ceil(epochs), micro, accumulate, sampler=EverySample(data))


@fixed
def another_rank_ends_elsewhere(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate)
    if dist.get_rank():
        for parameter in model.parameters():
            parameter.data *= 1 + 1e-6


@fixed
def a_weight_decay(model, data, epochs, micro, accumulate):
    def make(parameters, lr):
        return SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-3)

    trained(model, data, epochs, micro, accumulate, make=make)


@fixed
def the_last_update_is_undone(model, data, epochs, micro, accumulate):
    before = []

    def keep():
        before[:] = [parameter.detach().clone() for parameter in model.parameters()]

    trained(model, data, epochs, micro, accumulate, before_step=keep)
    for parameter, old in zip(model.parameters(), before, strict=True):
        parameter.data.copy_(old)


# Right, written differently ---------------------------------------------------------------------


@fixed
def by_the_linear_rule(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate)


def said_by_text():
    return said(line=" updates=epochs * share//batch")


def said_in_words():
    return said(line="Line 5")


@fixed
def dtlabs_wrapper(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, wrap=DataParallel)


@fixed
def averaged_by_hand(model, data, epochs, micro, accumulate):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)

    def average():
        averaged(gradients(model))

    trained(model, data, epochs, micro, accumulate, wrap=lambda net: net, before_step=average)


@fixed
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
    the_line_of_the_batch: {"line": "Which numbers set the factor?"},
    the_line_of_the_optimizer: {"line": "Which numbers set the factor?"},
    a_line_that_is_not_there: {"line": "train_1 has no line 40"},
    a_function_alone: {"line": "run_1 must be a dict"},
    still_broken: {"rate": "The schedule is over after"},
    as_long_as_for_one_rank: {"rate": COMPARE},
    as_long_as_one_microbatch_would_need: {"rate": COMPARE},
    the_schedule_steps_for_every_rank: {"rate": COMPARE},
    at_the_base_rate: {"rate": "That is the rate of batch 32; an update takes"},
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
    one_epoch_too_few: {"rate": "forward passes, but"},
    each_rank_by_itself: {"rate": "does not follow the gradient of the mean loss"},
    a_step_for_each_micro_batch: {"rate": "The optimizer must step once, after the last one"},
    not_written: {"rate": "not_written is not written yet"},
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
    "diagnosis_1 = {'line': 4} -> diagnosis_1 = {'line': 5}": "either line may be fixed",
}
