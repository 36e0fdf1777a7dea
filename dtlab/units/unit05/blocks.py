"""Blocks as the parts of stage 3 get them: a small module, its numbers, and its flat tensor.

parameters    a a a a | b b b | c           in the order of `block.parameters()`
flat          a a a a b b b c .             padded to a multiple of the number of ranks
pieces        rank 0    rank 1    rank 2
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.faults import Faulty
from dtlab.grading.checking.nets import Net

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = [
    "FINISHED",
    "LARGE",
    "OnBlock",
    "alike",
    "draw_blocks",
    "fill",
    "flat_of",
    "lay",
    "off_from",
]

LARGE = Net("chain", (64, 96, 64), "a block of 49,280 bytes")  # to be seen on the wire


def draw_blocks(draw: random.Random) -> tuple[Net, Net]:
    """A chain of layers whose elements no number of ranks divides, and one with tied weights."""
    while True:
        sizes = tuple(draw.sample(range(3, 12), 3))
        count = sum(a * b + b for a, b in pairwise(sizes))
        if count % 2 and count % 3:
            break
    width = draw.randint(3, 7)
    return (
        Net("chain", sizes, f"a block of {count} elements"),
        Net("tied", (sizes[0], width, width, width), "a block with tied weights"),
    )


@dataclass(frozen=True)
class OnBlock(Faulty):
    """One use of a learner's function on a block with numbers drawn from `seed`."""

    seed: int
    net: Net
    topic: str

    def __str__(self) -> str:
        return self.net.words

    def module(self) -> nn.Module:
        """The block."""
        return self.net.module(self.seed)

    @property
    def elements(self) -> int:
        """How many its parameters have together."""
        return sum(one.numel() for one in self.module().parameters())

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        kind, sizes, _ = self.net
        return {"kind": kind, "sizes": sizes, "state": self.net.state(self.seed)}

    def inputs(self, rank: int = 0) -> Tensor:
        """A batch of two for the block."""
        import torch

        draw = torch.Generator().manual_seed(1009 * self.seed + rank)
        return torch.randn(2, self.net.sizes[0], generator=draw)


# What checks do themselves, on ranks and in their own process -----------------------------------


def flat_of(tensors: Sequence[Tensor], world_size: int) -> Tensor:
    """All of them end to end, and zeros up to a multiple of the number of ranks."""
    import torch

    flat = torch.cat([one.detach().flatten() for one in tensors])
    return torch.cat([flat, flat.new_zeros(-len(flat) % world_size)])


def lay(module: nn.Module, flat: Tensor) -> None:
    """Make the parameters views of `flat`."""
    start = 0
    for parameter in module.parameters():
        end = start + parameter.numel()
        parameter.data = flat[start:end].view(parameter.shape)
        start = end


def fill(flat: Tensor, numbers: Tensor) -> None:
    """Give `flat` its storage back, with these numbers; autograd does not see it."""
    flat.untyped_storage().resize_(flat.numel() * flat.element_size())
    flat.data.copy_(numbers)


def alike(got: Any, wanted: Tensor) -> bool:
    """Whether it is a tensor of this shape, with these numbers up to rounding."""
    import torch

    if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
        return False
    return torch.allclose(got.double(), wanted.double(), rtol=1e-4, atol=1e-6)


def off_from(got: Any, wanted: torch.Tensor) -> str:
    """In what a tensor differs: its kind, its shape, or its numbers."""
    import torch

    if not isinstance(got, torch.Tensor):
        return "is not there" if got is None else f"is {type(got).__name__}, not a tensor"
    if got.shape != wanted.shape:
        return f"has the shape {list(got.shape)}, not {list(wanted.shape)}"
    return f"is off by up to {float((got - wanted).abs().max()):.2g}"


# Finished code that does what this unit's learners write -----------------------------------------

FINISHED = (
    "dtlab.parallel.data.data_parallel",
    "dtlab.parallel.zero.optimizers",
    "dtlab.parallel.zero.fully_sharded",
    "dtlab.parallel.zero.sharded_block",
    "dtlab.parallel.zero.sharded_block",
    "dtlab.parallel.zero.sharded_block",
    "dtlab.parallel.zero.sharded_optimizer",
    "dtlab.parallel.zero.shards",
    "torch.nn.parallel.distributed",
    "torch.distributed.optim.zero_redundancy_optimizer",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed.fsdp._fully_shard._fully_shard",
)
