"""A transformer layer with the options of Korthikanti et al.'s activation formula.

    bytes kept for backward, in units of s b h      formula       measured on a CPU, as/h = 8
    input of both norms, and what they put out       4 + 4         4 + 4
    q, k, v; attention gathered                      6 + 2         6 + 2
    MLP: before and after GELU                       8 + 8         8 + 8
    dropout after attention and MLP: masks           1 + 1         2 + 2
    softmax, its dropout's mask and output           5 a s/h       6 a s/h

In 16 bits. A mask takes a byte on a GPU; on a CPU it has the dtype of what it is multiplied with.
Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models",
section 4.
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
    """Causal self-attention, whose matrices of tokens by tokens are kept, recomputed, or fused."""

    def __init__(
        self, hidden_size: int, num_heads: int, dropout: float, fused: bool, recompute: bool
    ) -> None:
        super().__init__()
        self.num_heads, self.fused, self.recompute = num_heads, fused, recompute
        self.queries_keys_values = nn.Linear(hidden_size, 3 * hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[b, s, h] to the same."""
        parts = self.queries_keys_values(hidden).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            p = self.dropout.p if self.training else 0.0
            gathered = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        elif self.recompute:
            gathered = checkpoint(self.core, q, k, v)
        else:
            gathered = self.core(q, k, v)
        projected: Tensor = self.projection(gathered.transpose(1, 2).flatten(2))
        return projected

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The part that grows with the square of the tokens: [b, a, s, h/a] each, to the same."""
        tokens = q.shape[-2]
        later = torch.full((tokens, tokens), -math.inf, dtype=q.dtype, device=q.device).triu(1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + later
        gathered: Tensor = self.dropout(scores.softmax(-1)) @ v
        return gathered


class TransformerLayer(nn.Module):
    """A layer of a transformer: [b, s, h] to the same.

    Args:
        hidden_size: h, a multiple of `num_heads`.
        dropout: the probability, in three places: attention, and what attention and MLP add.
        fused_attention: by one operator that keeps no matrix of tokens by tokens. PyTorch has one
            without dropout only on a CPU.
        recompute: "selective" checkpoints the core of attention, "full" the layer.

    Raises: ValueError for a `recompute` of another name, or heads that do not divide the size.
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
            raise ValueError(f'recompute is "none", "selective" or "full", not {recompute!r}.')
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
        """Add what attention and the MLP have to say to the residual stream."""
        return checkpoint(self.run, hidden) if self.recompute == "full" else self.run(hidden)

    def run(self, hidden: Tensor) -> Tensor:
        """The layer itself."""
        hidden = hidden + self.attention_dropout(self.attention(self.attention_norm(hidden)))
        added: Tensor = self.mlp_dropout(self.mlp(self.mlp_norm(hidden)))
        return hidden + added
