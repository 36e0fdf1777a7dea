"""A training loop with accumulation in which each thing that people get wrong is an argument.

The wrong and right answers to the four runs of unit 03 are made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DistributedSampler, TensorDataset

from dtlab.training.accumulation import per_step
from dtlab.training.datasets import batches
from dtlab.training.learning_rate import WarmupThenDecay

__all__ = ["changes_alike", "linear", "per_update", "trained"]

Batch = Any


def per_update(micro: int, accumulate: int) -> int:
    """Samples of an update, over all ranks."""
    return micro * accumulate * dist.get_world_size()


def linear(batch: int) -> float:
    """The peak rate that the linear rule has, from 0.05 at batch 32."""
    return 0.05 * batch / 32


def trained(
    model: nn.Module,
    data: TensorDataset,
    epochs: int,
    micro: int,
    accumulate: int,
    *,
    peak: float | None = None,
    start_factor: float | None = None,
    warm_up: float = 3 / 8,
    decay: Any = "cosine",
    seed: int = 1,
    sampler: Any = None,
    reshuffle: bool = True,
    wrap: Callable[[nn.Module], nn.Module] = DDP,
    sends: Callable[[int, int], bool] = lambda number, count: number == count - 1,
    loss: Callable[[nn.Module, Batch, int], Any] | None = None,
    make: Callable[..., Any] = lambda parameters, lr: SGD(parameters, lr=lr, momentum=0.9),
    clear: Callable[[int, int], bool] = lambda number, count: number == 0,
    before_step: Callable[[], None] = lambda: None,
    after_step: Callable[[], None] = lambda: None,
    steps_of_schedule: Callable[[int], int] = lambda count: 1,
    steps_in: Callable[[int, int], bool] = lambda number, count: number == count - 1,
) -> None:
    """Train as the fixed scripts do; what is passed differs.

    `sends(number, count)` says whether gradients travel in a microbatch, `clear` whether they are
    set to zero before it, `steps_in` whether the optimizer steps after it; `steps_of_schedule` how
    many steps the schedule goes for an update of so many microbatches.
    """
    batch = per_update(micro, accumulate)
    updates = epochs * len(data) // batch
    sampler = DistributedSampler(data, seed=seed) if sampler is None else sampler
    replica = wrap(model)
    optimizer = make(replica.parameters(), lr=linear(batch) if peak is None else peak)
    factor = 32 / batch if start_factor is None else start_factor
    schedule = WarmupThenDecay(
        optimizer, math.floor(warm_up * updates), updates, start_factor=factor, decay=decay
    )
    for epoch in range(epochs):
        if reshuffle and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for step in per_step(batches(data, micro, sampler=sampler), accumulate):
            for number, batch_ in enumerate(step):
                if clear(number, len(step)):
                    optimizer.zero_grad()
                quiet = not sends(number, len(step)) and hasattr(replica, "no_sync")
                with replica.no_sync() if quiet else nullcontext():
                    (loss or mean_loss)(replica, batch_, len(step)).backward()
                if steps_in(number, len(step)):
                    before_step()
                    optimizer.step()
                    after_step()
            for _ in range(steps_of_schedule(len(step))):
                schedule.step()


def mean_loss(net: nn.Module, batch: Batch, count: int) -> Any:
    """A microbatch's part of the mean over so many equal ones."""
    images, labels = batch
    return F.cross_entropy(net(images), labels) / count


class EverySample:
    """A sampler that gives every rank all samples, in one order."""

    def __init__(self, data: TensorDataset) -> None:
        self.length = len(data)

    def __iter__(self) -> Any:
        return iter(range(self.length))

    def __len__(self) -> int:
        return self.length


class InOrder:
    """A sampler that shares the samples out as they come, the same way in every epoch."""

    def __init__(self, data: TensorDataset) -> None:
        self.length = len(data)

    def __iter__(self) -> Any:
        return iter(range(dist.get_rank(), self.length, dist.get_world_size()))


def averaged(tensors: Iterable[Any]) -> None:
    """Replace each by its mean over the ranks, one all-reduce for each."""
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def gradients(model: nn.Module) -> Sequence[Any]:
    """Those of all parameters."""
    return [parameter.grad for parameter in model.parameters()]


# Mutants of the solutions that no check can tell from them ---------------------------------------

UNREAD = "the curve is for people: no judge reads it"
ANOTHER = "the samples come in another order, as good as this one"
TWICE = "what is done twice is the same"
FREE = "neither needs the other"
ROUNDED = "as many updates of a warm-up: the check has 6 or 9 of them in all"

_ADD, _CLEAR, _SET = "mean += loss.item()", "optimizer.zero_grad()", "sampler.set_epoch(epoch)"
_NOTE = "curve.append((mean, schedule.get_last_lr()[0]))"
_SAMPLER = "sampler = DistributedSampler(data, seed={})"
_DECAY = "... WarmupThenDecay(optimizer, 3 * updates // {}, updates, start_factor=32 / batch)"


def changes_alike(seed: int) -> dict[str, str]:
    """Why each of these changes to a run makes no difference; `seed` is the sampler's there."""
    return {
        **{f"{_SAMPLER.format(seed)} -> {_SAMPLER.format(one)}": ANOTHER
           for one in (seed - 1, seed + 1)},
        "for epoch in range(epochs): -> for epoch in reversed(range(epochs)):": ANOTHER,
        **{f"{_DECAY.format(8)} -> {_DECAY.format(one)}": ROUNDED for one in (7, 9)},
        f"{_SET} -> {_SET}; {_SET}": TWICE,
        f"{_CLEAR} -> {_CLEAR}; {_CLEAR}": TWICE,
        f"{_CLEAR}; schedule.step() -> schedule.step(); {_CLEAR}": FREE,
        f"{_NOTE}; optimizer.step() -> optimizer.step(); {_NOTE}": FREE,
        "mean = 0.0 -> mean = 1.0": UNREAD,
        "mean = 0.0 -> mean = -1.0": UNREAD,
        f"{_ADD} -> nothing": UNREAD,
        f"{_ADD} -> {_ADD}; {_ADD}": UNREAD,
        f"{_ADD} -> mean -= loss.item()": UNREAD,
        f"{_ADD} -> mean = mean + loss.item()": "a float has no memory of its own to add to",
        f"{_NOTE} -> nothing": UNREAD,
        f"{_NOTE} -> {_NOTE}; {_NOTE}": UNREAD,
        f"{_NOTE} -> curve.append((mean, schedule.get_last_lr()[-1]))": "there is one rate",
        "return curve -> nothing": UNREAD,
        "return curve -> return": UNREAD,
    }  # fmt: skip
