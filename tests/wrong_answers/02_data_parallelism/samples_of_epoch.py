"""Answers to 02/samples_of_epoch: mistakes people make, and right answers written differently."""

import random
from math import ceil

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


def shuffled(num_samples, seed):
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).tolist()


def own_part(order):
    return order[dist.get_rank() :: dist.get_world_size()]


def in_batches(samples, num_samples, batch_size):
    """As many batches as the rank with the most samples needs."""
    steps = ceil(ceil(num_samples / dist.get_world_size()) / batch_size)
    return [batch.tolist() for batch in torch.as_tensor(samples).tensor_split(steps)]


# Wrong ------------------------------------------------------------------------------


def filled_up_with_repeats(num_samples, batch_size, epoch, seed=0):
    order = shuffled(num_samples, seed + epoch)
    order += order[: -num_samples % dist.get_world_size()]
    return in_batches(own_part(order), num_samples, batch_size)


def pytorchs_sampler(num_samples, batch_size, epoch, seed=0):
    sampler = DistributedSampler(range(num_samples), seed=seed)
    sampler.set_epoch(epoch)
    return in_batches(list(sampler), num_samples, batch_size)


def rest_dropped(num_samples, batch_size, epoch, seed=0):
    size = dist.get_world_size()
    order = shuffled(num_samples, seed + epoch)[: num_samples // size * size]
    return in_batches(own_part(order), num_samples, batch_size)


def everybody_takes_all(num_samples, batch_size, epoch, seed=0):
    order = shuffled(num_samples, seed + epoch)
    return [order[start : start + batch_size] for start in range(0, num_samples, batch_size)]


def another_order_on_each_rank(num_samples, batch_size, epoch, seed=0):
    order = shuffled(num_samples, seed + epoch + dist.get_rank())
    return in_batches(own_part(order), num_samples, batch_size)


def drawn_from_the_global_state(num_samples, batch_size, epoch, seed=0):
    return in_batches(own_part(torch.randperm(num_samples).tolist()), num_samples, batch_size)


def order_of_the_first_rank(num_samples, batch_size, epoch, seed=0):
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch))
    dist.broadcast(order, 0)
    return in_batches(own_part(order), num_samples, batch_size)


def begins_with_the_second_sample(num_samples, batch_size, epoch, seed=0):
    order = shuffled(num_samples, 1000 * seed + epoch)
    part = order[dist.get_rank() + 1 :: dist.get_world_size()]
    return in_batches(part, num_samples, batch_size)


def counts_from_one(num_samples, batch_size, epoch, seed=0):
    order = [one + 1 for one in shuffled(num_samples, seed + epoch)]
    return in_batches(own_part(order), num_samples, batch_size)


def without_batches(num_samples, batch_size, epoch, seed=0):
    return own_part(shuffled(num_samples, seed + epoch))


def last_batch_dropped(num_samples, batch_size, epoch, seed=0):
    own = own_part(shuffled(num_samples, seed + epoch))
    steps = len(own) // batch_size
    return [own[step * batch_size : (step + 1) * batch_size] for step in range(steps)]


def as_many_batches_as_the_own_part_takes(num_samples, batch_size, epoch, seed=0):
    own = own_part(shuffled(num_samples, seed + epoch))
    return [own[start : start + batch_size] for start in range(0, len(own), batch_size)]


def one_block_for_each_rank(num_samples, batch_size, epoch, seed=0):
    """Blocks of one size: the last rank has what is left."""
    order, length = shuffled(num_samples, seed + epoch), -(-num_samples // dist.get_world_size())
    own = order[dist.get_rank() * length : (dist.get_rank() + 1) * length]
    return [own[start : start + batch_size] for start in range(0, len(own), batch_size)]


def a_batch_for_each_sample(num_samples, batch_size, epoch, seed=0):
    own = own_part(shuffled(num_samples, seed + epoch))
    return [batch.tolist() for batch in torch.tensor(own).tensor_split(num_samples // 4)]


def batches_that_are_too_large(num_samples, batch_size, epoch, seed=0):
    own = torch.tensor(own_part(shuffled(num_samples, seed + epoch)))
    steps = num_samples // dist.get_world_size() // batch_size
    return [batch.tolist() for batch in own.tensor_split(steps)]


def an_empty_batch_at_the_end(num_samples, batch_size, epoch, seed=0):
    own = own_part(shuffled(num_samples, seed + epoch))
    steps = ceil(ceil(num_samples / dist.get_world_size()) / batch_size)
    return [own[step * batch_size : (step + 1) * batch_size] for step in range(steps)]


def never_shuffled(num_samples, batch_size, epoch, seed=0):
    return in_batches(own_part(list(range(num_samples))), num_samples, batch_size)


def epoch_forgotten(num_samples, batch_size, epoch, seed=0):
    return in_batches(own_part(shuffled(num_samples, seed)), num_samples, batch_size)


def seed_forgotten(num_samples, batch_size, epoch, seed=0):
    return in_batches(own_part(shuffled(num_samples, epoch)), num_samples, batch_size)


def seed_times_epoch(num_samples, batch_size, epoch, seed=0):
    """With seed=0, every epoch is the same one."""
    return in_batches(own_part(shuffled(num_samples, seed * epoch)), num_samples, batch_size)


def seed_times_the_next_epoch(num_samples, batch_size, epoch, seed=0):
    return in_batches(own_part(shuffled(num_samples, seed * (epoch + 1))), num_samples, batch_size)


def epoch_times_the_next_seed(num_samples, batch_size, epoch, seed=0):
    """Epoch 0 is the same one with every seed."""
    return in_batches(own_part(shuffled(num_samples, epoch * (seed + 1))), num_samples, batch_size)


def own_part_shuffled(num_samples, batch_size, epoch, seed=0):
    own = own_part(list(range(num_samples)))
    order = shuffled(len(own), seed + epoch)
    return in_batches([own[place] for place in order], num_samples, batch_size)


def never_the_same_again(num_samples, batch_size, epoch, seed=0):
    own = own_part(shuffled(num_samples, seed + epoch))
    random.SystemRandom().shuffle(own)
    return in_batches(own, num_samples, batch_size)


def seeds_the_global_state(num_samples, batch_size, epoch, seed=0):
    torch.manual_seed(seed + epoch)
    return in_batches(own_part(torch.randperm(num_samples)), num_samples, batch_size)


def seeds_pythons_global_state(num_samples, batch_size, epoch, seed=0):
    random.seed(seed * 100 + epoch)
    order = list(range(num_samples))
    random.shuffle(order)
    return in_batches(own_part(order), num_samples, batch_size)


def asks_the_others_how_many_there_are(num_samples, batch_size, epoch, seed=0):
    count = torch.ones(1, dtype=torch.int64)
    dist.all_reduce(count)
    own = shuffled(num_samples, seed + epoch)[dist.get_rank() :: int(count)]
    return in_batches(own, num_samples, batch_size)


def untouched(num_samples, batch_size, epoch, seed=0):
    raise NotImplementedError()


# Right, written differently --------------------------------------------------------------------


def with_pythons_random(num_samples, batch_size, epoch, seed=0):
    order = list(range(num_samples))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return in_batches(own_part(order), num_samples, batch_size)


def with_numpy_in_blocks(num_samples, batch_size, epoch, seed=0):
    """Blocks that differ by one sample at most; the first batches are the larger ones."""
    order = np.random.default_rng([seed, epoch]).permutation(num_samples)
    blocks = np.array_split(order, dist.get_world_size())
    steps = (len(blocks[0]) - 1) // batch_size + 1
    return np.array_split(blocks[dist.get_rank()], steps)


def batch_by_batch(num_samples, batch_size, epoch, seed=0):
    """Whole steps of all ranks first: each takes its part of a slice of the order."""
    order = shuffled(num_samples, 1000 * seed + epoch)
    rank, size = dist.get_rank(), dist.get_world_size()
    steps = -(-num_samples // (size * batch_size))
    slices = torch.tensor(order).tensor_split(steps)
    return [one[rank::size] for one in slices]


RIGHT = [with_pythons_random, with_numpy_in_blocks, batch_by_batch]

WRONG = {
    filled_up_with_repeats: {"covering": "Do not repeat samples to make shares equal"},
    pytorchs_sampler: {"covering": "Do not repeat samples to make shares equal"},
    rest_dropped: {"covering": "Do not leave samples out"},
    everybody_takes_all: {"covering": "samples are used more than once"},
    another_order_on_each_rank: {"covering": "from `seed` and `epoch` alone"},
    drawn_from_the_global_state: {"covering": "from `seed` and `epoch` alone"},
    order_of_the_first_rank: {"covering": "you call dist.broadcast."},
    begins_with_the_second_sample: {"covering": "Where does the part of rank 0 begin"},
    counts_from_one: {"covering": "which is not in the data set"},
    without_batches: {"covering": "return a list of batches"},
    last_batch_dropped: {"covering": "on no rank"},
    as_many_batches_as_the_own_part_takes: {"steps": "would wait in backward forever"},
    one_block_for_each_rank: {"steps": "would wait in backward forever"},
    a_batch_for_each_sample: {"steps": "hold all samples"},
    batches_that_are_too_large: {"steps": "Every batch must have 1 to"},
    an_empty_batch_at_the_end: {"steps": "a batch has 0 samples"},
    never_shuffled: {
        "epochs": "have the same samples in the same order",
        "mixing": "never a sample of another rank",
    },
    epoch_forgotten: {
        "epochs": "have the same samples in the same order",
        "mixing": "never a sample of another rank",
    },
    seed_forgotten: {"epochs": "The order must depend on `seed` too"},
    seed_times_epoch: {
        "epochs": "with seed=0, epochs ",
        "mixing": "never a sample of another rank",
    },
    seed_times_the_next_epoch: {
        "epochs": "`epoch` too, whatever the seed is",
        "mixing": "never a sample of another rank",
    },
    epoch_times_the_next_seed: {"epochs": "epoch 0 has the same order with seed=0 and seed=1"},
    own_part_shuffled: {"mixing": "Shuffle all samples first"},
    never_the_same_again: {"epochs": "returns other batches"},
    seeds_the_global_state: {"quiet": "Use a separate torch.Generator"},
    seeds_pythons_global_state: {"quiet": "Use a separate torch.Generator"},
    asks_the_others_how_many_there_are: {"quiet": "you call dist.all_reduce"},
    untouched: {"covering": "samples_of_epoch is not written yet"},
}

_SEED = "generator = torch.Generator().manual_seed(1000 * seed + epoch) -> "
_ANOTHER = "seed and epoch make another number, which is as good for a shuffle"

EQUIVALENT = {
    f"{_SEED}generator = torch.Generator().manual_seed(1001 * seed + epoch)": _ANOTHER,
    f"{_SEED}generator = torch.Generator().manual_seed(999 * seed + epoch)": _ANOTHER,
    f"{_SEED}generator = torch.Generator().manual_seed(1000 * seed - epoch)": _ANOTHER,
    f"{_SEED}generator = torch.Generator().manual_seed(seed + epoch)": (
        "as PyTorch's own sampler draws it: seeds and epochs each make other orders"
    ),
    "... [batch.tolist() for batch in order[rank::size].tensor_split(steps)] -> "
    "... [batch.tolist() for batch in reversed(order[rank::size].tensor_split(steps))]": (
        "the order of batches is drawn anyway"
    ),
}
