"""Megatron-LM's sequence parallelism: each rank has some tokens between tensor-parallel regions.

Norms and dropout process each token separately. With tensor parallelism alone every rank does this
for all tokens, and saves their activations. Here each rank does it for its own tokens only. A
reduce-scatter at one end and an all-gather at the other replace an all-reduce; together they send
the same number of bytes.

    tokens   0 1 | 2 3 ──► norm ──► ┌───────────┐ ──► weights ──► ┌────────────────┐ ──► 0 1 | 2 3
             rank 0 rank 1          │ all_gather│    sharded      │ reduce_scatter │
                                    └───────────┘                 └────────────────┘

    function                      forward           backward
    scatter_to_sequence           none              all_gather
    gather_from_sequence          all_gather        reduce_scatter
    reduce_scatter_to_sequence    reduce_scatter    all_gather
    share_parameters              none              all_reduce

Tokens are dim 1 of [b, s, h], or `dim`. If each rank uses a parameter for some tokens only, it has
a part of the gradient: `share_parameters` sums the parts, and `SequenceLayerNorm` uses it.

Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", section
4.2.2: there g is gather_from_sequence, and g with a bar is reduce_scatter_to_sequence.
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
    """Return this rank's tokens of a tensor that is the same on all ranks.

    Raises: ValueError if the tokens are not divisible by the ranks.
    """
    check_tokens("scatter_to_sequence", tensor, group, dim)
    return _Scatter.apply(tensor, group, dim)  # type: ignore[no-any-return, no-untyped-call]


def gather_from_sequence(
    tensor: Tensor, group: Group = None, dim: int = 1, *, then_sharded: bool = True
) -> Tensor:
    """Concatenate the tokens of all ranks; each rank must have the same number.

    `then_sharded` describes the computation after this call. True: the ranks use different
    weights, so each computes a part of the gradient, and backward sums the parts. False: all ranks
    compute the same, as at the end of a model, so each has the whole gradient, and backward does
    not communicate.
    """
    return _Gather.apply(tensor, group, dim, then_sharded)  # type: ignore[no-any-return, no-untyped-call]


def reduce_scatter_to_sequence(tensor: Tensor, group: Group = None, dim: int = 1) -> Tensor:
    """Sum the tensors of all ranks, and return this rank's tokens of the sum.

    Raises: ValueError if the tokens are not divisible by the ranks.
    """
    check_tokens("reduce_scatter_to_sequence", tensor, group, dim)
    return _ReduceScatter.apply(tensor, group, dim)  # type: ignore[no-any-return, no-untyped-call]


def share_parameters(*parameters: Tensor, group: Group = None) -> tuple[Tensor, ...]:
    """Return replicated parameters for use on this rank's tokens; backward sums their gradients.

    The gradients are summed over the ranks. Each call needs one all-reduce per dtype and device,
    for the gradients of all its parameters. So pass parameters that are used together to the same
    call.
    """
    return _Share.apply(group, *parameters)  # type: ignore[no-any-return, no-untyped-call]


class SequenceLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` on this rank's tokens; its parameters get the gradients of all tokens.

    Backward needs one all-reduce of 2h elements.
    """

    def __init__(self, *args: Any, group: Group = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group

    def forward(self, input: Tensor) -> Tensor:
        """Normalize as `nn.LayerNorm` does."""
        parameters = [each for each in (self.weight, self.bias) if each is not None]
        weight, bias, *_ = (*share_parameters(*parameters, group=self.group), None, None)
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


def check_tokens(name: str, tensor: Tensor, group: Group, dim: int) -> None:
    """Raise ValueError if tokens are not divisible by ranks, before communication."""
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
            part = start_reduce_scatter(gradient, ctx.dim, ctx.group)()
        else:
            part = own_part(gradient, ctx.dim, ctx.group).contiguous()
        return part, None, None, None


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
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        sums = [gradient.clone() for gradient in gradients]
        if dist.get_world_size(ctx.group) > 1:
            for pack in packs(sums):
                dist.all_reduce(pack, group=ctx.group)
        return None, *sums
