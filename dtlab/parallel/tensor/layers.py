"""Tensor-parallel transformer layers: each rank has a part of every weight and sees all tokens.

A transformer block of Megatron-LM on two ranks; f and g are the operators of regions.py:

    rank 0  x ─ norm ─ f ─ column ─ heads 0 1 ─ row ─ g ─ + ─ norm ─ f ─ column ─ gelu ─ row ─ g ─
                       ¦                              ¦              ¦                         ¦
    rank 1  x ─ norm ─ f ─ column ─ heads 2 3 ─ row ─ g ─ + ─ norm ─ f ─ column ─ gelu ─ row ─ g ─

    forward      f: none          g: all_reduce      2 all-reduces
    backward     f: all_reduce    g: none            2 all-reduces

A column-parallel layer gives each rank some features. GELU works on each feature separately, and
attention on each head, and the row-parallel layer takes the features that its rank has. So no
communication is needed between column and row. For b sequences of s tokens and hidden size h, each
of t ranks sends 2(t-1)/t bsh elements in an all-reduce, and 8bsh(t-1)/t per layer and microbatch
(Narayanan et al. 2021, section 3.2). Computation waits for each all-reduce, so keep a
tensor-parallel group inside a node.

With `sequence_parallel` f is an all-gather and g a reduce-scatter, and norms and dropout process
only this rank's tokens: see sequence.py. Each of these collectives sends half the bytes of an
all-reduce. Backward gathers the inputs of the two column-parallel layers once more, so the total
is 10bsh(t-1)/t.

Each layer is an ordinary module. Its `state_dict` has this rank's shards under the names of the
dense layer; `full_state_dict` has the dense tensors.

Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from dtlab.messages import Group
from dtlab.parallel.tensor.attention import ParallelAttention
from dtlab.parallel.tensor.dropout import RankDropout
from dtlab.parallel.tensor.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
)
from dtlab.parallel.tensor.sequence import SequenceLayerNorm
from dtlab.parallel.tensor.state import (
    take_shards,
)
from dtlab.training.activation import checkpoint

__all__ = ["ParallelBlock", "ParallelMLP"]

Recompute = Literal["none", "selective", "full"]


class ParallelMLP(nn.Sequential):
    """A column-parallel layer, GELU and a row-parallel layer: [b, s, hidden_size] to the same.

    Args:
        hidden_size: size of input and output.
        inner_size: size between the linear layers, divided among the ranks; None: 4 hidden_size.
        sequence_parallel: inputs and outputs are this rank's tokens, [b, s / ranks, hidden_size].
        group: the ranks that share the weights; None: all.
    """

    def __init__(
        self,
        hidden_size: int,
        inner_size: int | None = None,
        *,
        bias: bool = True,
        sequence_parallel: bool = False,
        group: Group = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        inner = 4 * hidden_size if inner_size is None else inner_size
        options: dict[str, Any] = {
            "bias": bias, "sequence_parallel": sequence_parallel, "group": group,
            "device": device, "dtype": dtype,
        }  # fmt: skip
        super().__init__(
            ColumnParallelLinear(hidden_size, inner, **options),
            nn.GELU(),
            RowParallelLinear(inner, hidden_size, **options),
        )

    @classmethod
    def from_dense(
        cls, dense: nn.Sequential, group: Group = None, *, sequence_parallel: bool = False
    ) -> Self:
        """Make this rank's shard of a dense `nn.Sequential(linear, GELU, linear)`."""
        parts: list[Any] = list(dense)
        first, gelu, last = parts
        mlp = cls(
            first.in_features, first.out_features, bias=last.bias is not None,
            sequence_parallel=sequence_parallel, group=group, device="meta",
        )  # fmt: skip
        mlp[1] = gelu
        return take_shards(mlp, dense)


class ParallelBlock(nn.Module):
    """A transformer block whose weights are divided among ranks: [b, s, hidden_size] to the same.

    Args:
        hidden_size, num_heads, num_kv_heads: see `ParallelAttention`.
        dropout: the probability in three places: attention weights, attention output, MLP output.
        fused_attention: use one operator that never stores the tokens x tokens matrices.
        recompute: "selective" checkpoints the core of attention, unless `fused_attention` is set;
            "full" checkpoints the whole block, with its collectives.
        sequence_parallel: inputs and outputs are this rank's tokens, [b, s / ranks, hidden_size]:
            see `scatter_to_sequence` and `gather_from_sequence`.
        group: the ranks that share the weights; None: all. The ranks' random generators must be in
            sync, so that their shards belong to one dense layer and dropout drops the same
            elements of replicated tensors.

    Raises: ValueError for an unknown `recompute`, or numbers of heads that do not divide.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        fused_attention: bool = True,
        recompute: Recompute = "none",
        sequence_parallel: bool = False,
        group: Group = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if recompute not in ("none", "selective", "full"):
            raise ValueError(
                f'recompute must be "none", "selective" or "full", not {recompute!r}.'
            )
        self.recompute, self.sequence_parallel = recompute, sequence_parallel
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        shared: dict[str, Any] = {
            "sequence_parallel": sequence_parallel,
            "group": group,
            **factory,
        }
        self.attention_norm = _norm(hidden_size, **shared)
        self.attention = ParallelAttention(
            hidden_size, num_heads, num_kv_heads=num_kv_heads, dropout=dropout,
            fused=fused_attention, recompute=recompute == "selective", **shared,
        )  # fmt: skip
        self.attention_dropout = _dropout(dropout, sequence_parallel, group)
        self.mlp_norm = _norm(hidden_size, **shared)
        self.mlp = ParallelMLP(hidden_size, **shared)
        self.mlp_dropout = _dropout(dropout, sequence_parallel, group)

    @classmethod
    def from_dense(
        cls, dense: Any, group: Group = None, *, sequence_parallel: bool = False
    ) -> Self:
        """Make this rank's shard of a `training.models.Block` or `TransformerLayer`.

        Sizes, dropout and recomputation are those of the dense layer.
        """
        norm, dropout = dense.attention_norm, getattr(dense, "attention_dropout", None)
        block = cls(
            norm.normalized_shape[0], dense.attention.num_heads,
            dropout=dropout.p if dropout else 0.0, recompute=getattr(dense, "recompute", "none"),
            sequence_parallel=sequence_parallel, group=group, device="meta",
        )  # fmt: skip
        options: dict[str, Any] = {"group": group, "sequence_parallel": sequence_parallel}
        block.attention = ParallelAttention.from_dense(dense.attention, **options)
        block.mlp = ParallelMLP.from_dense(dense.mlp, **options)
        block.attention_norm.eps, block.mlp_norm.eps = norm.eps, dense.mlp_norm.eps
        return take_shards(block, dense)

    def forward(self, hidden: Tensor) -> Tensor:
        """Add the outputs of attention and the MLP to the residual stream."""
        return checkpoint(self.run, hidden) if self.recompute == "full" else self.run(hidden)

    def run(self, hidden: Tensor) -> Tensor:
        """Run the block without checkpointing."""
        hidden = hidden + self.attention_dropout(self.attention(self.attention_norm(hidden)))
        added: Tensor = self.mlp_dropout(self.mlp(self.mlp_norm(hidden)))
        return hidden + added


def _norm(size: int, sequence_parallel: bool, group: Group, **factory: Any) -> nn.LayerNorm:
    if sequence_parallel:
        return SequenceLayerNorm(size, group=group, **factory)
    return nn.LayerNorm(size, **factory)


def _dropout(p: float, sequence_parallel: bool, group: Group) -> nn.Dropout:
    """Return dropout that is the same on all ranks or, with sequence parallelism, differs."""
    return RankDropout(p, group=group) if sequence_parallel else nn.Dropout(p)
