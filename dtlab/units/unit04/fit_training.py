"""The step that carries out a plan of 04/fit, as level-3.ipynb shows it. Imports torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dtlab.training.activation import checkpoint, peak_bytes

__all__ = ["build", "measure", "step"]


def build(sizes: Sequence[Sequence[int]]) -> list[nn.Sequential]:
    """A layer for each (width, hidden, GELUs, next width)."""
    return [
        nn.Sequential(
            nn.Linear(width, hidden), *(nn.GELU() for _ in range(gelus)), nn.Linear(hidden, out)
        )
        for width, hidden, gelus, out in sizes
    ]


def step(layers: Sequence[nn.Module], plan: Collection[int], rows: int) -> Tensor:
    """Runs a forward pass with a checkpoint over each layer of `plan`; a loss per output."""
    x = torch.ones(rows, layers[0][0].in_features)  # type: ignore[index]
    for number, layer in enumerate(layers):
        x = checkpoint(layer, x) if number in plan else layer(x)
    return x * torch.ones_like(x)


def measure(sizes: Sequence[Sequence[int]], plan: Collection[int], rows: int) -> dict[str, Any]:
    """Measures the peak bytes of a real step, and the operations that backward runs again."""
    layers = build(sizes)
    operations = 0

    def count(linear: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal operations
        operations += 2 * inputs[0].numel() * output.shape[-1]

    for layer in layers:
        for part in layer:
            if isinstance(part, nn.Linear):
                part.register_forward_hook(count)
    peak = peak_bytes(step, layers, set(plan), rows)
    once = sum(2 * rows * hidden * (width + out) for width, hidden, _, out in sizes)
    return {"peak": peak, "work": operations - once}
