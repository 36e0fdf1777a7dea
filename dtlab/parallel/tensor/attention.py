"""Tensor-parallel attention: each rank computes some of the heads, without communication.

weight [q; k; v] of 4 query heads and 2 heads of keys and values, on two ranks

dense     q0 q1 q2 q3 | k0 k1 | v0 v1      q0 and q1 attend to k0, q2 and q3 to k1
rank 0    q0 q1       | k0    | v0
rank 1          q2 q3 |    k1 |    v1
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.messages import Group
from dtlab.parallel.tensor.dropout import RankDropout, rank_randomness
from dtlab.parallel.tensor.linear import ColumnParallelLinear, RowParallelLinear
from dtlab.parallel.tensor.state import take_shards
from dtlab.training.activation import checkpoint

__all__ = ["ParallelAttention"]


class ParallelAttention(nn.Module):
    """Causal self-attention with some heads on each rank: [b, s, hidden_size] to the same shape.

    Args:
        hidden_size: a multiple of `num_heads`, which is a multiple of the number of ranks.
        num_kv_heads: number of heads of keys and values, each used by several query heads (Ainslie
            et al. 2023, "GQA"). It divides `num_heads` and is a multiple of the number of ranks.
            None: `num_heads`.
        dropout: probability for attention weights; each rank drops different elements.
        fused: use one operator that never stores the tokens x tokens matrices.
        recompute: without `fused`, save only queries, keys and values for backward, and recompute
            the tokens x tokens matrices.
        sequence_parallel: inputs and outputs are this rank's tokens, [b, s / ranks, hidden_size].
        group: the ranks that share the heads; None: all.

    The dense layer has one weight, [q; k; v], for queries, keys and values. A rank has the rows of
    its heads in q, in k and in v. Raises: ValueError for sizes that are not multiples as required.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        fused: bool = True,
        recompute: bool = False,
        sequence_parallel: bool = False,
        group: Group = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.num_heads, self.num_kv_heads = num_heads, kv_heads
        self.head_size = _head_size(hidden_size, num_heads, kv_heads)
        self.fused, self.recompute, self.group = fused, recompute, group
        options: dict[str, Any] = {
            "sequence_parallel": sequence_parallel, "group": group,
            "device": device, "dtype": dtype,
        }  # fmt: skip
        pieces = tuple(heads * self.head_size for heads in (num_heads, kv_heads, kv_heads))
        _check_heads(num_heads, kv_heads, group)
        self.queries_keys_values = ColumnParallelLinear(
            hidden_size, sum(pieces), pieces=pieces, **options
        )
        self.dropout = RankDropout(dropout, group=group)
        self.projection = RowParallelLinear(hidden_size, hidden_size, **options)

    @classmethod
    def from_dense(
        cls, dense: Any, group: Group = None, *, sequence_parallel: bool = False
    ) -> Self:
        """Make this rank's shard of a dense attention layer, such as that of `training.models`."""
        hidden_size = dense.projection.out_features
        rows = dense.queries_keys_values.out_features
        dropout = getattr(dense, "dropout", None)
        attention = cls(
            hidden_size, dense.num_heads,
            num_kv_heads=(rows - hidden_size) * dense.num_heads // hidden_size // 2,
            dropout=dropout.p if dropout else 0.0, fused=getattr(dense, "fused", True),
            recompute=getattr(dense, "recompute", False),
            sequence_parallel=sequence_parallel, group=group, device="meta",
        )  # fmt: skip
        return take_shards(attention, dense)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute causal attention with this rank's heads."""
        projections = self.queries_keys_values(hidden)
        heads = projections.unflatten(-1, (-1, self.head_size)).transpose(1, 2)  # [b, head, s, d]
        kv_heads = self.num_kv_heads * heads.shape[1] // (self.num_heads + 2 * self.num_kv_heads)
        q, k, v = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], 1)
        if q.shape[1] != kv_heads:
            k, v = (each.repeat_interleave(q.shape[1] // kv_heads, 1) for each in (k, v))
        if self.fused:
            mixed = self._fused(q, k, v)
        else:
            mixed = checkpoint(self.core, q, k, v) if self.recompute else self.core(q, k, v)
        projected: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return projected

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = self.dropout.p if self.training else 0.0
        if not p:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with rank_randomness(q.device, self.group):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute attention without the projections: q, k, v [b, heads, s, size] to that shape."""
        tokens = q.shape[-2]
        later = torch.full((tokens, tokens), -math.inf, dtype=q.dtype, device=q.device).triu(1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + later
        mixed: Tensor = self.dropout(scores.softmax(-1)) @ v
        return mixed


def _head_size(hidden_size: int, num_heads: int, num_kv_heads: int) -> int:
    if hidden_size % num_heads:
        raise ValueError(f"{num_heads} heads do not divide a hidden size of {hidden_size}.")
    if num_heads % num_kv_heads:
        raise ValueError(
            f"{num_kv_heads} heads of keys and values do not divide {num_heads} heads of queries."
        )
    return hidden_size // num_heads


def _check_heads(num_heads: int, num_kv_heads: int, group: Group) -> None:
    ranks, most = dist.get_world_size(group), math.gcd(num_heads, num_kv_heads)
    if most % ranks:
        fits = " or ".join(str(n) for n in range(1, most + 1) if most % n == 0)
        raise ValueError(
            f"ParallelAttention: {ranks} ranks do not divide {num_heads} heads of queries and "
            f"{num_kv_heads} heads of keys and values, and each rank needs whole heads. Use a "
            f"group of {fits} ranks, or other numbers of heads."
        )
