"""The broken programs of Level III, as level-3.ipynb shows them, and the model that they train.

This file imports torch, so it is imported only when a check runs.
"""

# mypy: disable-error-code="no-untyped-call, var-annotated"

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from dtlab.parallel.tensor import (
    copy_to_region,
    gather_from_region,
    reduce_from_region,
    scatter_to_region,
)

__all__ = ["Layer", "Net", "share_out", "train_bias", "train_drift", "train_gather"]

Batches = Iterable[tuple[Tensor, Tensor]]


class Layer(nn.Module):
    """The MLP of a transformer block: a norm and two linear layers, with a residual connection."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, width] to [n, width]."""
        out: Tensor = x + self.narrow(F.gelu(self.wide(self.norm(x))))
        return out


class Net(nn.Module):
    """A classifier of images: `depth` layers, from 64 pixels to 10 classes."""

    def __init__(self, width: int, inner: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.layers = nn.Sequential(*(Layer(width, inner) for _ in range(depth)))
        self.leave = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map [n, 64] to [n, 10]."""
        out: Tensor = self.leave(self.layers(self.enter(images)))
        return out


def share_out(model: Net, forward: Callable[[Layer, Tensor], Tensor]) -> None:
    """Leave this rank its part of the layers; from now on they compute by `forward(layer, x)`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for layer in model.layers:
        assert isinstance(layer, Layer)
        for linear, name, dim in (
            (layer.wide, "weight", 0),
            (layer.wide, "bias", 0),
            (layer.narrow, "weight", 1),
        ):
            part = getattr(linear, name).detach().tensor_split(ranks, dim)[rank]
            setattr(linear, name, nn.Parameter(part.clone()))
        layer.forward = partial(forward, layer)  # type: ignore[method-assign]


def train_gather(model: Net, batches: Batches) -> list[float]:
    """Train `model`, whose layers all ranks share; the losses."""

    def forward(layer: Layer, x: Tensor) -> Tensor:
        inner = F.linear(copy_to_region(layer.norm(x)), layer.wide.weight, layer.wide.bias)
        inner = F.gelu(gather_from_region(inner))
        part = F.linear(scatter_to_region(inner), layer.narrow.weight)
        return x + reduce_from_region(part) + layer.narrow.bias

    share_out(model, forward)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_bias(model: Net, batches: Batches) -> list[float]:
    """Train `model`, whose layers all ranks share; the losses."""

    def forward(layer: Layer, x: Tensor) -> Tensor:
        inner = F.linear(copy_to_region(layer.norm(x)), layer.wide.weight, layer.wide.bias)
        part = F.linear(F.gelu(inner), layer.narrow.weight, layer.narrow.bias)
        return x + reduce_from_region(part)

    share_out(model, forward)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_drift(model: Net, batches: Batches) -> list[float]:
    """Train `model`, whose layers all ranks share; the losses."""

    def forward(layer: Layer, x: Tensor) -> Tensor:
        inner = F.linear(layer.norm(x), layer.wide.weight, layer.wide.bias)
        part = F.linear(F.gelu(inner), layer.narrow.weight)
        return x + reduce_from_region(part) + layer.narrow.bias

    share_out(model, forward)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
