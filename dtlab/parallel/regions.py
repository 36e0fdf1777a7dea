"""Where a tensor enters or leaves a region whose weights are shared by ranks: Megatron's pairs.

A collective in the forward pass has another one in the backward pass, which autograd does not know
of. Each function here is both; those of a pair are each other's reverse.

    function                  forward       backward
    copy_to_region        f   nothing       all_reduce
    reduce_from_region    g   all_reduce    nothing
    scatter_to_region         nothing       all_gather
    gather_from_region        all_gather    nothing

f: every rank computes with the same x, and each finds a part of its gradient: they add up.
g: y is a sum of all ranks' parts, so each part has the gradient of y.
Scatter and gather cut and put together the last dim. "Nothing" is sent, that is: scatter keeps
this rank's part, and so does gather of the gradient.

After g and gather all ranks have the same tensor and are taken to go on alike with it: to compute
the same loss from it, each for itself. Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.tensor_moves import own_part, start_all_reduce, start_gather

__all__ = ["copy_to_region", "gather_from_region", "reduce_from_region", "scatter_to_region"]


def copy_to_region(tensor: Tensor, group: Group = None) -> Tensor:
    """The tensor itself; its gradient is the sum of the gradients of all ranks (f)."""
    return _Copy.apply(tensor, group)  # type: ignore[no-any-return, no-untyped-call]


def reduce_from_region(tensor: Tensor, group: Group = None) -> Tensor:
    """The sum of the tensors of all ranks; its gradient goes to each of them (g)."""
    return _Reduce.apply(tensor, group)  # type: ignore[no-any-return, no-untyped-call]


def scatter_to_region(tensor: Tensor, group: Group = None) -> Tensor:
    """This rank's part of the last dim, of a tensor that all ranks have.

    Where the ranks do not divide the dim, the first ones have one element more.
    Raises: ValueError for fewer elements than ranks.
    """
    size, ranks = tensor.shape[-1], dist.get_world_size(group)
    if size < ranks:
        raise ValueError(
            f"scatter_to_region: {ranks} ranks cannot share a last dim of {size}: some would have "
            "nothing. Take a smaller group."
        )
    return _Scatter.apply(tensor, group)  # type: ignore[no-any-return, no-untyped-call]


def gather_from_region(tensor: Tensor, group: Group = None, total: int | None = None) -> Tensor:
    """All ranks' parts, end to end along the last dim.

    `total` is the size of the result where the ranks do not divide it; without it all parts are
    as large as this one.
    Raises: ValueError where this rank's part is not one of `total`.
    """
    if total is not None:
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        wanted = total // ranks + (rank < total % ranks)
        if tensor.shape[-1] != wanted:
            raise ValueError(
                f"gather_from_region: rank {rank} of {ranks} has {wanted} of {total} elements, "
                f"not {tensor.shape[-1]}. Cut as scatter_to_region and torch.tensor_split do."
            )
    return _Gather.apply(tensor, group, total)  # type: ignore[no-any-return, no-untyped-call]


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return start_all_reduce(_copy(gradient), ctx.group)(), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        return start_all_reduce(_copy(tensor), group)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group, ctx.total = group, tensor.shape[-1]
        return own_part(tensor, -1, group).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return start_gather(gradient, -1, ctx.group, ctx.total)(), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group, total: int | None) -> Tensor:
        ctx.group = group
        return start_gather(tensor, -1, group, total)()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return own_part(gradient, -1, ctx.group).contiguous(), None, None


def _copy(tensor: Tensor) -> Tensor:
    """To add up in place: what autograd hands over may belong to others too."""
    return tensor.clone(memory_format=torch.contiguous_format)
