"""Answers to 11/killed_job: a program that is killed and started again."""

import functools
from contextlib import suppress

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.parallel.data import DataParallel
from dtlab.training.checkpoint import Samples
from dtlab.training.loss_scaling import DynamicLossScaler
from dtlab.units.unit11.killed_job import Killed
from dtlab.units.unit11.killed_job_script import resumable

SAID = {"number": 5, "line": "torch.manual_seed(100 + rank)"}
PARTS = ("model", "optimizer", "schedule", "scaler", "samples")


# The program, with a function for each thing that can be wrong -----------------------------------


def complete_by_name(disk):
    return [int(name) for name in disk.names() if name.isdigit()]


def smallest(steps):
    newest = torch.tensor(max(steps, default=0))
    dist.all_reduce(newest, dist.ReduceOp.MIN)
    return int(newest)


def rename(disk, step, state):
    disk.save("partial", state)
    disk.rename("partial", str(step))


def directly(disk, step, state):
    disk.save(str(step), state)


def trained(
    *arguments,
    saved=PARTS,
    complete=complete_by_name,
    agree=smallest,
    save=rename,
    number=lambda step: step + 1,
    due=lambda step, every: (step + 1) % every == 0,
    restore=lambda state, rank: torch.set_rng_state(state["random"]),
    seed_again=False,
    before_update=False,
    rate=0.02,
):
    """The fixed program."""
    model, images, labels, disk, steps, every = arguments
    rank, ranks = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    scaler = DynamicLossScaler(2.0**16, growth_interval=3)
    samples = Samples(len(images), 8 * ranks, rank=rank, ranks=ranks)
    every_part = dict(zip(PARTS, (model, optimizer, schedule, scaler, samples), strict=True))
    parts = {name: every_part[name] for name in saved}
    torch.manual_seed(100 + rank)
    begin = agree(complete(disk))
    if begin:
        state = disk.load(str(begin))
        for name, part in parts.items():
            part.load_state_dict(state[name])
        restore(state, rank)
        begin = state["step"]
    if seed_again:
        torch.manual_seed(100 + rank)
    replica = DataParallel(model)

    def save_if_due(step):
        if due(step, every):
            state = {name: part.state_dict() for name, part in parts.items()}
            save(disk, step + 1, state | {"random": torch.get_rng_state(), "step": number(step)})

    for step in range(begin, steps):
        batch = next(samples)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(replica(images[batch]), labels[batch])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        if before_update:
            save_if_due(step)
        scaler.update()
        schedule.step()
        if not before_update:
            save_if_due(step)


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": trained}


# Wrong ------------------------------------------------------------------------------------------


def what_the_newest_would_cost():
    return said(number=1)


def where_it_goes_on():
    return said(number=8)


def all_steps():
    return said(number=13)


def the_line_of_the_data():
    return said(line="batch = next(samples)")


def the_line_of_the_loop():
    return said(line="for step in range(begin, steps):")


def a_function_alone():
    return trained


@fixed
def not_written(*arguments):
    raise NotImplementedError()


@fixed
def still_broken(*arguments):
    resumable(*arguments)


@fixed
def other_rate(*arguments):
    trained(*arguments, rate=0.01)


@fixed
def from_the_beginning(*arguments):
    trained(*arguments, agree=lambda steps: 0)


@fixed
def without_the_optimizer(*arguments):
    trained(*arguments, saved=("model", "schedule", "scaler", "samples"))


@fixed
def without_the_schedule(*arguments):
    trained(*arguments, saved=("model", "optimizer", "scaler", "samples"))


@fixed
def without_the_scaler(*arguments):
    trained(*arguments, saved=("model", "optimizer", "schedule", "samples"))


@fixed
def without_the_samples(*arguments):
    trained(*arguments, saved=("model", "optimizer", "schedule", "scaler"))


@fixed
def without_random_numbers(*arguments):
    trained(*arguments, restore=lambda state, rank: None)


@fixed
def seeded_again(*arguments):
    trained(*arguments, seed_again=True)


@fixed
def random_numbers_of_rank_0(*arguments):
    """As if only rank 0 had saved."""

    def restore(state, rank):
        state = state["random"]
        dist.broadcast(state, 0)
        torch.set_rng_state(state)

    trained(*arguments, restore=restore)


@fixed
def before_the_update(*arguments):
    trained(*arguments, before_update=True)


@fixed
def one_step_again(*arguments):
    trained(*arguments, number=lambda step: step)


@fixed
def one_step_late(*arguments):
    trained(*arguments, due=lambda step, every: step and step % every == 0)


@fixed
def after_every_step(*arguments):
    trained(*arguments, due=lambda step, every: True)


@fixed
def as_text(*arguments):
    def newest(disk):
        return [int(name) for name in sorted(disk.names())[-1:] if name.isdigit()]

    trained(*arguments, complete=newest)


@fixed
def only_the_newest_is_kept(*arguments):
    """What another rank still needs is deleted."""

    def save(disk, step, state):
        rename(disk, step, state)
        for name in [name for name in disk.names() if name != str(step)]:
            disk.remove(name)

    def newest(steps):
        newest = max(steps, default=0)
        least, most = torch.tensor(newest), torch.tensor(newest)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return newest if least == most else 0

    trained(*arguments, save=save, agree=newest)


@fixed
def half_written(*arguments):
    trained(*arguments, save=directly)


@fixed
def own_newest(*arguments):
    trained(*arguments, agree=lambda steps: max(steps, default=0))


@fixed
def newest_of_any(*arguments):
    def largest(steps):
        newest = torch.tensor(max(steps, default=0))
        dist.all_reduce(newest, dist.ReduceOp.MAX)
        return int(newest)

    trained(*arguments, agree=largest)


@fixed
def begins_again_after_a_half(*arguments):
    """A checkpoint that cannot be read means that there is none."""

    def agree(steps):
        newest = max(steps, default=0)
        with suppress(EOFError):
            if newest:
                arguments[3].load(str(newest))
            return smallest([newest])
        return smallest([])

    trained(*arguments, save=directly, agree=agree)


@fixed
def only_rank_0_saves(*arguments):
    def save(disk, step, state):
        if dist.get_rank() == 0:
            rename(disk, step, state)

    def of_rank_0(steps):
        newest = torch.tensor(max(steps, default=0))
        dist.broadcast(newest, 0)
        return int(newest)

    trained(*arguments, save=save, agree=of_rank_0)


@fixed
def a_barrier_in_each_save(*arguments):
    """A rank that is killed in its write never comes to the barrier."""

    def save(disk, step, state):
        disk.save("partial", state)
        dist.barrier()
        disk.rename("partial", str(step))

    trained(*arguments, save=save)


@fixed
def survives(*arguments):
    """Catches what stands for the kill."""
    with suppress(Killed):
        trained(*arguments, agree=lambda steps: 0)


# Right, written differently ---------------------------------------------------------------------


@fixed
def by_name(*arguments):
    trained(*arguments)


@fixed
def by_reading(*arguments):
    """Files that cannot be read do not count, and ranks compare all of their steps."""

    def readable(disk):
        steps = []
        for name in disk.names():
            with suppress(EOFError):
                steps.append(disk.load(name)["step"])
        return steps

    def on_all(steps):
        lists = [None] * dist.get_world_size()
        dist.all_gather_object(lists, steps)
        return max(set.intersection(*map(set, lists)), default=0)

    trained(*arguments, complete=readable, agree=on_all, save=directly)


@fixed
def two_are_kept(*arguments):
    def save(disk, step, state):
        disk.save(f"{step}.partial", state)
        disk.rename(f"{step}.partial", str(step))
        for old in sorted(complete_by_name(disk))[:-2]:
            disk.remove(str(old))

    trained(*arguments, save=save)


def text_of_a_line():
    return said(number="5", line="schedule.step()")


RIGHT = [by_name, by_reading, two_are_kept, text_of_a_line]

WRONG = {
    what_the_newest_would_cost: {"number": "What does it load?"},
    where_it_goes_on: {"number": "How many had been done before?"},
    all_steps: {"number": "Which of them count?"},
    the_line_of_the_data: {"line": "does what it should here"},
    the_line_of_the_loop: {"line": "does what it should here"},
    a_function_alone: {"number": "must be a dict"},
    not_written: {"training": ""},
    still_broken: {
        "exact": "its random numbers are others",
        "newest": "The newest one that all ranks have",
        "torn": "is only half-written",
    },
    other_rate: {"training": "its parameters are others before it"},
    from_the_beginning: {"newest": "goes on from step 0"},
    without_the_optimizer: {"exact": "its parameters are others"},
    without_the_schedule: {"exact": "parameters are others"},
    without_the_scaler: {"exact": "its parameters are others"},
    without_the_samples: {"exact": "it trains on other samples"},
    without_random_numbers: {"exact": "its random numbers are others"},
    seeded_again: {"exact": "its random numbers are others"},
    random_numbers_of_rank_0: {"exact": "then differs from the run"},
    before_the_update: {"exact": "its parameters are others"},
    one_step_again: {"exact": "it trains on other samples", "newest": "goes on from step 1"},
    one_step_late: {"newest": "", "torn": ""},
    after_every_step: {"newest": "not more often"},
    as_text: {"newest": "goes on from step"},
    only_the_newest_is_kept: {"newest": "goes on from step 0"},
    half_written: {"torn": "only half-written"},
    own_newest: {"torn": "Do all ranks go on from the same step?"},
    newest_of_any: {"torn": "KeyError"},
    begins_again_after_a_half: {"newest": "goes on from step 0"},
    only_rank_0_saves: {"exact": "", "torn": ""},
    a_barrier_in_each_save: {"torn": "does a rank wait, while it saves"},
    survives: {"newest": "goes on from step 0"},
}


# Mutants that no check can tell from the solution ------------------------------------------------

_ORDER = "neither statement reads what the other one changes"
_AGAIN = "the second time changes nothing"
_ANY_ORDER = "the order does not matter"
_PARTS = (
    "parts = {'model': model, 'optimizer': optimizer, 'schedule': schedule, 'scaler': scaler, "
    "'samples': samples}"
)
_SEED, _LOAD = "torch.manual_seed(100 + rank)", "part.load_state_dict(state[name])"
_COMPLETE = "complete = [int(name) for name in disk.names() if name != 'partial']"
_EACH = "for name, part in parts.items():"
_RESTORE = "torch.set_rng_state(state['random'])"
_AGREE = "dist.all_reduce(newest, dist.ReduceOp.MIN)"
_NEXT, _ZERO = "batch = next(samples)", "optimizer.zero_grad()"
_FORWARD = (
    "with torch.autocast('cpu', torch.float16):; "
    "loss = F.cross_entropy(replica(images[batch]), labels[batch])"
)

EQUIVALENT = {
    f"{_PARTS}; {_SEED} -> {_SEED}; {_PARTS}": _ORDER,
    f"{_SEED}; {_COMPLETE} -> {_COMPLETE}; {_SEED}": _ORDER,
    f"{_COMPLETE} -> {_COMPLETE.replace('disk.names()', 'reversed(disk.names())')}": _ANY_ORDER,
    f"{_SEED} -> {_SEED}; {_SEED}": _AGAIN,
    f"{_AGREE} -> {_AGREE}; {_AGREE}": _AGAIN,
    "if begin:; state = disk.load(str(begin)); ... -> replica = DataParallel(model); if begin:; "
    "...": "parameters are loaded in place, and are those of step `begin` on all ranks",
    f"{_EACH} -> for name, part in reversed(parts.items()):": _ANY_ORDER,
    f"{_EACH}; {_LOAD}; {_RESTORE} -> {_RESTORE}; {_EACH}; {_LOAD}": _ORDER,
    f"{_LOAD} -> {_LOAD}; {_LOAD}": _AGAIN,
    f"{_LOAD} -> {_LOAD}; {_EACH}; {_LOAD}": _AGAIN,
    f"{_RESTORE} -> {_RESTORE}; {_RESTORE}": _AGAIN,
    f"{_NEXT}; {_ZERO} -> {_ZERO}; {_NEXT}": _ORDER,
    f"{_ZERO}; {_FORWARD} -> {_FORWARD}; {_ZERO}": _ORDER,
    f"{_ZERO} -> {_ZERO}; {_ZERO}": _AGAIN,
    "scaler.update(); schedule.step() -> schedule.step(); scaler.update()": _ORDER,
    "... part.state_dict() for name, part in parts.items()} -> "
    "... part.state_dict() for name, part in reversed(parts.items())}": _ANY_ORDER,
}
