"""What a rank does in 05/stage_3: blocks and functions that say when they are called.

This file loads torch: it is imported when a check runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.units.unit05.blocks import flat_of, lay

__all__ = ["Block", "in_one_process", "make_blocks", "run"]

Log = list[tuple[str, int]]


class _Say(torch.autograd.Function):
    """Notes that backward comes to this block."""

    @staticmethod
    def forward(context: Any, x: Tensor, log: Log, number: int) -> Tensor:
        context.log, context.number = log, number
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        context.log.append(("backward", context.number))
        return gradient, None, None


class Block(nn.Module):
    """A linear layer and tanh, which notes when it computes."""

    def __init__(self, sizes: tuple[int, int], number: int, log: Log) -> None:
        super().__init__()
        self.linear, self.number, self.log = nn.Linear(*sizes), number, log

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] to [n, out]."""
        self.log.append(("forward", self.number))
        out: Tensor = _Say.apply(self.linear(x).tanh(), self.log, self.number)  # type: ignore[no-untyped-call]
        return out


def make_blocks(sizes: Sequence[int], seed: int, log: Log) -> list[Block]:
    """A block for each pair of sizes."""
    draw = torch.Generator().manual_seed(seed)
    blocks = [Block(pair, number, log) for number, pair in enumerate(pairwise(sizes))]
    for block in blocks:
        for parameter in block.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=draw) * 0.6)
    return blocks


class _Calls:
    """The four functions, each of which notes its call and does its work in a plain way.

    What is freed is NaN, and keeps its memory: an answer that forgets to gather does not crash.
    """

    def __init__(self, log: Log) -> None:
        self.log = log

    def shard(self, block: Any) -> tuple[Tensor, nn.Parameter]:
        flat = flat_of(list(block.parameters()), dist.get_world_size())
        piece = nn.Parameter(flat.chunk(dist.get_world_size())[dist.get_rank()].clone())
        lay(block, flat)
        self.log.append(("shard", block.number))  # it has all its parameters until it is freed
        return flat, piece

    def gather(self, block: Any, flat: Tensor, piece: Tensor) -> None:
        self.log.append(("gather", block.number))
        dist.all_gather_single(flat.data, piece.detach().clone())
        lay(block, flat)

    def free(self, block: Any, flat: Tensor) -> None:
        self.log.append(("free", block.number))
        flat.data.fill_(torch.nan)

    def reduce(self, block: Any, piece: Tensor) -> None:
        gradients = [one.grad for one in block.parameters()]
        missing = any(one is None for one in gradients)
        self.log.append(("incomplete" if missing else "reduce", block.number))
        found = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(gradients, block.parameters(), strict=True)
        ]
        flat = flat_of(found, dist.get_world_size())
        dist.all_reduce(flat)
        mean = flat.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size()
        piece.grad = mean if piece.grad is None else piece.grad + mean
        for parameter in block.parameters():
            parameter.grad = None


def run(
    fn: Callable[..., Any], sizes: Sequence[int], seed: int, batches: Sequence[Tensor], rate: float
) -> dict[str, Any]:
    """Runs on a rank: steps of SGD on the pieces that `fn` returns."""
    log: Log = []
    blocks, calls = make_blocks(sizes, seed, log), _Calls(log)
    pieces = fn(list(blocks), calls.shard, calls.gather, calls.free, calls.reduce)
    if not isinstance(pieces, list | tuple) or not all(isinstance(p, Tensor) for p in pieces):
        return {"form": type(pieces).__name__, "log": [], "pieces": []}
    for inputs in batches:
        x = inputs
        for block in blocks:
            x = block(x)
        log.append(("loss", 0))
        torch.autograd.backward(x.square().mean())
        log.append(("step", 0))
        for piece in pieces:
            if piece.grad is not None:
                piece.data -= rate * piece.grad
                piece.grad = None
    return {"form": "", "log": log, "pieces": [one.detach().clone() for one in pieces]}


def in_one_process(
    sizes: Sequence[int], seed: int, batches: Sequence[Sequence[Tensor]], rate: float
) -> list[Tensor]:
    """The parameters of each block after the steps, end to end: means over the ranks' batches."""
    blocks = make_blocks(sizes, seed, [])
    model = nn.Sequential(*blocks)
    for batch in batches:
        model.zero_grad()
        for inputs in batch:
            (model(inputs).square().mean() / len(batch)).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data -= rate * parameter.grad
    return [flat_of(list(one.parameters()), 1) for one in blocks]
