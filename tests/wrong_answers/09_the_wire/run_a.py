"""Answers to 09/run_a: an input pipeline that reads too much, and one sample after the other.

An answer is a function without arguments that returns what is handed in.
"""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import torch
import torch.distributed as dist

from dtlab.units.unit09.runs_scripts import feed

SAID = {"number": 2, "line": 9}


def own(number, batch):
    """The samples of this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return range(number * batch * ranks + rank, (number + 1) * batch * ranks, ranks)


def everything(number, batch):
    ranks = dist.get_world_size()
    return range(number * batch * ranks, (number + 1) * batch * ranks)


def in_one_piece(number, batch):
    first = (number * dist.get_world_size() + dist.get_rank()) * batch
    return range(first, first + batch)


def all_workers(pool, read, numbers):
    return list(pool.map(read, numbers))


def one_worker(pool, read, numbers):
    return [pool.submit(read, number).result() for number in numbers]


def fed(read, step, steps, batch, workers, numbers=own, reads=all_workers, keep=None):
    """As in the program; `keep` picks the samples of this rank from those that are read."""
    pool, ahead = ThreadPoolExecutor(workers), ThreadPoolExecutor(1)

    def load(number):
        samples = torch.stack(reads(pool, read, numbers(number, batch)))
        return keep(samples) if keep else samples

    coming = ahead.submit(load, 0)
    for number in range(steps):
        samples = coming.result()
        if number + 1 < steps:
            coming = ahead.submit(load, number + 1)
        step(samples)


def ahead_by(batches, read, step, steps, batch, workers):
    """Before a step, this many batches after it are asked for."""
    pool, ahead, coming = ThreadPoolExecutor(workers), ThreadPoolExecutor(1), []
    for number in range(steps):
        while len(coming) < min(number + 1 + batches, steps):
            coming.append(ahead.submit(all_workers, pool, read, own(len(coming), batch)))
        step(torch.stack(coming[number].result()))


def of_this_rank(samples):
    return samples[dist.get_rank() :: dist.get_world_size()]


def fixed(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "fixed": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "fixed": fed}


# Wrong ------------------------------------------------------------------------------------------


def all_that_it_reads():
    return said(number=48)


def what_it_needs():
    return said(number=1)


def upside_down():
    return said(number=0.5)


def the_line_of_the_pool():
    return said(line=4)


def the_line_of_the_result():
    return said(line="samples = coming.result()")


def a_function_alone():
    return fed


@fixed
def not_written(*arguments):
    raise NotImplementedError()


@fixed
def still_broken(*arguments):
    feed(*arguments)


@fixed
def only_the_samples(*arguments):
    fed(*arguments, reads=one_worker)


@fixed
def only_the_workers(*arguments):
    fed(*arguments, numbers=everything, keep=of_this_rank)


@fixed
def more_workers(read, step, steps, batch, workers):
    """The remedy that does not help: each of them still waits for the one before it."""
    fed(read, step, steps, batch, 4 * workers, reads=one_worker)


@fixed
def the_same_on_every_rank(*arguments):
    fed(*arguments, numbers=lambda number, batch: everything(number, batch)[:batch])


@fixed
def the_same_batch_again(*arguments):
    fed(*arguments, numbers=lambda number, batch: own(0, batch))


@fixed
def the_whole_batch(*arguments):
    """Each rank trains on all samples."""
    fed(*arguments, numbers=everything)


@fixed
def one_step_less(read, step, steps, batch, workers):
    fed(read, step, steps - 1, batch, workers)


@fixed
def read_twice(*arguments):
    def reads(pool, read, numbers):
        read(numbers[0])
        return all_workers(pool, read, numbers)

    fed(*arguments, reads=reads)


@fixed
def not_ahead(read, step, steps, batch, workers):
    pool = ThreadPoolExecutor(workers)
    for number in range(steps):
        step(torch.stack(all_workers(pool, read, own(number, batch))))


@fixed
def asked_for_too_late(read, step, steps, batch, workers):
    """The next batch is asked for after the step."""
    pool, ahead = ThreadPoolExecutor(workers), ThreadPoolExecutor(1)
    for number in range(steps):
        coming = ahead.submit(all_workers, pool, read, own(number, batch))
        step(torch.stack(coming.result()))


@fixed
def all_batches_at_first(read, step, steps, batch, workers):
    pool = ThreadPoolExecutor(workers)
    batches = [pool.map(read, own(number, batch)) for number in range(steps)]
    for samples in [torch.stack(list(samples)) for samples in batches]:
        step(samples)


@fixed
def all_loads_at_first(read, step, steps, batch, workers):
    """The thread gets every batch of the run before the first step."""
    pool, ahead = ThreadPoolExecutor(workers), ThreadPoolExecutor(1)
    coming = [ahead.submit(all_workers, pool, read, own(n, batch)) for n in range(steps)]
    for samples in coming:
        step(torch.stack(samples.result()))


@fixed
def three_more_in_each_step(read, step, steps, batch, workers):
    """The lead grows from step to step."""
    pool, ahead, coming = ThreadPoolExecutor(workers), ThreadPoolExecutor(1), []
    for number in range(steps):
        while len(coming) < min(3 * number + 3, steps):
            coming.append(ahead.submit(all_workers, pool, read, own(len(coming), batch)))
        step(torch.stack(coming[number].result()))


@fixed
def four_ahead(*arguments):
    ahead_by(4, *arguments)


# Right, written differently ---------------------------------------------------------------------


@fixed
def both_lines(*arguments):
    fed(*arguments)


@fixed
def in_pieces(*arguments):
    """Each rank has a piece of the batch."""
    fed(*arguments, numbers=in_one_piece)


@fixed
def with_a_queue(read, step, steps, batch, workers):
    """A thread puts two batches ahead into a queue; reads begin before their results are due."""
    queue, pool = Queue(1), ThreadPoolExecutor(workers)

    def load():
        for number in range(steps):
            reads = [pool.submit(read, each) for each in own(number, batch)]
            queue.put(torch.stack([each.result() for each in reads]))

    threading.Thread(target=load, daemon=True).start()
    for _ in range(steps):
        step(queue.get())


@fixed
def three_ahead(*arguments):
    ahead_by(3, *arguments)


def text_of_a_line():
    return said(line="return torch.stack(whole)[rank::ranks]", number="2")


RIGHT = [both_lines, in_pieces, with_a_queue, three_ahead, text_of_a_line]

WRONG = {
    all_that_it_reads: {"number": "Divide them by those that it trains on"},
    what_it_needs: {"number": "What does it read?"},
    upside_down: {"number": "upside down"},
    the_line_of_the_pool: {"line": "does what it should here"},
    the_line_of_the_result: {"line": "does what it should here"},
    a_function_alone: {"number": "must be a dict"},
    not_written: {"batches": "not written yet"},
    still_broken: {"reads": "reads 96 samples and trains on 48", "workers": "more than 1 read"},
    only_the_samples: {"workers": "What do the other workers wait for?"},
    only_the_workers: {"reads": "What happens to the others?"},
    more_workers: {"workers": "more than 1 read"},
    the_same_on_every_rank: {"batches": "different samples, but not on"},
    the_same_batch_again: {"batches": "in step 1", "ahead": "nothing of the next batch"},
    the_whole_batch: {"batches": "calls step with"},
    one_step_less: {"batches": "calls step with", "ahead": "nothing of the next batch"},
    read_twice: {"reads": "What happens to the others?"},
    not_ahead: {"ahead": "nothing of the next batch during step 0"},
    asked_for_too_late: {"ahead": "nothing of the next batch during step 0"},
    all_batches_at_first: {"ahead": "batches ahead of the step"},
    all_loads_at_first: {"ahead": "batches ahead of the step"},
    three_more_in_each_step: {"ahead": "batches ahead of the step"},
    four_ahead: {"ahead": "reads 4 batches ahead of the step"},
}


# Mutants that no check can tell from the solution ------------------------------------------------

_LINE = "this line belongs to the faults, too"
_DIAGNOSIS = "diagnosis_feed = {'number': 2, 'line': 9} -> diagnosis_feed = {'number': 2, 'line': "

EQUIVALENT = {
    f"{_DIAGNOSIS}10}}": _LINE,
    f"{_DIAGNOSIS}8}}": _LINE,
    "pool, ahead = (ThreadPoolExecutor(workers), ThreadPoolExecutor(1)) -> "
    "pool, ahead = (ThreadPoolExecutor(workers), ThreadPoolExecutor(2))": (
        "only one batch is loaded at a time"
    ),
}
