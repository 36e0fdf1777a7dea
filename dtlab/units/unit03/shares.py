"""What each microbatch of each rank gives in one step, computed in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtlab.grading.checking.gradients import sgd_step

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Shares", "loss_sum", "shares_of"]

Pair = tuple["Tensor", "Tensor"]


@dataclass(frozen=True)
class Shares:
    """One step of a group of ranks, `members`; ranks beside it are there too.

    By rank and microbatch, `sums` are the gradients of the loss added up over the samples, each
    as one vector over all parameters that have one; `losses` are these losses, and `counts` the
    numbers of samples. `names` and `shapes` are those of the parameters, `there` says which have a
    gradient, and `before` is what was in `.grad`.
    """

    members: tuple[int, ...]
    names: list[str]
    shapes: list[tuple[int, ...]]
    there: list[bool]
    sums: Mapping[int, list[Tensor]]
    losses: Mapping[int, list[float]]
    counts: Mapping[int, list[int]]
    before: Tensor

    def total(self, ranks: Sequence[int]) -> Tensor:
        """The gradient of the loss added up over all samples of these ranks."""
        every = [one for rank in ranks for one in self.sums[rank]]
        return sum(every[1:], every[0])

    def samples(self, ranks: Sequence[int]) -> int:
        """How many samples these ranks have."""
        return sum(sum(self.counts[rank]) for rank in ranks)

    @property
    def mean(self) -> Tensor:
        """The gradient of the mean loss over all samples of the group."""
        return self.total(self.members) / self.samples(self.members)

    @property
    def wanted(self) -> Tensor:
        """What `.grad` should have: that, added to what was there."""
        return self.before + self.mean

    @property
    def loss(self) -> float:
        """The mean loss over all samples of the group."""
        total = sum(sum(self.losses[rank]) for rank in self.members)
        return total / self.samples(self.members)


def loss_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss that learners are given: squared errors, added up over the samples.

    They are weighed by the targets, so that another number comes of swapped arguments.
    """
    return ((outputs - targets).square() * targets.abs()).sum()


def shares_of(
    module: nn.Module,
    steps: Sequence[Mapping[int, Sequence[Pair]]],
    members: tuple[int, ...],
    before: Sequence[Tensor] | None,
) -> list[Shares]:
    """The shares in each step of a module that is trained in steps with what is wanted.

    `steps` are the microbatches of all ranks. The module is another one afterwards.
    """
    found = []
    for batches in steps:
        shares = _shares(module, batches, members, before)
        found.append(shares)
        sgd_step(module, [_cut(shares.wanted, shares)])
    return found


def _shares(
    module: nn.Module,
    batches: Mapping[int, Sequence[Pair]],
    members: tuple[int, ...],
    before: Sequence[Tensor] | None,
) -> Shares:
    import torch

    sums: dict[int, list[Tensor]] = {}
    losses: dict[int, list[float]] = {}
    for rank, pairs in batches.items():
        sums[rank], losses[rank] = [], []
        for inputs, targets in pairs:
            module.zero_grad()
            loss = loss_sum(module(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [one.grad for one in module.parameters()]
            sums[rank].append(torch.cat([one.flatten() for one in gradients if one is not None]))
            losses[rank].append(loss.item())
    there = [one is not None for one in gradients]
    old = [one.flatten() for one, is_there in zip(before or (), there, strict=False) if is_there]
    return Shares(
        members,
        [name for name, _ in module.named_parameters()],
        [tuple(one.shape) for one in module.parameters()],
        there,
        sums,
        losses,
        {rank: [len(inputs) for inputs, _ in pairs] for rank, pairs in batches.items()},
        torch.cat(old) if old else torch.zeros_like(sums[members[0]][0]),
    )


def _cut(flat: Tensor, shares: Shares) -> list[Tensor | None]:
    """A vector as one gradient for each parameter that has one."""
    places = list(zip(shares.shapes, shares.there, strict=True))
    sizes = [math.prod(shape) * there for shape, there in places]
    pieces = flat.split(sizes)  # type: ignore[no-untyped-call]
    return [
        piece.view(shape) if there else None
        for piece, (shape, there) in zip(pieces, places, strict=True)
    ]
