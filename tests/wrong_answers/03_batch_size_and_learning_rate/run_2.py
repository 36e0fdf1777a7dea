"""Answers to 03/run_2: gradients are averaged in the first microbatch, not in the last.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools
from contextlib import nullcontext

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DistributedSampler

from dtlab.parallel.data import DataParallel, NaiveDataParallel
from dtlab.training.accumulation import per_step
from dtlab.training.datasets import batches
from dtlab.training.learning_rate import WarmupThenDecay
from tests.wrong_answers.accumulated_runs import (
    UNREAD,
    InOrder,
    changes_alike,
    linear,
    mean_loss,
    per_update,
    trained,
)

SAID = {"line": 15}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": trained}


# Wrong: the diagnosis ----------------------------------------------------------------------------


def the_line_of_the_optimizers_step():
    return said(line="optimizer.step()")


def the_line_of_the_loss():
    return said(line="loss = F.cross_entropy(replica(images), labels) / len(step)")


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def still_broken(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sends=lambda number, count: number == 0)


@fixed
def in_the_second_microbatch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sends=lambda number, count: number == 1)


@fixed
def in_all_but_the_last(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sends=lambda number, count: number < count - 1)


@fixed
def never(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, sends=lambda number, count: False)


@fixed
def parameters_of_rank_0_after_each_update(model, data, epochs, micro, accumulate):
    def after():
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)

    trained(
        model, data, epochs, micro, accumulate,
        sends=lambda number, count: number == 0, after_step=after,
    )  # fmt: skip


@fixed
def a_schedule_step_for_each_microbatch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, steps_of_schedule=lambda count: count)


@fixed
def a_schedule_that_is_longer(model, data, epochs, micro, accumulate):
    """As many steps as there are microbatches, but the warm-up still ends early."""
    trained(
        model, data, epochs, micro, accumulate,
        decay=lambda done: 1 - done / accumulate,
        steps_of_schedule=lambda count: count,
    )  # fmt: skip


@fixed
def as_many_steps_as_micro_batches(model, data, epochs, micro, accumulate):
    """The script as it was, and a schedule that is told of them."""
    batch = per_update(micro, accumulate)
    replica, updates = DDP(model), epochs * len(data) // batch * accumulate
    optimizer = SGD(replica.parameters(), lr=linear(batch), momentum=0.9)
    schedule = WarmupThenDecay(optimizer, 3 * updates // 8, updates, start_factor=32 / batch)
    sampler = DistributedSampler(data, seed=2)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step in per_step(batches(data, micro, sampler=sampler), accumulate):
            for number, part in enumerate(step, start=1):
                with replica.no_sync() if number < len(step) else nullcontext():
                    mean_loss(replica, part, len(step)).backward()
                if number == len(step):
                    optimizer.step()
                    optimizer.zero_grad()
                schedule.step()


@fixed
def a_step_in_each_epoch(model, data, epochs, micro, accumulate):
    done = []

    def once(count):
        done.append(count)
        return int(len(done) % (len(data) // per_update(micro, accumulate)) == 0)

    trained(model, data, epochs, micro, accumulate, steps_of_schedule=once)


@fixed
def no_schedule_at_all(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, steps_of_schedule=lambda count: 0)


@fixed
def one_step_for_every_rank(model, data, epochs, micro, accumulate):
    size = dist.get_world_size()
    trained(model, data, epochs, micro, accumulate, steps_of_schedule=lambda count: size)


@fixed
def a_constant_rate(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, warm_up=0, decay="constant")


@fixed
def an_update_for_each_micro_batch(model, data, epochs, micro, accumulate):
    trained(
        model, data, epochs, micro, accumulate,
        steps_in=lambda number, count: True, sends=lambda number, count: True,
    )  # fmt: skip


@fixed
def only_the_last_micro_batch(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, clear=lambda number, count: True)


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
def once_for_each_update(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate)


def said_in_another_way():
    return said(line="replica.no_sync() if number > 1")


@fixed
def dtlabs_wrapper(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, wrap=DataParallel)


@fixed
def fused(model, data, epochs, micro, accumulate):
    def make(parameters, lr):
        return SGD(list(parameters), lr=lr, momentum=0.9, fused=True)

    trained(model, data, epochs, micro, accumulate, make=make, seed=7)


@fixed
def one_all_reduce_for_each_parameter(model, data, epochs, micro, accumulate):
    trained(model, data, epochs, micro, accumulate, wrap=NaiveDataParallel)


RIGHT = [
    once_for_each_update,
    said_in_another_way,
    dtlabs_wrapper,
    fused,
    one_all_reduce_for_each_parameter,
]

COMPARE = "Print the rates, and compare them"
WRONG = {
    the_line_of_the_optimizers_step: {"line": "When is the all-reduce of an update"},
    the_line_of_the_loss: {"line": "When is the all-reduce of an update"},
    still_broken: {"gradient": "does not follow the gradient of the mean loss"},
    in_the_second_microbatch: {"gradient": "does not follow the gradient of the mean loss"},
    in_all_but_the_last: {"gradient": "does not follow the gradient of the mean loss"},
    never: {"gradient": "does not follow the gradient of the mean loss"},
    parameters_of_rank_0_after_each_update: {"gradient": "does not follow the gradient"},
    a_schedule_step_for_each_microbatch: {"gradient": "steps where it should make one"},
    a_schedule_that_is_longer: {"gradient": COMPARE},
    as_many_steps_as_micro_batches: {"gradient": "count updates"},
    a_step_in_each_epoch: {"gradient": "updates: how often does `schedule.step()` run?"},
    no_schedule_at_all: {"gradient": "The schedule never goes on"},
    one_step_for_every_rank: {"gradient": "The schedule is over after"},
    a_constant_rate: {"gradient": COMPARE},
    an_update_for_each_micro_batch: {"gradient": "the parameters change within an update"},
    only_the_last_micro_batch: {"gradient": "does not follow the gradient"},
    not_written: {"gradient": "not_written is not written yet"},
    gradients_travel_every_time: {"training": "left rank 0 in"},
    every_epoch_the_first: {"training": "in the order of epoch 0"},
    never_shuffled: {"training": "in the order of epoch 0"},
    another_rank_ends_elsewhere: {"training": "the copies of rank 0 and rank 1 differ"},
}

EQUIVALENT = changes_alike(seed=2) | {
    "for number, (images, labels) in enumerate(step, start=1):; with replica.no_sync() if number "
    "< len(step) else nullcontext():; ... -> curve.append((mean, schedule.get_last_lr()[0])); "
    "for number, (images, labels) in enumerate(step, start=1):; ...": UNREAD,
}
