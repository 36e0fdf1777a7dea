"""Dropout for tensors that are divided among ranks: each rank draws other random numbers.

What all ranks have alike must lose the same elements on all, and what each has a part of must
not: two halves of the heads with one mask are correlated, as are two halves of the tokens.

    all ranks' random numbers in step      0.31  0.87 │            │ 0.12  0.55
    inside `rank_randomness`   rank 0                 │ 0.64  0.09 │
                               rank 1                 │ 0.43  0.71 │

The numbers inside grow from a seed that all ranks draw, plus the rank. So they stay in step before
and after, there is no state to save beside PyTorch's own, and a checkpoint that runs a part again
from the same state drops the same elements again.

Ranks in step are those of one group. Along a data axis replicas should differ: seed each with its
place there, `torch.manual_seed(seed + mesh.get_local_rank("data"))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.messages import Group

__all__ = ["RankDropout", "rank_randomness"]


@contextmanager
def rank_randomness(device: torch.device, group: Group = None) -> Iterator[None]:
    """PyTorch's random numbers on the CPU and `device` differ by rank inside, and not after.

    All ranks of the group have to come here with their random numbers in step.
    """
    seed = int(torch.randint(2**31, ())) + dist.get_rank(group)
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield


class RankDropout(nn.Dropout):
    """`nn.Dropout` for this rank's heads, features or tokens: other ranks drop other elements."""

    def __init__(self, p: float = 0.5, *, group: Group = None) -> None:
        super().__init__(p)
        self.group = group

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.Dropout`."""
        if not self.training or self.p == 0:
            return input
        with rank_randomness(input.device, self.group):
            return super().forward(input)
