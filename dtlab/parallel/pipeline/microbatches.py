"""Microbatches of a step, their losses, and their weights in the mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dtlab.parallel.pipeline.messages import Plan
from dtlab.training.accumulation import num_samples

__all__ = ["Batch", "Data", "Loss", "StepResult", "Tensors", "tensors_of"]

Tensors = tuple[Tensor, ...]
Batch = Tensor | Sequence[Tensor | Tensors]
Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class StepResult:
    """What a rank has of a step.

    `losses` of the microbatches and their mean `loss` are on the last stage's rank, elsewhere
    None. `peak_in_flight` counts the microbatches that this rank held at once, over its stages.
    """

    losses: list[Tensor] | None
    loss: Tensor | None
    peak_in_flight: int


class Data:
    """Microbatches, losses and their weights."""

    def __init__(
        self,
        plan: Plan,
        inputs: Batch | None,
        targets: Batch | None,
        loss: Loss | None,
        weights: Sequence[float] | None,
    ) -> None:
        count = 1 + max(action.microbatch for row in plan.schedule for action in row)
        self.inputs: list[Tensors] = []
        self.losses: dict[int, Tensor] = {}
        if plan.homes[0] == plan.rank:
            if inputs is None:
                raise ValueError("The rank of the first stage needs inputs.")
            self.inputs = [_fixed(one) for one in _cut(inputs, count, "inputs")]
        if plan.homes[-1] == plan.rank:
            if targets is None or loss is None:
                raise ValueError("The rank of the last stage needs targets and a loss.")
            self._loss, self._targets = loss, _cut(targets, count, "targets")
            given = weights or [num_samples(one) for one in self._targets]
            total = sum(given)
            if len(given) != count or not total > 0:
                raise ValueError(f"{count} microbatches need as many weights, not {given!r}.")
            self._shares = [weight / total for weight in given]

    def share_of(self, microbatch: int) -> Tensor:
        """Of one microbatch in the mean over all samples: the gradient of its loss."""
        return torch.full_like(self.losses[microbatch], self._shares[microbatch])

    def loss_of(self, output: Tensors, microbatch: int) -> Tensor:
        """Of one microbatch."""
        found = self._loss(*output, self._targets[microbatch])
        if found.numel() != 1:
            raise ValueError(f"The loss is one number, not a tensor of {list(found.shape)}.")
        self.losses[microbatch] = found.detach()
        return found

    def result(self, peak: int) -> StepResult:
        """At the end of the step."""
        if not self.losses:
            return StepResult(None, None, peak)
        losses = [self.losses[number] for number in range(len(self.losses))]
        each = zip(self._shares, losses, strict=True)
        return StepResult(losses, torch.stack([share * one for share, one in each]).sum(), peak)


def tensors_of(given: object) -> Tensors:
    """A tensor, or a tuple or list of some, as a tuple."""
    found = (given,) if isinstance(given, Tensor) else given
    if not isinstance(found, (tuple, list)) or not all(isinstance(one, Tensor) for one in found):
        raise ValueError(f"A stage takes and gives tensors or tuples of them, not {given!r:.99}.")
    return tuple(found)


def _fixed(given: Tensor | Tensors) -> Tensors:
    return tuple(one.detach() for one in tensors_of(given))


def _cut(batch: Batch, count: int, name: str) -> list[Tensor | Tensors]:
    """Microbatches; a tensor is cut as evenly as it can be, the first ones larger by one."""
    if not isinstance(batch, Tensor):
        if len(batch) != count:
            raise ValueError(f"{len(batch)} microbatches of {name} for a schedule of {count}.")
        return list(batch)
    if len(batch) < count:
        raise ValueError(f"{len(batch)} {name} cannot be cut into {count} microbatches.")
    return list(batch.tensor_split(count))
