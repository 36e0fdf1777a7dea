"""Whether gradients are finite: the naive way looks at every element, the quick one at sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["gradients_of", "has_overflowed"]


def gradients_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """All gradients that an optimizer would step with; of a sparse one, the values that it has."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient = parameter.grad.detach()
                yield gradient._values() if gradient.is_sparse else gradient


def has_overflowed(gradients: Sequence[Tensor]) -> bool:
    """Whether any element of any tensor is inf or NaN.

    One inf or NaN makes a sum inf or NaN, so one finite sum acquits all elements, many times as
    fast. Large elements can have an infinite sum too: then each has to be looked at.
    """
    if not gradients:
        return False
    device = gradients[0].device
    sums = torch.stack([gradient.sum().to(device, torch.float32) for gradient in gradients])
    if bool(torch.isfinite(sums).all()):
        return False
    return not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
