"""Answers to 02/script_4: one rank has more batches than another, and waits for ever.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. An answer is a function without arguments that returns what is handed in.
"""

import contextlib
import functools
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset

from dtlab.parallel.data import DataParallel
from dtlab.training.accumulation import accumulate
from tests.wrong_answers.changed_scripts import (
    ANOTHER_ORDER,
    EPOCHS_BACKWARDS,
    OTHER_BATCHES,
    changes_of_losses,
    cleared_later,
    neighbours,
)

SAID = {"symptom": "hang", "line": 10}


def mended(fn):
    """The right diagnosis, and this function."""
    return functools.wraps(fn)(lambda: {"diagnosis": SAID, "mended": fn})


def said(**diagnosis):
    """The right diagnosis but for this, and a function that is right."""
    return {"diagnosis": {**SAID, **diagnosis}, "mended": joined}


def shuffled(shard, **options):
    order = torch.Generator().manual_seed(4)
    return DataLoader(shard, batch_size=8, shuffle=True, generator=order, **options)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(optimizer, net, images, labels):
    optimizer.zero_grad()
    F.cross_entropy(net(images), labels).backward()
    optimizer.step()


def most(number, op=dist.ReduceOp.MAX):
    """The largest of the ranks' numbers."""
    both = torch.tensor(number)
    dist.all_reduce(both, op=op)
    return int(both)


def trained(model, epochs, batches_of, wrap=DataParallel):
    """SGD on the batches of each epoch."""
    net, optimizer = wrap(model), sgd(model)
    for epoch in range(epochs):
        for images, labels in batches_of(epoch):
            step(optimizer, net, images, labels)


def joined(model, shard, epochs, wrap=DataParallel, **options):
    loader, net, optimizer = shuffled(shard), wrap(model), sgd(model)
    for _ in range(epochs):
        with net.join(**options):
            for images, labels in loader:
                step(optimizer, net, images, labels)


# Wrong: the diagnosis ---------------------------------------------------------------------------


def says_drift():
    return said(symptom="drift")


def says_wrong_card():
    return said(symptom="wrong card")


def the_line_in_which_it_waits():
    return said(line="loss.backward()")


def the_line_of_the_wrapper():
    return said(line=5)


# Wrong: the function ----------------------------------------------------------------------------


@mended
def still_broken(model, shard, epochs):
    loader = shuffled(shard)
    trained(model, epochs, lambda epoch: loader)


@mended
def a_barrier_after_each_epoch(model, shard, epochs):
    loader, net, optimizer = shuffled(shard), DataParallel(model), sgd(model)
    for _ in range(epochs):
        for images, labels in loader:
            step(optimizer, net, images, labels)
        dist.barrier()


@mended
def without_the_last_batch(model, shard, epochs):
    loader = shuffled(shard, drop_last=True)
    trained(model, epochs, lambda epoch: loader)


@mended
def cut_to_the_shortest(model, shard, epochs):
    loader = shuffled(shard)
    fewest = most(len(loader), dist.ReduceOp.MIN)
    trained(model, epochs, lambda epoch: itertools.islice(loader, fewest))


@mended
def all_stop_with_the_first(model, shard, epochs):
    loader, net, optimizer = shuffled(shard), DataParallel(model), sgd(model)
    for _ in range(epochs):
        batches = iter(loader)
        while True:
            batch = next(batches, None)
            if not most(int(batch is not None), dist.ReduceOp.MIN):
                break
            step(optimizer, net, *batch)


@mended
def shards_cut_to_the_shortest(model, shard, epochs):
    fewest = most(len(shard), dist.ReduceOp.MIN)
    loader = shuffled(Subset(shard, range(fewest)))
    trained(model, epochs, lambda epoch: loader)


@mended
def only_rank_0_trains(model, shard, epochs):
    loader, optimizer = shuffled(shard), sgd(model)
    for images, labels in itertools.chain(*[loader] * epochs) if dist.get_rank() == 0 else ():
        step(optimizer, model, images, labels)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


@mended
def the_rest_is_looked_at_only(model, shard, epochs):
    loader, net, optimizer = shuffled(shard), DataParallel(model), sgd(model)
    fewest = most(len(loader), dist.ReduceOp.MIN)
    for _ in range(epochs):
        for number, (images, labels) in enumerate(loader):
            if number < fewest:
                step(optimizer, net, images, labels)
            else:
                with torch.no_grad():
                    model(images)


@mended
def not_written(model, shard, epochs):
    raise NotImplementedError()


@mended
def the_rest_in_no_sync(model, shard, epochs):
    loader, net, optimizer = shuffled(shard), DataParallel(model), sgd(model)
    fewest = most(len(loader), dist.ReduceOp.MIN)
    for _ in range(epochs):
        for number, (images, labels) in enumerate(loader):
            with net.no_sync() if number >= fewest else contextlib.nullcontext():
                step(optimizer, net, images, labels)


@mended
def round_again_to_the_longest(model, shard, epochs):
    loader = shuffled(shard)
    longest = most(len(loader))

    def of(epoch):
        return itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), longest)

    trained(model, epochs, of)


@mended
def the_last_batch_again(model, shard, epochs):
    loader = shuffled(shard)
    longest = most(len(loader))

    def of(epoch):
        batches = list(loader)
        return batches + batches[-1:] * (longest - len(batches))

    trained(model, epochs, of)


@mended
def who_is_through_makes_no_step(model, shard, epochs):
    loader, net, optimizer = shuffled(shard), DataParallel(model), sgd(model)
    longest = most(len(loader))
    for _ in range(epochs):
        for images, labels in itertools.islice(itertools.chain(loader, empty(shard)), longest):
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels, reduction="sum").div(8).backward()
            if len(images):
                optimizer.step()


@mended
def summed_over_a_batch(model, shard, epochs):
    loader, net, optimizer = shuffled(shard), DataParallel(model), sgd(model)
    for _ in range(epochs):
        with net.join():
            for images, labels in loader:
                optimizer.zero_grad()
                F.cross_entropy(net(images), labels, reduction="sum").backward()
                optimizer.step()


@mended
def parameters_averaged_after_each_epoch(model, shard, epochs):
    DataParallel(model)
    loader, optimizer = shuffled(shard), sgd(model)
    for _ in range(epochs):
        for images, labels in loader:
            step(optimizer, model, images, labels)
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


def empty(shard):
    """Batches of no samples, without end."""
    images, labels = shard[:1]
    return itertools.repeat((images[:0], labels[:0]))


# Right, written differently ---------------------------------------------------------------------


@mended
def joined_in_each_epoch(model, shard, epochs):
    joined(model, shard, epochs)


def said_by_text():
    return said(line="for images, labels in loader", symptom="Hang")


@mended
def joined_once(model, shard, epochs):
    loader, net, optimizer = shuffled(shard), DataParallel(model), sgd(model)
    with net.join():
        for _ in range(epochs):
            for images, labels in loader:
                step(optimizer, net, images, labels)


@mended
def divided_by_those_that_have_a_batch(model, shard, epochs):
    joined(model, shard, epochs, divide_by_initial_world_size=False)


@mended
def pytorchs_wrapper(model, shard, epochs):
    joined(model, shard, epochs, wrap=DDP)


@mended
def batches_of_no_samples(model, shard, epochs):
    loader = shuffled(shard)
    longest = most(len(loader))
    trained(
        model, epochs, lambda _: itertools.islice(itertools.chain(loader, empty(shard)), longest)
    )


@mended
def the_mean_of_all_samples(model, shard, epochs):
    loader, net, optimizer = shuffled(shard), DataParallel(model), sgd(model)
    longest = most(len(loader))

    def loss_sum(net, batch):
        return F.cross_entropy(net(batch[0]), batch[1], reduction="sum")

    for _ in range(epochs):
        for batch in itertools.islice(itertools.chain(loader, empty(shard)), longest):
            optimizer.zero_grad()
            accumulate(net, [batch], loss_sum)
            optimizer.step()


@mended
def as_many_batches_on_every_rank(model, shard, epochs):
    parts, draw = most(-(-len(shard) // 8)), torch.Generator().manual_seed(4)

    def of(epoch):
        order = torch.randperm(len(shard), generator=draw)
        return [shard[part] for part in order.tensor_split(parts)]

    trained(model, epochs, of)


RIGHT = [
    joined_in_each_epoch,
    said_by_text,
    joined_once,
    divided_by_those_that_have_a_batch,
    pytorchs_wrapper,
    batches_of_no_samples,
    the_mean_of_all_samples,
    as_many_batches_on_every_rank,
]

WRONG = {
    says_drift: {"symptom": "the ranks did not finish"},
    says_wrong_card: {"symptom": "no rank asked for a card"},
    the_line_in_which_it_waits: {"line": "runs more often on one rank than on another"},
    the_line_of_the_wrapper: {"line": "runs more often on one rank than on another"},
    still_broken: {"samples": "the ranks did not finish"},
    a_barrier_after_each_epoch: {"samples": "2 ranks"},
    without_the_last_batch: {"samples": "the ranks did not finish"},
    cut_to_the_shortest: {"samples": "The ranks no longer hang"},
    all_stop_with_the_first: {"samples": "rank 1 leaves out"},
    shards_cut_to_the_shortest: {"samples": "each must use all its samples"},
    only_rank_0_trains: {"samples": "rank 1 leaves out"},
    the_rest_is_looked_at_only: {"samples": "rank 1 leaves out"},
    not_written: {"samples": "mended is not written yet"},
    the_rest_in_no_sync: {"training": "Which gradient does each rank step with?"},
    round_again_to_the_longest: {"training": "and they count twice"},
    the_last_batch_again: {"training": "and they count twice"},
    who_is_through_makes_no_step: {"training": "Which gradient does each rank step with?"},
    summed_over_a_batch: {"training": "What does a rank that has no batch left add to the mean"},
    parameters_averaged_after_each_epoch: {
        "training": "What does a rank that has no batch left add to the mean"
    },
}

EQUIVALENT = changes_of_losses(
    "with replica.join():; for images, labels in loader:; ... -> losses.append(total / "
    "len(loader)); with replica.join():; ...",
    "optimizer.step(); total += loss.item() -> total += loss.item(); optimizer.step()",
) | {
    **EPOCHS_BACKWARDS,
    **cleared_later("replica"),
    **neighbours("order = torch.Generator().manual_seed({})", 4, ANOTHER_ORDER),
    **neighbours(
        "... DataLoader(shard, batch_size={}, shuffle=True, generator=order)", 8, OTHER_BATCHES
    ),
}
