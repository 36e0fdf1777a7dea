"""Which tokens of a sequence each rank holds: one run of tokens, or two in zig-zag order.

    16 tokens on 4 ranks        contiguous          zig-zag
    rank 0                      0  1  2  3          0  1 | 14 15
    rank 1                      4  5  6  7          2  3 | 12 13
    rank 2                      8  9 10 11          4  5 | 10 11
    rank 3                     12 13 14 15          6  7 |  8  9

Under a causal mask token t attends to t + 1 tokens. In contiguous order the last rank therefore
has most of the work: with many ranks, almost twice the mean. In zig-zag order each rank has an
early and a late run, and all ranks have the same work.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.messages import Group

__all__ = ["join_sequence", "shard_sequence", "tokens_of", "work_of"]


def tokens_of(rank: int, ranks: int, tokens: int, *, zigzag: bool = False) -> Tensor:
    """Return the positions of a rank's tokens, in increasing order.

    Raises: ValueError if the tokens are not divisible by the ranks; in zig-zag order by twice
    the ranks.
    """
    runs = 2 * ranks if zigzag else ranks
    if tokens % runs:
        order = "in zig-zag order " if zigzag else ""
        raise ValueError(
            f"{tokens} tokens cannot be split {order}over {ranks} ranks: {runs} does not divide "
            f"{tokens}. Pad the sequence to {-(-tokens // runs) * runs} tokens."
        )
    parts = torch.arange(tokens).chunk(runs)
    return torch.cat([parts[rank], parts[runs - 1 - rank]]) if zigzag else parts[rank]


def shard_sequence(
    tensor: Tensor, group: Group = None, *, zigzag: bool = False, dim: int = -2
) -> Tensor:
    """Return this rank's tokens, as a copy, of a tensor that is the same on all ranks.

    `dim` is the dim of the tokens: by default that of [b, heads, tokens, head_size].
    Raises: ValueError as `tokens_of` does.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    mine = tokens_of(rank, ranks, tensor.shape[dim], zigzag=zigzag)
    return tensor.index_select(dim, mine.to(tensor.device))


def join_sequence(
    tensor: Tensor, group: Group = None, *, zigzag: bool = False, dim: int = -2
) -> Tensor:
    """Return the tokens of all ranks in their order: the inverse of `shard_sequence`.

    All ranks must have the same number of tokens. No gradient flows through this function.
    """
    ranks = dist.get_world_size(group)
    mine = tensor.detach().contiguous()
    parts = mine.new_empty(ranks, *mine.shape)
    dist.all_gather_single(parts.view(-1), mine.view(-1), group=group)
    tokens = ranks * tensor.shape[dim]
    places = [tokens_of(rank, ranks, tokens, zigzag=zigzag) for rank in range(ranks)]
    order = torch.cat(places).argsort().to(tensor.device)
    return torch.cat(list(parts), dim).index_select(dim, order)


def work_of(rank: int, ranks: int, tokens: int, *, zigzag: bool = False) -> int:
    """Return how many pairs of a query and a key a rank computes under a causal mask."""
    return int((tokens_of(rank, ranks, tokens, zigzag=zigzag) + 1).sum())
