"""The operators f and g of Megatron-LM, gather and scatter: collectives with a backward pass.

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

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.zero.shards import best_reduce_scatter

__all__ = [
    "copy_to_region",
    "gather_from_region",
    "reduce_from_region",
    "scatter_to_region",
]


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


# Collectives on one dim of a tensor: started, so that something else may be done, then finished --
#
#     three ranks share a dim of 7      0 1 2 | 3 4 | 5 6      the first ranks have one more
#                                       rank 0  rank 1  rank 2
#
# Each function that starts something gives a function that waits for it and returns the result.
# On one rank nothing is sent.

Finish = Callable[[], Tensor]


def share(size: int, rank: int, ranks: int) -> range:
    """Which of `size` elements a rank has, as `torch.tensor_split` deals them out."""
    least, more = divmod(size, ranks)
    start = rank * least + min(rank, more)
    return range(start, start + least + (rank < more))


def own_part(tensor: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part of a tensor that all ranks have: a view."""
    ranks = dist.get_world_size(group)
    return tensor.tensor_split(ranks, dim)[dist.get_rank(group)]


def start_all_reduce(tensor: Tensor, group: Group = None) -> Finish:
    """Start to add up a contiguous tensor over the ranks, in place."""
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
    """Start to put the parts of all ranks together along `dim`.

    `total` is the length of the result where the number of ranks may not divide it: then shorter
    parts travel with padding. Without it all parts are as long as this one.
    """
    ranks, dim = dist.get_world_size(group), dim % tensor.dim()
    if ranks == 1:
        return lambda: tensor
    longest = tensor.shape[dim] if total is None else -(-total // ranks)
    if tensor.shape[dim] < longest:
        behind = tensor.dim() - 1 - dim
        tensor = F.pad(tensor, (0, 0) * behind + (0, longest - tensor.shape[dim]))
    parts = tensor.new_empty(ranks, *tensor.shape)
    own = tensor.contiguous().view(-1)
    work = dist.all_gather_single(parts.view(-1), own, group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        if total is None or longest * ranks == total:
            return parts.movedim(0, dim).flatten(dim, dim + 1)
        lengths = [len(share(total, rank, ranks)) for rank in range(ranks)]
        return torch.cat([p.narrow(dim, 0, n) for p, n in zip(parts, lengths, strict=True)], dim)

    return finish


def start_reduce_scatter(tensor: Tensor, dim: int, group: Group = None) -> Finish:
    """Start to add up the tensors of all ranks, as far as this rank's part along `dim` goes.

    The number of ranks divides the dim. On gloo it is an all-to-all, whose chunks are added up
    where they arrive: see `exchange_reduce_scatter`.
    """
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return lambda: tensor
    rows = torch.stack(tensor.tensor_split(ranks, dim))
    own = torch.empty_like(rows[0])
    work = best_reduce_scatter(own.view(-1), rows.view(-1), group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return own

    return finish
