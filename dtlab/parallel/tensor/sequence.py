"""Megatron-LM's sequence parallelism: some tokens on each rank between tensor-parallel regions.

Norms and dropout work token by token. With tensor parallelism alone every rank does that work for
all tokens, and keeps what backward needs of it. Here each does it for its own tokens; an
all-reduce becomes a reduce-scatter at one end and an all-gather at the other, which together send
as many bytes.

    tokens   0 1 | 2 3 ──► norm ──► ┌───────────┐ ──► weights ──► ┌────────────────┐ ──► 0 1 | 2 3
             rank 0 rank 1          │ all_gather│    sharded      │ reduce_scatter │
                                    └───────────┘                 └────────────────┘

    function                      forward           backward
    scatter_to_sequence           nothing           all_gather
    gather_from_sequence          all_gather        reduce_scatter
    reduce_scatter_to_sequence    reduce_scatter    all_gather
    share_parameters              nothing           all_reduce

Tokens are dim 1 of [b, s, h], or `dim`. A parameter used on some tokens only has a part of its
gradient on each rank: `share_parameters` adds the parts up, as `SequenceLayerNorm` needs it.

Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", section
4.2.2: g is gather_from_sequence, g with a bar is reduce_scatter_to_sequence.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.data.replicas import packs
from dtlab.parallel.tensor.regions import own_part, start_gather, start_reduce_scatter

__all__ = [
    "SequenceLayerNorm",
    "check_tokens",
    "gather_from_sequence",
    "reduce_scatter_to_sequence",
    "scatter_to_sequence",
    "share_parameters",
]


def scatter_to_sequence(tensor: Tensor, group: Group = None, dim: int = 1) -> Tensor:
    """This rank's tokens, of a tensor that all ranks have.

    Raises: ValueError where the ranks do not divide the tokens.
    """
    check_tokens("scatter_to_sequence", tensor, group, dim)
    return _Scatter.apply(tensor, group, dim)  # type: ignore[no-any-return, no-untyped-call]


def gather_from_sequence(
    tensor: Tensor, group: Group = None, dim: int = 1, *, then_sharded: bool = True
) -> Tensor:
    """All tokens, of ranks that each have as many.

    `then_sharded`: each rank goes on with weights of its own and finds a part of the gradient;
    the parts add up. False: all go on alike, each with the whole gradient, as at the end of a
    model; then backward sends nothing.
    """
    return _Gather.apply(tensor, group, dim, then_sharded)  # type: ignore[no-any-return, no-untyped-call]


def reduce_scatter_to_sequence(tensor: Tensor, group: Group = None, dim: int = 1) -> Tensor:
    """The sum of the tensors of all ranks, at this rank's tokens.

    Raises: ValueError where the ranks do not divide the tokens.
    """
    check_tokens("reduce_scatter_to_sequence", tensor, group, dim)
    return _ReduceScatter.apply(tensor, group, dim)  # type: ignore[no-any-return, no-untyped-call]


def share_parameters(*parameters: Tensor, group: Group = None) -> tuple[Tensor, ...]:
    """Parameters that all ranks have, to be used on this rank's tokens; gradients become sums.

    All gradients travel in one all-reduce. So hand over together what is used together.
    """
    return _Share.apply(group, *parameters)  # type: ignore[no-any-return, no-untyped-call]


class SequenceLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` on this rank's tokens: its parameters get the gradients of all tokens.

    Backward sends them: 2h elements in one all-reduce.
    """

    def __init__(self, *args: Any, group: Group = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.LayerNorm`."""
        own = [each for each in (self.weight, self.bias) if each is not None]
        weight, bias, *_ = (*share_parameters(*own, group=self.group), None, None)
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


def check_tokens(name: str, tensor: Tensor, group: Group, dim: int) -> None:
    """Refuse a sequence that the ranks do not divide, before anything is sent."""
    tokens, ranks = tensor.shape[dim], dist.get_world_size(group)
    if tokens % ranks:
        raise ValueError(
            f"{name}: {ranks} ranks do not divide {tokens} tokens (dim {dim} of "
            f"{tuple(tensor.shape)}). Pad the sequence to {-(-tokens // ranks) * ranks}."
        )


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return own_part(tensor, dim, group).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return start_gather(gradient, ctx.dim, ctx.group)(), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group, dim: int, then_sharded: bool) -> Tensor:
        ctx.group, ctx.dim, ctx.then_sharded = group, dim, then_sharded
        return start_gather(tensor, dim, group)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.then_sharded:
            own = start_reduce_scatter(gradient, ctx.dim, ctx.group)()
        else:
            own = own_part(gradient, ctx.dim, ctx.group).contiguous()
        return own, None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return start_reduce_scatter(tensor, dim, group)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return start_gather(gradient, ctx.dim, ctx.group)(), None, None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, *parameters: Tensor) -> Any:
        ctx.group = group
        return tuple(one.view_as(one) for one in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        sums = [each.clone() for each in gradients]
        if dist.get_world_size(ctx.group) > 1:
            for pack in packs(sums):
                dist.all_reduce(pack, group=ctx.group)
        return None, *sums
