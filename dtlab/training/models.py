"""Four small models: an MLP, a convolutional network, a U-Net, a GPT.

They are ordinary modules. Each draws its parameters from a seed or a `torch.Generator`, and does
not change PyTorch's global random state: so the caller decides whether ranks begin with equal or
with different parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GPT", "MLP", "Block", "ConvNet", "GPTConfig", "UNet"]

Seed = int | torch.Generator


@contextmanager
def _drawn_from(seed: Seed) -> Iterator[None]:
    """Draw the parameters of modules made inside the block from `seed`, by PyTorch's rules."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(generator.get_state())
        yield
        generator.set_state(torch.default_generator.get_state())  # for the next model


# MLP and convolutional net ------------------------------------------------------------


class MLP(nn.Module):
    """Linear layers of the given sizes with ReLU between them: [n, ...] to [n, sizes[-1]].

    `MLP(64, 128, 128, 10)` takes images of `digits`. Parameters are drawn as in `nn.Linear`.

    Raises: ValueError for fewer than two sizes, or a size below 1.
    """

    def __init__(self, *sizes: int, seed: Seed = 0) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"An MLP needs two sizes or more, each at least 1, not {sizes}.")
        layers: list[nn.Module] = []
        with _drawn_from(seed):
            for inputs, outputs in itertools.pairwise(sizes):
                layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits; all dims of `inputs` after the first are flattened."""
        logits: Tensor = self.layers(inputs.flatten(1))
        return logits


class ConvNet(nn.Module):
    """Two convolutions with BatchNorm for images of one channel: [n, 1, h, w] to [n, classes].

    BatchNorm computes statistics of a whole batch. So the outputs of this model, unlike those of
    `MLP` and `GPT`, change if a large batch is cut into microbatches.
    """

    def __init__(self, channels: int = 8, num_classes: int = 10, seed: Seed = 0) -> None:
        super().__init__()
        with _drawn_from(seed):
            self.layers = nn.Sequential(
                nn.Conv2d(1, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(2 * channels),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(2),
                nn.Flatten(),
                nn.Linear(8 * channels, num_classes),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.layers(images)
        return logits


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015): [n, channels, H, W] to the same shape.

    At each of `depth` levels two 3 x 3 convolutions, with group norm and ReLU, work on half as
    many rows and columns and twice as many features as above. On the way up, the features of the
    same level are appended. H and W must be multiples of 2^depth.
    """

    def __init__(
        self, channels: int = 1, width: int = 8, depth: int = 2, *, circular: bool = False,
        seed: Seed = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        mode: Literal["circular", "zeros"] = "circular" if circular else "zeros"

        def pair(inputs: int, outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for size in (inputs, outputs):
                convolution = nn.Conv2d(size, outputs, 3, padding=1, padding_mode=mode)
                layers += [convolution, nn.GroupNorm(4, outputs), nn.ReLU()]
            return nn.Sequential(*layers)

        widths = [width << level for level in range(depth + 1)]
        with _drawn_from(seed):
            self.down = nn.ModuleList(map(pair, [channels, *widths[:-1]], widths))
            above = list(itertools.pairwise(widths))[::-1]
            self.up = nn.ModuleList(pair(fine + coarse, fine) for fine, coarse in above)
            self.last = nn.Conv2d(width, channels, 1)
        self.shrink, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, field: Tensor) -> Tensor:
        """Return a field of the same shape."""
        kept = [self.down[0](field)]
        for level in self.down[1:]:
            kept.append(level(self.shrink(kept[-1])))
        features = kept.pop()
        for level in self.up:
            features = level(torch.cat([kept.pop(), self.grow(features)], 1))
        result: Tensor = self.last(features)
        return result


# GPT ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a `GPT`; the defaults give 125 thousand parameters.

    Raises: ValueError for a size below 1, or a width that the heads do not divide.
    """

    vocab_size: int = 256
    context: int = 64  # the longest sequence, in tokens
    num_layers: int = 2
    num_heads: int = 4
    width: int = 64

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < 1:
                raise ValueError(f"{name} must be a whole number of 1 or more, not {size!r}.")
        if self.width % self.num_heads:
            raise ValueError(f"{self.num_heads} heads do not divide a width of {self.width}.")


class Attention(nn.Module):
    """Causal self-attention: [n, tokens, width] to the same shape."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.queries_keys_values = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute causal attention."""
        parts = self.queries_keys_values(hidden).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return projected


class Block(nn.Module):
    """A transformer block: [n, tokens, width] to the same shape."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Add the outputs of attention and the MLP to the residual stream."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        added: Tensor = self.mlp(self.mlp_norm(hidden))
        return hidden + added


class GPT(nn.Module):
    """A small GPT-2: tokens [n, t] to logits [n, t, vocab_size], for t up to `config.context`.

    The output layer is the token embedding: one parameter with two names, whose gradient is the
    sum of the gradients of both uses. There is no dropout, so that runs can be compared.

    Radford et al. 2019; tied embeddings: Press & Wolf 2017.
    """

    def __init__(self, config: GPTConfig | None = None, seed: Seed = 0) -> None:
        super().__init__()
        self.config = config = config or GPTConfig()
        with _drawn_from(seed):
            self.token_embedding = nn.Embedding(config.vocab_size, config.width)
            self.position_embedding = nn.Embedding(config.context, config.width)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
            self.norm = nn.LayerNorm(config.width)
            self.head = nn.Linear(config.width, config.vocab_size, bias=False)
            self.head.weight = self.token_embedding.weight
            self._draw()

    def _draw(self) -> None:
        """Draw GPT-2's initial values: std 0.02, smaller with depth on the residual stream."""
        for name, parameter in self.named_parameters():  # a tied parameter occurs once
            if "norm" in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
                continue
            adds = name.endswith(("projection.weight", "mlp.2.weight"))
            std = 0.02 / math.sqrt(2 * self.config.num_layers) if adds else 0.02
            nn.init.normal_(parameter, 0.0, std)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token that follows each token.

        Raises: ValueError for sequences longer than the context.
        """
        length = tokens.shape[1]
        if length > self.config.context:
            raise ValueError(
                f"Sequences of {length} tokens do not fit a context of {self.config.context}."
            )
        positions = torch.arange(length, device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits
