"""The operators f and g of Megatron-LM, gather and scatter: collectives with a backward pass.

A collective in the forward pass needs another collective in the backward pass, which autograd
cannot derive. Each function here contains both. The functions of a pair are each other's reverse.

    function                  forward       backward
    copy_to_region        f   none          all_reduce
    reduce_from_region    g   all_reduce    none
    scatter_to_region         none          all_gather
    gather_from_region        all_gather    none

f: every rank computes with the same x and gets a part of its gradient; the parts must be added.
g: y is the sum of all ranks' parts, so the gradient of each part is the gradient of y.
`dtlab/simple.py` has f and g without groups. Scatter and gather divide and concatenate the last
dim. "None" means no communication: scatter keeps this rank's part in forward, and gather does so
with the gradient in backward.

After g and gather all ranks have the same tensor. They must then all compute the same loss from
it. Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.reduce_scatter import best_reduce_scatter

__all__ = [
    "copy_to_region",
    "gather_from_region",
    "reduce_from_region",
    "scatter_to_region",
]


def copy_to_region(tensor: Tensor, group: Group = None) -> Tensor:
    """Return the tensor unchanged; its gradient is the sum of all ranks' gradients (f)."""
    return _Copy.apply(tensor, group)  # type: ignore[no-any-return, no-untyped-call]


def reduce_from_region(tensor: Tensor, group: Group = None) -> Tensor:
    """Return the sum of all ranks' tensors; each tensor gets the gradient of the sum (g)."""
    return _Reduce.apply(tensor, group)  # type: ignore[no-any-return, no-untyped-call]


def scatter_to_region(tensor: Tensor, group: Group = None) -> Tensor:
    """Return this rank's part of the last dim of a tensor that is the same on all ranks.

    If the dim is not divisible by the ranks, the first ranks have one element more.
    Raises: ValueError for fewer elements than ranks.
    """
    size, ranks = tensor.shape[-1], dist.get_world_size(group)
    if size < ranks:
        raise ValueError(
            f"scatter_to_region: {ranks} ranks cannot share a last dim of {size}: some ranks "
            "would have no elements. Use a smaller group."
        )
    return _Scatter.apply(tensor, group)  # type: ignore[no-any-return, no-untyped-call]


def gather_from_region(tensor: Tensor, group: Group = None, total: int | None = None) -> Tensor:
    """Concatenate all ranks' parts along the last dim.

    If the number of ranks does not divide the size of the result, pass that size as `total`.
    Without `total`, all parts must have the same size.
    Raises: ValueError if this rank's part does not have its share of `total`.
    """
    if total is not None:
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        expected = total // ranks + (rank < total % ranks)
        if tensor.shape[-1] != expected:
            raise ValueError(
                f"gather_from_region: rank {rank} of {ranks} must have {expected} of {total} "
                f"elements, not {tensor.shape[-1]}. Cut the tensor with scatter_to_region or "
                "tensor_split."
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
    """Copy a tensor before it is reduced in place: autograd may use the original elsewhere."""
    return tensor.clone(memory_format=torch.contiguous_format)


# Collectives on one dim of a tensor, which overlap with computation -----------------------------
#
#     three ranks share a dim of 7      0 1 2 | 3 4 | 5 6      the first ranks have one more
#                                       rank 0  rank 1  rank 2
#
# Each function starts a collective and returns a function that waits for it and gives the result.
# A single rank does not communicate.

Finish = Callable[[], Tensor]


def share(size: int, rank: int, ranks: int) -> range:
    """Return which of `size` elements a rank has, as in `torch.tensor_split`."""
    least, more = divmod(size, ranks)
    start = rank * least + min(rank, more)
    return range(start, start + least + (rank < more))


def own_part(tensor: Tensor, dim: int, group: Group = None) -> Tensor:
    """Return this rank's part of a tensor that is the same on all ranks, as a view."""
    ranks = dist.get_world_size(group)
    return tensor.tensor_split(ranks, dim)[dist.get_rank(group)]


def start_all_reduce(tensor: Tensor, group: Group = None) -> Finish:
    """Start to sum a contiguous tensor over the ranks, in place."""
    if dist.get_world_size(group) == 1:
        return lambda: tensor
    work = dist.all_reduce(tensor, group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return tensor

    return finish


def start_gather(
    tensor: Tensor, dim: int, group: Group = None, total: int | None = None
) -> Finish:
    """Start to concatenate the parts of all ranks along `dim`.

    `total` is the length of the result. With `total`, parts may differ by one element; shorter
    parts are padded for the transfer. Without it, all parts must have the same length.
    """
    ranks, dim = dist.get_world_size(group), dim % tensor.dim()
    if ranks == 1:
        return lambda: tensor
    longest = tensor.shape[dim] if total is None else -(-total // ranks)
    if tensor.shape[dim] < longest:
        behind = tensor.dim() - 1 - dim
        tensor = F.pad(tensor, (0, 0) * behind + (0, longest - tensor.shape[dim]))
    parts = tensor.new_empty(ranks, *tensor.shape)
    flat = tensor.contiguous().view(-1)
    work = dist.all_gather_single(parts.view(-1), flat, group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        if total is None or longest * ranks == total:
            return parts.movedim(0, dim).flatten(dim, dim + 1)
        lengths = [len(share(total, rank, ranks)) for rank in range(ranks)]
        return torch.cat([p.narrow(dim, 0, n) for p, n in zip(parts, lengths, strict=True)], dim)

    return finish


def start_reduce_scatter(tensor: Tensor, dim: int, group: Group = None) -> Finish:
    """Start to sum the tensors of all ranks; the result is this rank's part along `dim`.

    The dim must be divisible by the number of ranks. On gloo this is an all-to-all, whose chunks
    are summed by the receiver: see `exchange_reduce_scatter`.
    """
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return lambda: tensor
    rows = torch.stack(tensor.tensor_split(ranks, dim))
    part = torch.empty_like(rows[0])
    work = best_reduce_scatter(part.view(-1), rows.view(-1), group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return part

    return finish
