"""Ulysses attention: two all-to-alls exchange a split of the tokens for a split of the heads.

    4 tokens and 4 heads on 2 ranks

    rank 0  all heads of tokens 0 1  ─┐            ┌─►  heads 0 1 of all tokens  ─► attention
                                      ├ all-to-all ┤
    rank 1  all heads of tokens 2 3  ─┘            └─►  heads 2 3 of all tokens  ─► attention

Attention needs all tokens of a head, but only one head at a time. So before attention each rank
gives away its tokens of the other ranks' heads, and afterwards it gets its own tokens back. With
N tokens, hidden size h and P ranks a rank sends N h / P * (P - 1) / P elements for each of the
queries, keys, values and outputs: 4 N h (P - 1) / P^2. The backward pass sends as many. Every rank
needs at least one head of the queries and one of the keys and values, which limits P.

`dtlab/simple.py` has the exchange for the forward pass. The function here also has a backward
pass, sends queries, keys and values in one message, and takes grouped heads.

Jacobs et al. 2023, "DeepSpeed Ulysses", section 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.context.ring import check_inputs

__all__ = ["ulysses_attention"]


def ulysses_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group = None, *, causal: bool = True
) -> Tensor:
    """Return attention over the tokens of all ranks, for this rank's tokens.

    Args:
        q: [b, heads, tokens / ranks, head_size]: this rank's run of consecutive tokens.
        k, v: [b, kv_heads, tokens / ranks, head_size]; `heads` is a multiple of `kv_heads`.
        causal: a token attends only to itself and to earlier tokens.

    The result has the shape of q. All ranks must have the same number of tokens; see
    `ring_attention`.
    Raises: ValueError for shapes or dtypes that do not fit, or if the ranks do not divide the
    heads of the keys and values.
    """
    check_inputs("ulysses_attention", q, k, v)
    ranks = dist.get_world_size(group)
    if k.shape[1] % ranks:
        raise ValueError(
            f"ulysses_attention: {ranks} ranks cannot share {q.shape[1]} heads of queries and "
            f"{k.shape[1]} of keys and values. Each rank needs whole heads of both: use a "
            f"number of ranks that divides {k.shape[1]}, or ring_attention."
        )
    # One message for each pair of ranks holds queries, keys and values.
    heads = [x.shape[1] // ranks for x in (q, k, v)]
    rows = [torch.unflatten(x, 1, (ranks, -1)) for x in (q, k, v)]
    mine = _Exchange.apply(torch.cat(rows, 2).movedim(1, 0), group)  # type: ignore[no-untyped-call]
    whole = mine.movedim(0, 2).flatten(2, 3)  # [b, heads / ranks, tokens, d]
    q, k, v = torch.split(whole, heads, 1)
    grouped = heads[0] != heads[1]
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    parts = torch.unflatten(mixed, 2, (ranks, -1)).movedim(2, 0)
    back: Tensor = _Exchange.apply(parts, group)  # type: ignore[no-untyped-call]
    return back.movedim(0, 1).flatten(1, 2)


class _Exchange(torch.autograd.Function):
    """An all-to-all of the rows of a tensor. Its gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _exchange(rows, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _exchange(gradient, ctx.group), None


def _exchange(rows: Tensor, group: Group) -> Tensor:
    """Send row r to rank r of the group, and return the rows that came from each rank."""
    rows = rows.contiguous()
    received = torch.empty_like(rows)
    dist.all_to_all_single(received.view(-1), rows.view(-1), group=group)
    return received
