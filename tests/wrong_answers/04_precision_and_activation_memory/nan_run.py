"""Answers to 04/nan_run: a limit of another scale, and a scaler that begins anew.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD
from torch.utils.data import DistributedSampler

from dtlab.parallel.data import DataParallel
from dtlab.training.datasets import batches
from dtlab.training.loss_scaling import DynamicLossScaler
from tests.wrong_answers.diagnoses import numbers_near

SAID = {"number": 180.4, "line": 10}


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": trained}


def unscaled_first(scaler, replica, optimizer, max_norm):
    scaler.unscale_(optimizer)
    clip_grad_norm_(replica.parameters(), max_norm)


def trained(
    model,
    data,
    epochs,
    batch,
    rate,
    max_norm,
    clip=unscaled_first,
    scaler_of=lambda: DynamicLossScaler(init_scale=2.0**24),
    wrap=DDP,
    reduction="sum",
    momentum=0.9,
    reshuffles=True,
    sampler=None,
    zeroes=True,
    sends=True,
    each_epoch_anew=False,
):
    """The fixed script, of which other answers change something."""
    sampler = sampler or DistributedSampler(data, seed=4)
    replica = wrap(model)
    optimizer = SGD(replica.parameters(), lr=rate, momentum=momentum)
    scaler = scaler_of()
    for epoch in range(epochs):
        if each_epoch_anew:
            scaler = scaler_of()
        if reshuffles:
            sampler.set_epoch(epoch)
        for images, labels in batches(data, batch // dist.get_world_size(), sampler=sampler):
            if zeroes:
                optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy((replica if sends else model)(images), labels,
                                       reduction=reduction)  # fmt: skip
            scaler.scale(loss).backward()
            clip(scaler, replica, optimizer, max_norm)
            scaler.step(optimizer)
            scaler.update()


# Wrong: the diagnosis ---------------------------------------------------------------------------


def the_other_way_round():
    return said(number=1 / 180.4)


def the_skipped_steps():
    return said(number=11)


def the_distance():
    return said(number=72.15)


def the_length():
    return said(number=18.04)


def the_limit_of_that_step():
    return said(number=2048)


def as_it_should_be():
    return said(number="1")


def some_other_number():
    return said(number=77)


def the_line_of_the_step():
    return said(line="scaler.step(optimizer)")


def the_line_of_the_optimizer():
    return said(line=5)


def the_line_of_the_loss():
    return said(line="loss = F.cross_entropy(replica(images), labels, reduction='sum')")


def a_function_alone():
    return trained


# Wrong: the function ----------------------------------------------------------------------------


@fixed
def not_written(model, data, epochs, batch, rate, max_norm):
    raise NotImplementedError()


@fixed
def still_broken(model, data, epochs, batch, rate, max_norm):
    def clip(scaler, replica, optimizer, most):
        clip_grad_norm_(replica.parameters(), most * 2.0**24)

    trained(model, data, epochs, batch, rate, max_norm, clip)


@fixed
def without_the_scale(model, data, epochs, batch, rate, max_norm):
    """Still before unscaling: now the gradients are cut to nearly nothing."""

    def clip(scaler, replica, optimizer, most):
        clip_grad_norm_(replica.parameters(), most)

    trained(model, data, epochs, batch, rate, max_norm, clip)


@fixed
def clipped_before_unscaling(model, data, epochs, batch, rate, max_norm):
    def clip(scaler, replica, optimizer, most):
        clip_grad_norm_(replica.parameters(), most)
        scaler.unscale_(optimizer)

    trained(model, data, epochs, batch, rate, max_norm, clip)


@fixed
def not_clipped_at_all(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm, lambda *_: None)


@fixed
def each_parameter_by_itself(model, data, epochs, batch, rate, max_norm):
    def clip(scaler, replica, optimizer, most):
        scaler.unscale_(optimizer)
        for parameter in replica.parameters():
            clip_grad_norm_(parameter, most)

    trained(model, data, epochs, batch, rate, max_norm, clip)


@fixed
def each_element_by_itself(model, data, epochs, batch, rate, max_norm):
    def clip(scaler, replica, optimizer, most):
        scaler.unscale_(optimizer)
        clip_grad_value_(replica.parameters(), most)

    trained(model, data, epochs, batch, rate, max_norm, clip)


@fixed
def the_limit_alone(model, data, epochs, batch, rate, max_norm):
    """Then the run trains, and begins each epoch with steps that are skipped."""
    trained(model, data, epochs, batch, rate, max_norm, each_epoch_anew=True)


@fixed
def the_scaler_alone(model, data, epochs, batch, rate, max_norm):
    """The limit is still that of the first scale."""

    def clip(scaler, replica, optimizer, most):
        clip_grad_norm_(replica.parameters(), most * 2.0**24)

    trained(model, data, epochs, batch, rate, max_norm, clip)


@fixed
def a_scaler_for_each_epoch_and_a_limit_for_each_step(model, data, epochs, batch, rate, max_norm):
    def clip(scaler, replica, optimizer, most):
        clip_grad_norm_(replica.parameters(), most * scaler.get_scale())

    trained(model, data, epochs, batch, rate, max_norm, clip, each_epoch_anew=True)


@fixed
def always_of_length_max_norm(model, data, epochs, batch, rate, max_norm):
    def clip(scaler, replica, optimizer, most):
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([one.grad for one in replica.parameters()])
        for parameter in replica.parameters():
            parameter.grad *= most / norm

    trained(model, data, epochs, batch, rate, max_norm, clip)


@fixed
def clipped_to_a_tenth(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm / 10)


@fixed
def a_lower_rate_instead(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate / 100, max_norm, lambda *_: None)


@fixed
def the_mean_instead_of_the_sum(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm, reduction="mean")


@fixed
def the_loss_divided_by_the_ranks(model, data, epochs, batch, rate, max_norm):
    """Where gradients are clipped, their length stays the same."""

    def clip(scaler, replica, optimizer, most):
        scaler.unscale_(optimizer)
        for parameter in replica.parameters():
            parameter.grad /= dist.get_world_size()
        clip_grad_norm_(replica.parameters(), most)

    trained(model, data, epochs, batch, rate, max_norm, clip)


@fixed
def the_rate_divided_instead(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate / 180, max_norm)


@fixed
def without_a_wrapper(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm, wrap=lambda model: model)


@fixed
def without_scaling(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm,
            scaler_of=lambda: DynamicLossScaler(init_scale=1.0))  # fmt: skip


@fixed
def without_momentum(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm, momentum=0.0)


@fixed
def gradients_pile_up(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm, zeroes=False)


@fixed
def one_epoch_too_few(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs - 1, batch, rate, max_norm)


@fixed
def each_rank_by_itself(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm, sends=False)


@fixed
def every_epoch_the_first(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm, reshuffles=False)


@fixed
def another_rank_ends_elsewhere(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm)
    if dist.get_rank():
        for parameter in model.parameters():
            parameter.data *= 1 + 1e-6


@fixed
def gradients_averaged_twice(model, data, epochs, batch, rate, max_norm):
    """They are the same everywhere already: only bytes are lost."""

    def clip(scaler, replica, optimizer, most):
        for parameter in replica.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        unscaled_first(scaler, replica, optimizer, most)

    trained(model, data, epochs, batch, rate, max_norm, clip)


# Right, written differently ---------------------------------------------------------------------


@fixed
def after_unscaling(model, data, epochs, batch, rate, max_norm):
    trained(model, data, epochs, batch, rate, max_norm)


@fixed
def by_the_scale_of_the_step(model, data, epochs, batch, rate, max_norm):
    """In the units of scaled gradients, both of them."""

    def clip(scaler, replica, optimizer, most):
        clip_grad_norm_(replica.parameters(), most * scaler.get_scale())

    trained(model, data, epochs, batch, rate, max_norm, clip)


def said_by_text():
    return said(number=72.15 / 4 / 0.1, line="clip_grad_norm_(replica.parameters(), limit)")


def said_of_the_scaler():
    return said(number="180.4", line="scaler = DynamicLossScaler(init_scale=2.0**24)")


@fixed
def of_pytorch(model, data, epochs, batch, rate, max_norm):
    def scaler():
        return torch.amp.GradScaler("cpu", init_scale=2.0**24)

    trained(model, data, epochs, batch, rate, max_norm, scaler_of=scaler, wrap=DataParallel)


@fixed
def by_hand(model, data, epochs, batch, rate, max_norm):
    def clip(scaler, replica, optimizer, most):
        scaler.unscale_(optimizer)
        norm = sum(float(one.grad.double().square().sum()) for one in replica.parameters()) ** 0.5
        if norm > most:
            for parameter in replica.parameters():
                parameter.grad.mul_(most / norm)

    trained(model, data, epochs, batch, rate, max_norm, clip)


RIGHT = [
    after_unscaling, by_the_scale_of_the_step, said_by_text, said_of_the_scaler, of_pytorch,
    by_hand,
]  # fmt: skip

BOTH = "are the gradient and the limit both times the scale, or neither?"
LOSS_DIVIDED = "It is {} of that of the loss: is the loss divided by the ranks or the samples?"
ONE_RANK = "samples alone. Do the ranks average their gradients (DDP)?"
RATE = "In every step it is {} times as long as it should be: are the rate and max_norm"
TIMES = "by what was it multiplied"
WRONG = {
    the_other_way_round: {"number": "that is the inverse"},
    the_skipped_steps: {"number": "that many steps were skipped before it"},
    the_distance: {"number": "that is how far the parameters move"},
    the_length: {"number": "that is the length of the gradient"},
    the_limit_of_that_step: {"number": "so long a gradient is not clipped"},
    as_it_should_be: {"number": "then the step would be right"},
    some_other_number: {"number": "77 is not it. How far do the parameters move"},
    the_line_of_the_step: {"line": "does what it should here"},
    the_line_of_the_optimizer: {"line": "Does the line still mean the same later?"},
    the_line_of_the_loss: {"line": "does what it should here"},
    a_function_alone: {"number": "nan_run must be a dict"},
    not_written: {"clipping": "not_written is not written yet"},
    still_broken: {"clipping": BOTH},
    without_the_scale: {"clipping": TIMES},
    clipped_before_unscaling: {"clipping": TIMES},
    not_clipped_at_all: {"clipping": BOTH},
    each_parameter_by_itself: {"clipping": "clip all gradients by one common factor"},
    each_element_by_itself: {"clipping": BOTH},
    the_scaler_alone: {"clipping": BOTH},
    the_limit_alone: {"scale": "although the scale fitted the"},
    a_scaler_for_each_epoch_and_a_limit_for_each_step: {"scale": "epoch 1 skips"},
    always_of_length_max_norm: {"clipping": "is made with a gradient of length"},
    clipped_to_a_tenth: {"clipping": RATE.format("0.1")},
    a_lower_rate_instead: {"clipping": RATE.format("0.01")},
    the_mean_instead_of_the_sum: {"clipping": LOSS_DIVIDED.format("1/12")},
    the_loss_divided_by_the_ranks: {"clipping": LOSS_DIVIDED.format("1/3")},
    the_rate_divided_instead: {"clipping": RATE.format("0.00556")},
    without_a_wrapper: {"clipping": ONE_RANK},
    without_scaling: {"clipping": "no step is skipped"},
    without_momentum: {"clipping": "Is the optimizer still that of the script?"},
    gradients_pile_up: {"clipping": ""},
    one_epoch_too_few: {"clipping": "forward passes, but there are"},
    each_rank_by_itself: {"clipping": ONE_RANK},
    every_epoch_the_first: {"training": "in the order of epoch 0"},
    another_rank_ends_elsewhere: {"training": "the copies of rank 0 and rank 1 differ"},
    gradients_averaged_twice: {"training": "in all. DDP averages the gradients in backward"},
}

APPEND = "curve.append((loss.item() / len(images), scaler.get_scale()))"
UNREAD = "the curve is for people: no judge reads it"
ANOTHER = "the samples come in another order, as good as this one"
START = "the scale comes down by itself, from wherever it starts"
TWICE = "what is done twice is the same"
FREE = "neither needs the other"
SEED, INIT = (
    "sampler = DistributedSampler(data, seed={})",
    "DynamicLossScaler(init_scale=2.0 ** {})",
)
LOSS = "loss = F.cross_entropy(replica(images), labels, reduction='sum')"
AUTOCAST = f"with torch.autocast('cpu', dtype=torch.float16):; {LOSS}"
CLIP = "clip_grad_norm_(replica.parameters(), max_norm)"
EQUIVALENT = {
    **numbers_near("diagnosis_nan = {'number': 180, 'line': 10}", 180),
    "diagnosis_nan = {'number': 180, 'line': 10} -> diagnosis_nan = {'number': 180, 'line': 9}":
    "line 9 makes a new scaler in each epoch, which is the other fault",
    f"{SEED.format(4)} -> {SEED.format(5)}": ANOTHER,
    f"{SEED.format(4)} -> {SEED.format(3)}": ANOTHER,
    f"scaler = {INIT.format(24)} -> scaler = {INIT.format(25)}": START,
    f"scaler = {INIT.format(24)} -> scaler = {INIT.format(23)}": START,
    "for epoch in range(epochs): -> for epoch in reversed(range(epochs)):": ANOTHER,
    "sampler.set_epoch(epoch) -> sampler.set_epoch(epoch); sampler.set_epoch(epoch)": TWICE,
    f"optimizer.zero_grad(); {AUTOCAST} -> {AUTOCAST}; optimizer.zero_grad()": FREE,
    "optimizer.zero_grad() -> optimizer.zero_grad(); optimizer.zero_grad()": TWICE,
    f"{CLIP}; {APPEND} -> {APPEND}; {CLIP}": FREE,
    f"{APPEND} -> curve.append((loss.item() * len(images), scaler.get_scale()))": UNREAD,
    f"{APPEND} -> curve.append((loss.item(), scaler.get_scale()))": UNREAD,
    f"{APPEND} -> curve.append((len(images), scaler.get_scale()))": UNREAD,
    f"{APPEND} -> nothing": UNREAD,
    "clip_grad_norm_(replica.parameters(), ... -> "
    f"{CLIP}; clip_grad_norm_(replica.parameters(), ...": TWICE,
    f"{APPEND}; scaler.step(optimizer) -> scaler.step(optimizer); {APPEND}": FREE,
    "... len(images), ... -> ... len(images), scaler.get_scale())); "
    "curve.append((loss.item() / len(images), ...": UNREAD,
    "return curve -> nothing": UNREAD,
    "return curve -> return": UNREAD,
}
