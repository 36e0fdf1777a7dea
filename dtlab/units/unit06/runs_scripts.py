"""The broken programs of Level III, as level-3.ipynb shows them, and the model that they train.

This file imports torch, so it is imported only when a check runs.
"""

# mypy: disable-error-code="no-untyped-call, var-annotated, operator, union-attr, arg-type"
# The programs are written as most people write theirs, without full type annotations.

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from dtlab.parallel.tensor import copy_to_region, reduce_from_region

__all__ = ["Layer", "Net", "own", "train_1", "train_2", "train_3"]

Batches = Iterable[tuple[Tensor, Tensor]]


class Layer(nn.Module):
    """A gated MLP with a norm and a residual connection, as in Llama's blocks.

    The upper half of `wide.weight` computes the gate, the lower half the values that it scales.
    """

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * inner, bias=False)
        self.narrow = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, width] to [n, width]."""
        gate, values = self.wide(self.norm(x)).chunk(2, -1)
        out: Tensor = x + self.narrow(F.silu(gate) * values)
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


def own(weight: Tensor, dim: int) -> Tensor:
    """This rank's part of a weight that is cut along `dim`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return weight.detach().tensor_split(ranks, dim)[rank].clone()


def train_1(model: Net, batches: Batches) -> list[float]:
    """Train `model`, whose layers all ranks share; return the losses."""

    def forward(layer: Layer, x: Tensor) -> Tensor:
        hidden = layer.norm(x)
        gate_weight, weight = layer.wide.weight.chunk(2)
        gate = F.silu(F.linear(copy_to_region(hidden), gate_weight))
        values = F.linear(copy_to_region(hidden), weight)
        part = F.linear(gate * values, layer.narrow.weight)
        return x + reduce_from_region(part) + layer.narrow.bias

    for layer in model.layers:
        gate, values = layer.wide.weight.chunk(2)
        layer.wide.weight = nn.Parameter(torch.cat([own(gate, 0), own(values, 0)]))
        layer.narrow.weight = nn.Parameter(own(layer.narrow.weight, 1))
        layer.forward = partial(forward, layer)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_2(model: Net, batches: Batches) -> list[float]:
    """Train `model`, whose layers all ranks share; return the losses."""

    def forward(layer: Layer, x: Tensor) -> Tensor:
        hidden = copy_to_region(layer.norm(x))
        gate, values = F.linear(hidden, layer.wide.weight).chunk(2, -1)
        part = F.linear(F.silu(gate) * values, layer.narrow.weight)
        return x + reduce_from_region(part) + layer.narrow.bias

    for layer in model.layers:
        layer.wide.weight = nn.Parameter(own(layer.wide.weight, 0))
        layer.narrow.weight = nn.Parameter(own(layer.narrow.weight, 1))
        layer.forward = partial(forward, layer)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_3(model: Net, batches: Batches) -> list[float]:
    """Train `model`, whose layers all ranks share; return the losses."""

    def forward(layer: Layer, x: Tensor) -> Tensor:
        hidden = layer.norm(copy_to_region(x))
        gate, values = F.linear(hidden, layer.wide.weight).chunk(2, -1)
        part = F.linear(F.silu(gate) * values, layer.narrow.weight)
        return x + reduce_from_region(part) + layer.narrow.bias

    for layer in model.layers:
        gate, values = layer.wide.weight.chunk(2)
        layer.wide.weight = nn.Parameter(torch.cat([own(gate, 0), own(values, 0)]))
        layer.narrow.weight = nn.Parameter(own(layer.narrow.weight, 1))
        layer.forward = partial(forward, layer)
    shards = ("wide.weight", "narrow.weight")
    whole = [p for name, p in model.named_parameters() if not name.endswith(shards)]
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        for parameter in whole:
            dist.all_reduce(parameter.grad)
        optimizer.step()
        losses.append(loss.item())
    return losses
