"""Buckets: gradients that share one all-reduce, in one flat tensor.

flat   [ gradient of p0 | gradient of p1 | ... | used0 used1 ... | present ]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from dtlab.parallel.zero.shards import in_packs, views
from dtlab.torch_internals import copy_all

__all__ = ["Bucket", "in_buckets"]


def in_buckets(
    parameters: Sequence[nn.Parameter], first: int, rest: int, world_size: int
) -> list[Bucket]:
    """Divide the parameters, in this order, into buckets of one dtype and device each.

    A bucket is closed once it has `first` bytes, or `rest` bytes if it is not the first bucket
    of its dtype and device.
    """
    packs = in_packs(parameters, first, rest)
    return [Bucket(pack, world_size) for pack in packs]


class Bucket:
    """Parameters and the flat tensor of their gradients, which `pack` divides by `world_size`.

    `used` counts, for each parameter, the ranks that computed a gradient of it. `present` counts
    the ranks that had a batch. Both are stored as fractions of the world size.
    """

    def __init__(self, parameters: list[nn.Parameter], world_size: int) -> None:
        self.parameters, self._share = parameters, 1 / world_size
        first, count = parameters[0], sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(
            count + len(parameters) + 1, dtype=first.dtype, device=first.device
        )
        self._gradients, self._used = self.flat[:count], self.flat[count:-1]
        self._views = list(views(self.flat, parameters))
        self._arrived: set[int] = set()  # indices of parameters
        self._unused: set[int] = set()
        self.wait: Callable[[], object] = lambda: None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The gradients in the shapes of their parameters, and the counts as one vector."""
        return [*self._views, self.flat[len(self._gradients) :]]

    @property
    def full(self) -> bool:
        """Whether all parameters have their gradients."""
        return len(self._arrived) == len(self.parameters)

    def reset(self) -> None:
        """Reset the bucket before a backward pass."""
        self._arrived.clear()
        self._unused.clear()
        self.flat[len(self._gradients) :] = self._share  # all parameters used, this rank present

    def fill_with_zeros(self) -> None:
        """Fill the bucket with zeros: the contribution of a rank without batches."""
        self.flat.zero_()

    def mark_arrived(self, index: int) -> None:
        """Record that the gradient of the parameter at `index` is ready."""
        self._arrived.add(index)

    def pack(self) -> None:
        """Copy all gradients into the flat tensor, and divide them; a missing gradient is zero."""
        targets, gradients = [], []
        for index, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
                self._used[index] = 0
                self._unused.add(index)
                continue
            if gradient.is_sparse:
                raise TypeError(
                    f"a gradient of shape {tuple(gradient.shape)} is sparse, but buckets are "
                    "dense. Use an embedding with sparse=False, or a parameter server."
                )
            targets.append(view)
            gradients.append(gradient.detach())
            parameter.grad = view
        if targets:
            copy_all(targets, gradients)
        self._gradients *= self._share

    def set_gradients(self, over_all: bool) -> None:
        """Set `.grad` after the all-reduce to the mean over all ranks, or over those present."""
        if not over_all:
            self._gradients /= self.flat[-1]  # the fraction of ranks that had a batch
        if self._unused:
            counts = self._used.tolist()
            for index in self._unused:
                used = counts[index] > 0
                self.parameters[index].grad = self._views[index] if used else None
