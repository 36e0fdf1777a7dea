"""Exact means over batches and ranks with different numbers of samples.

The mean of means gives every batch the same weight, even the small last one:

    rank 0: 3 samples, mean 1.0     mean of means: (1.0 + 5.0) / 2      = 3.0
    rank 1: 1 sample,  mean 5.0     exact mean:    (3 x 1.0 + 5.0) / 4  = 2.0

So the ranks all-reduce sums and counts, and divide last.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

__all__ = ["Mean", "device_of"]


def device_of(group: ProcessGroup | None = None) -> torch.device:
    """Return the device on which `group` communicates small tensors: NCCL needs a GPU."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


class Mean:
    """A running mean of this rank's samples: their sum and their number.

    Both are float64 on the CPU, so sums of many float32 losses stay accurate.
    """

    def __init__(self, total: float = 0.0, count: float = 0.0) -> None:
        self.total, self.count = float(total), float(count)

    def add(self, total: Tensor | float, count: Tensor | float) -> None:
        """Add samples: the sum of their values, and their number (or weight).

        Raises: ValueError for a count below 0.
        """
        if count < 0:
            raise ValueError(f"The number of samples must be 0 or more, not {float(count):g}.")
        self.total += float(total)
        self.count += float(count)

    @property
    def value(self) -> float:
        """The mean of this rank's samples, or NaN without samples."""
        return self.total / self.count if self.count else math.nan

    def over_ranks(self, group: ProcessGroup | None = None) -> Mean:
        """Return the mean over all ranks of `group`, with one all-reduce of two numbers.

        Every rank must call this, even a rank without samples. Without torch.distributed the
        result is a copy of this mean.
        """
        if not dist.is_initialized():
            return Mean(self.total, self.count)
        numbers = [self.total, self.count]
        both = torch.tensor(numbers, dtype=torch.float64, device=device_of(group))
        dist.all_reduce(both, group=group)
        return Mean(*both.tolist())

    def __repr__(self) -> str:
        return f"Mean({self.value:.6g} over {self.count:g})"
