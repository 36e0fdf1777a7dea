"""Collectives on one dim of a tensor: started, so that something else may be done, then finished.

    three ranks share a dim of 7      0 1 2 | 3 4 | 5 6      the first ranks have one more
                                      rank 0  rank 1  rank 2

Each function that starts something gives a function that waits for it and returns the result.
On one rank nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dtlab.messages import Group
from dtlab.parallel.shards import best_reduce_scatter

__all__ = ["own_part", "share", "start_all_reduce", "start_gather", "start_reduce_scatter"]

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
