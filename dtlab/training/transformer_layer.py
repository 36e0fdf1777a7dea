"""A transformer layer with the options of Korthikanti et al.'s activation formula.

    bytes saved for backward, in units of sbh        formula       measured on a CPU, as/h = 8
    inputs and outputs of both norms                 4 + 4         4 + 4
    q, k, v; attention's result                      6 + 2         6 + 2
    MLP: before and after GELU                       8 + 8         8 + 8
    dropout after attention and MLP: masks           1 + 1         2 + 2
    softmax, its dropout's mask and output           5 a s/h       6 a s/h

b sequences of s tokens, hidden size h, a heads, 16-bit numbers. On a GPU a mask has one byte per
element; on a CPU it has the dtype of its operand. Korthikanti et al. 2022, "Reducing activation
recomputation in large transformer models", section 4.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.training.activation import checkpoint

__all__ = ["TransformerLayer"]

Recompute = Literal["none", "selective", "full"]


class Attention(nn.Module):
    """Causal self-attention; its tokens x tokens matrices are saved, recomputed, or fused."""

    def __init__(
        self, hidden_size: int, num_heads: int, dropout: float, fused: bool, recompute: bool
    ) -> None:
        super().__init__()
        self.num_heads, self.fused, self.recompute = num_heads, fused, recompute
        self.queries_keys_values = nn.Linear(hidden_size, 3 * hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute causal attention: [b, s, h] to the same shape."""
        parts = self.queries_keys_values(hidden).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            p = self.dropout.p if self.training else 0.0
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        elif self.recompute:
            mixed = checkpoint(self.core, q, k, v)
        else:
            mixed = self.core(q, k, v)
        projected: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return projected

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute attention without the projections: q, k, v [b, a, s, h/a] to that shape."""
        tokens = q.shape[-2]
        later = torch.full((tokens, tokens), -math.inf, dtype=q.dtype, device=q.device).triu(1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + later
        mixed: Tensor = self.dropout(scores.softmax(-1)) @ v
        return mixed


class TransformerLayer(nn.Module):
    """A transformer layer: [b, s, h] to the same shape.

    Args:
        hidden_size: h, a multiple of `num_heads`.
        dropout: the probability in three places: attention weights, attention output, MLP output.
        fused_attention: use one operator that never stores the tokens x tokens matrices. On a CPU
            PyTorch has one only without dropout.
        recompute: "selective" checkpoints the core of attention, unless `fused_attention` is set;
            "full" checkpoints the whole layer.

    Raises: ValueError for an unknown `recompute`, or heads that do not divide the size.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        dropout: float = 0.1,
        fused_attention: bool = False,
        recompute: Recompute = "none",
    ) -> None:
        super().__init__()
        if recompute not in ("none", "selective", "full"):
            raise ValueError(
                f'recompute must be "none", "selective" or "full", not {recompute!r}.'
            )
        if hidden_size % num_heads:
            raise ValueError(f"{num_heads} heads do not divide a hidden size of {hidden_size}.")
        selective = recompute == "selective"
        self.recompute = recompute
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.attention = Attention(hidden_size, num_heads, dropout, fused_attention, selective)
        self.attention_dropout = nn.Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 4 * hidden_size),
            nn.GELU(),
            nn.Linear(4 * hidden_size, hidden_size),
        )
        self.mlp_dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Add the outputs of attention and the MLP to the residual stream."""
        return checkpoint(self.run, hidden) if self.recompute == "full" else self.run(hidden)

    def run(self, hidden: Tensor) -> Tensor:
        """Run the layer without checkpointing."""
        hidden = hidden + self.attention_dropout(self.attention(self.attention_norm(hidden)))
        added: Tensor = self.mlp_dropout(self.mlp(self.mlp_norm(hidden)))
        return hidden + added
