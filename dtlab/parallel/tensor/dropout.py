"""Dropout for tensors that are divided among ranks: each rank draws different random numbers.

Dropout must drop the same elements of a replicated tensor on all ranks. It must draw a separate
mask for each part of a divided tensor: with the same mask, two halves of the heads or of the
tokens would be correlated.

    all ranks' random numbers, in sync     0.31  0.87 │            │ 0.12  0.55
    inside `rank_randomness`   rank 0                 │ 0.64  0.09 │
                               rank 1                 │ 0.43  0.71 │

The seed inside is the rank plus a number that all ranks draw, so the ranks' generators are in sync
again afterwards. No state is needed besides PyTorch's own. A checkpoint that recomputes a part of
the model from the same state drops the same elements again.

Only the ranks of one group are in sync. Replicas along a data axis should draw different numbers:
seed each rank with its data index, `torch.manual_seed(seed + mesh.get_local_rank("data"))`.
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
    """Make PyTorch's random numbers on the CPU and `device` differ by rank inside the block.

    All ranks of the group must enter the block with generators that are in sync. After the block
    the generators are in sync again.
    """
    seed = int(torch.randint(2**31, ())) + dist.get_rank(group)
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield


class RankDropout(nn.Dropout):
    """`nn.Dropout` for this rank's heads, features or tokens: ranks drop different elements."""

    def __init__(self, p: float = 0.5, *, group: Group = None) -> None:
        super().__init__(p)
        self.group = group

    def forward(self, input: Tensor) -> Tensor:
        """Drop elements as `nn.Dropout` does."""
        if not self.training or self.p == 0:
            return input
        with rank_randomness(input.device, self.group):
            return super().forward(input)
