"""Answers to 05/run_a: an optimizer over stale parameters, and gradients reduced too early.

An answer is a function without arguments that returns what is handed in.
"""

import functools

import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import SGD

from dtlab.parallel.data import DataParallel
from dtlab.parallel.zero import Zero3
from dtlab.units.unit05.runs_scripts import Layer, train_a
from tests.wrong_answers.diagnoses import numbers_near

SAID = {"number": 110248, "line": 6}


def sharded(model, **more):
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, **more)
    return model


def trained(
    model, batches, wrap=sharded, early=False, syncs=lambda number: number == 1, parts=2,
    rate=0.1, scale=None, zeroes=True, after=lambda model: None,
):  # fmt: skip
    """`early`: the optimizer is made before the model is sharded."""
    optimizer = SGD(model.parameters(), lr=rate) if early else None
    wrapped = wrap(model)
    optimizer = optimizer or SGD(wrapped.parameters(), lr=rate)
    losses, kept = [], []
    for images, labels in batches:
        if zeroes:
            optimizer.zero_grad()
        total = 0.0
        pairs = zip(images.chunk(parts), labels.chunk(parts), strict=True)
        for number, (some, wanted) in enumerate(pairs):
            if wrap is sharded:
                wrapped.set_requires_gradient_sync(syncs(number))
            loss = F.cross_entropy(wrapped(some), wanted) / (scale or parts)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
        kept.append(after(wrapped))
    return losses


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": trained}


# Wrong ------------------------------------------------------------------------------------------


def all_that_is_held():
    return said(number=220496)


def pieces_alone_are_right():
    return said(number=165372)


def a_ranks_part():
    return said(number=55124)


def elements():
    return said(number=27562)


def the_line_that_clears():
    return said(line="optimizer.zero_grad()")


def the_line_that_shards():
    return said(line=8)


def no_such_line():
    return said(line=40)


def a_function_alone():
    return trained


@fixed
def not_written(model, batches):
    raise NotImplementedError()


@fixed
def still_broken(model, batches):
    return train_a(model, batches)


@fixed
def the_optimizer_alone(model, batches):
    """What is reduced in a step is the first half of its batch, and the second of the last one."""
    return trained(model, batches, syncs=lambda number: number % 2 == 0)


@fixed
def the_microbatches_alone(model, batches):
    """Gradients are right, and reach no parameter that is stepped."""
    return trained(model, batches, early=True)


@fixed
def never_reduced(model, batches):
    return trained(model, batches, syncs=lambda number: False)


@fixed
def reduced_twice(model, batches):
    """As without `set_requires_gradient_sync`."""
    return trained(model, batches, syncs=lambda number: True)


@fixed
def the_whole_batch_at_once(model, batches):
    return trained(model, batches, parts=1, syncs=lambda number: True)


@fixed
def whole_parameters_are_kept(model, batches):
    return trained(
        model, batches, after=lambda model: [one.full_tensor() for one in model.parameters()]
    )


@fixed
def not_sharded_any_more(model, batches):
    """DDP with one reduction for each batch, and so in one piece."""
    return trained(model, batches, wrap=DataParallel, parts=1)


@fixed
def losses_not_halved(model, batches):
    return trained(model, batches, scale=1)


@fixed
def gradients_pile_up(model, batches):
    return trained(model, batches, zeroes=False)


@fixed
def another_rate(model, batches):
    return trained(model, batches, rate=0.05)


@fixed
def a_batch_too_few(model, batches):
    return trained(model, list(batches)[:-1])


# Right ------------------------------------------------------------------------------------------


@fixed
def the_last_one_reduces(model, batches):
    return trained(model, batches)


@fixed
def odd_ones_reduce(model, batches):
    return trained(model, batches, syncs=lambda number: number % 2 == 1)


@fixed
def in_four_parts(model, batches):
    return trained(model, batches, parts=4, syncs=lambda number: number == 3)


@fixed
def by_our_own(model, batches):
    wrapped = Zero3(model, blocks=Layer)
    optimizer = SGD(wrapped.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        (first, second), (of_first, of_second) = images.chunk(2), labels.chunk(2)
        with wrapped.no_sync():
            loss = F.cross_entropy(wrapped(first), of_first) / 2
            loss.backward()
        other = F.cross_entropy(wrapped(second), of_second) / 2
        other.backward()
        optimizer.step()
        losses.append(loss.item() + other.item())
    return losses


def the_other_line():
    return said(number="110248", line="model.set_requires_gradient_sync(number % 2 == 0)")


RIGHT = [the_last_one_reduces, odd_ones_reduce, in_four_parts, by_our_own, the_other_line]

WRONG = {
    all_that_is_held: {"number": "Its pieces and their gradients belong there"},
    pieces_alone_are_right: {"number": "Which gradients must it hold?"},
    a_ranks_part: {"number": "the size of a rank's pieces"},
    elements: {"number": "those are elements"},
    the_line_that_clears: {"line": "does what it should here"},
    the_line_that_shards: {"line": "does what it should here"},
    no_such_line: {"line": "has no line 40"},
    a_function_alone: {"number": "run_a must be a dict"},
    not_written: {"steps": "not_written is not written yet"},
    still_broken: {"steps": "have the same values", "held": "What else is there?"},
    the_optimizer_alone: {"held": "What else is there?", "training": "returns the losses"},
    the_microbatches_alone: {"steps": "have the same values"},
    never_reduced: {"steps": "have the same values", "held": "What else is there?"},
    reduced_twice: {"training": "Reduce each gradient once in a step"},
    the_whole_batch_at_once: {"training": "computes 8 samples at once"},
    whole_parameters_are_kept: {"held": "What else is there?"},
    not_sharded_any_more: {"held": "100% of the model is whole", "training": "samples at once"},
    losses_not_halved: {"training": "Change only what is broken"},
    gradients_pile_up: {"training": "Change only what is broken"},
    another_rate: {"training": "Change only what is broken"},
    a_batch_too_few: {"training": "returns the losses"},
}

_IMPORT = "from torch.distributed.fsdp import fully_shard"
_MESH = "mesh = init_device_mesh('cpu', (dist.get_world_size(),))"
_CLEARED, _NOTED, _STEP = "optimizer.zero_grad()", "losses.append(total)", "optimizer.step()"
_SYNC = "model.set_requires_gradient_sync(number == 1)"
_LOSS = "loss = F.cross_entropy(model(half), labels.chunk(2)[number]) / 2"
_BACK, _SUM, _FREE = "loss.backward()", "total += loss.item()", "neither needs the other"
EQUIVALENT = {
    **numbers_near("diagnosis_a = {'number': 110248, 'line': 6}", 110248),
    f"{_IMPORT}; {_MESH} -> {_MESH}; {_IMPORT}": _FREE,
    f"{_CLEARED}; total = 0.0 -> total = 0.0; {_CLEARED}": _FREE,
    f"{_CLEARED} -> {_CLEARED}; {_CLEARED}": "what is cleared twice is clear",
    f"{_SYNC}; {_LOSS} -> {_LOSS}; {_SYNC}": "it takes effect in backward",
    "model.set_requires_gradient_sync(number ... -> "
    f"{_SYNC}; model.set_requires_gradient_sync(number ...": "what is set twice is set",
    f"{_BACK}; {_SUM} -> {_SUM}; {_BACK}": _FREE,
    f"{_SUM} -> total = total + loss.item()": "a Python number has no memory that is shared",
    f"{_STEP}; {_NOTED} -> {_NOTED}; {_STEP}": _FREE,
    f"{_NOTED} -> {_NOTED}; for images, labels in batches:; ...": "batches come once only",
}
