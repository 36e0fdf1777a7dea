"""Gradients: whether two are the same, and a step of training with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["close", "same_bits", "sgd_step"]

RATE = 0.1
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5  # of an element; of the largest one: rounding takes 1e-6


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two gradients are the same to the last bit, or both missing."""
    return one is other if one is None or other is None else one.equal(other)


def close(got: Tensor, wanted: Tensor) -> bool:
    """Whether they are the same up to rounding. Both have the same shape."""
    import torch

    scale = float(wanted.abs().max())
    return torch.allclose(got, wanted, rtol=_RELATIVE, atol=_ABSOLUTE * scale)


def sgd_step(module: nn.Module, gradients: Sequence[Sequence[Tensor | None]]) -> None:
    """One step of plain SGD with the mean of these, each of them a list as of the parameters.

    Not by an optimizer of torch's: the first one that a process makes takes a second or two.
    """
    import torch

    with torch.no_grad():
        for parameter, *parts in zip(module.parameters(), *gradients, strict=True):
            there = [part for part in parts if part is not None]
            if there:
                parameter -= RATE * sum(there[1:], there[0]) / len(parts)
