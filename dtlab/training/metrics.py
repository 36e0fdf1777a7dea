"""Exact means over batches and ranks with different numbers of samples.

The mean of means weighs every batch alike, the small last one too:

    rank 0: 3 samples, mean 1.0     mean of means: (1.0 + 5.0) / 2      = 3.0
    rank 1: 1 sample,  mean 5.0     their mean:    (3 x 1.0 + 5.0) / 4  = 2.0

So sums and counts travel, and the division comes last.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

__all__ = ["Mean", "device_of"]


def device_of(group: ProcessGroup | None = None) -> torch.device:
    """Where a few numbers have to be for `group` to send them: NCCL sends from GPUs only."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


class Mean:
    """A running mean of this rank's samples: their sum and their number.

    Both are float64 on the CPU, so many batches of float32 losses add up without loss.
    """

    def __init__(self, total: float = 0.0, count: float = 0.0) -> None:
        self.total, self.count = float(total), float(count)

    def add(self, total: Tensor | float, count: Tensor | float) -> None:
        """Add samples: the sum of their values, and how many there are (or what they weigh).

        Raises: ValueError for a count below 0.
        """
        if count < 0:
            raise ValueError(f"There cannot be {float(count):g} samples.")
        self.total += float(total)
        self.count += float(count)

    @property
    def value(self) -> float:
        """The mean of what this rank has seen; not a number where it has seen nothing."""
        return self.total / self.count if self.count else math.nan

    def over_ranks(self, group: ProcessGroup | None = None) -> Mean:
        """The mean over all ranks of `group`: one all-reduce of two numbers.

        Every rank has to call it, also one without samples. Without ranks it is the mean itself.
        """
        if not dist.is_initialized():
            return Mean(self.total, self.count)
        numbers = [self.total, self.count]
        both = torch.tensor(numbers, dtype=torch.float64, device=device_of(group))
        dist.all_reduce(both, group=group)
        return Mean(*both.tolist())

    def __repr__(self) -> str:
        return f"Mean({self.value:.6g} over {self.count:g})"
