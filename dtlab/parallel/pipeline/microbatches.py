"""Microbatches of a step, their losses, and their weights in the mean loss."""

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
    """The result of a step on one rank.

    `losses` of the microbatches and their mean `loss` exist on the last stage's rank and are None
    elsewhere. `peak_in_flight` is the largest number of microbatches that this rank held at once,
    counted over its stages.
    """

    losses: list[Tensor] | None
    loss: Tensor | None
    peak_in_flight: int


class Data:
    """The microbatches of one step, with their losses and weights."""

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
                raise ValueError("The rank of the first stage needs inputs=.")
            self.inputs = [_fixed(microbatch) for microbatch in _cut(inputs, count, "inputs")]
        if plan.homes[-1] == plan.rank:
            if targets is None or loss is None:
                raise ValueError("The rank of the last stage needs targets= and loss=.")
            self._loss, self._targets = loss, _cut(targets, count, "targets")
            given = weights or [num_samples(microbatch) for microbatch in self._targets]
            total = sum(given)
            if len(given) != count or not total > 0:
                raise ValueError(
                    f"{count} microbatches need one weight each, with a sum above 0, not {given}."
                )
            self._shares = [weight / total for weight in given]

    def weight_of(self, microbatch: int) -> Tensor:
        """Return a microbatch's weight in the mean over all samples: the gradient of its loss."""
        return torch.full_like(self.losses[microbatch], self._shares[microbatch])

    def loss_of(self, output: Tensors, microbatch: int) -> Tensor:
        """Compute and record the loss of one microbatch."""
        loss = self._loss(*output, self._targets[microbatch])
        if loss.numel() != 1:
            raise ValueError(
                f"The loss must be one number, not a tensor of {list(loss.shape)}. Reduce it, for "
                "example with mean()."
            )
        self.losses[microbatch] = loss.detach()
        return loss

    def result(self, peak: int) -> StepResult:
        """Return the result of the step, after its last action."""
        if not self.losses:
            return StepResult(None, None, peak)
        losses = [self.losses[number] for number in range(len(self.losses))]
        each = zip(self._shares, losses, strict=True)
        return StepResult(losses, torch.stack([share * loss for share, loss in each]).sum(), peak)


def tensors_of(given: object) -> Tensors:
    """Return a tensor, or a tuple or list of tensors, as a tuple."""
    tensors = (given,) if isinstance(given, Tensor) else given
    if not isinstance(tensors, (tuple, list)) or not all(isinstance(t, Tensor) for t in tensors):
        raise ValueError(
            f"A stage must take and return tensors or tuples of tensors, not {given!r:.99}."
        )
    return tuple(tensors)


def _fixed(given: Tensor | Tensors) -> Tensors:
    return tuple(tensor.detach() for tensor in tensors_of(given))


def _cut(batch: Batch, count: int, name: str) -> list[Tensor | Tensors]:
    """Return microbatches; a tensor is cut as evenly as possible, the first ones larger by one."""
    if not isinstance(batch, Tensor):
        if len(batch) != count:
            raise ValueError(
                f"{name}= has {len(batch)} microbatches, but the schedule has {count}."
            )
        return list(batch)
    if len(batch) < count:
        raise ValueError(f"{len(batch)} {name} cannot be cut into {count} microbatches.")
    return list(batch.tensor_split(count))
