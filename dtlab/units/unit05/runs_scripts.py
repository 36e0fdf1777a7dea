"""The broken programs of Level III, as level-3.ipynb shows them, and the model that they train.

A check runs them on ranks, to compare a diagnosis with what really happens. A line has the number
that it has in the cell: the one with `def` is line 1. This file loads torch: it is imported when a
check runs, never before.
"""

# mypy: disable-error-code="no-untyped-call, var-annotated"
# Programs are as people write them.

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import SGD

from dtlab.parallel.zero import Zero3

__all__ = ["Layer", "Net", "train_gather", "train_leak", "train_policies"]

Batches = Iterable[tuple[Tensor, Tensor]]


class Layer(nn.Module):
    """To twice the width and back, beside a way round."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, width] to the same."""
        out: Tensor = x + self.narrow(F.gelu(self.wide(x)))
        return out


class Net(nn.Module):
    """64 pixels to 10 classes, through so many layers of one width."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))
        self.leave = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """[n, 64] to [n, 10]."""
        out: Tensor = self.leave(self.layers(self.enter(images)))
        return out


def train_gather(model: Net, batches: Batches) -> list[float]:
    """Train `model` under stage 3; the losses."""

    def is_block(module: nn.Module) -> bool:
        return sum(one.numel() for one in module.parameters()) >= 5000

    sharded = Zero3(model, blocks=is_block)
    optimizer = SGD(sharded.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(sharded(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_policies(model: Net, batches: Batches) -> list[float]:
    """Train `model` in bfloat16, and add up gradients in float32; the losses."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    in_layers = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for_all = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=in_layers)
    fully_shard(model, mesh=mesh, mp_policy=for_all)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_leak(model: Net, batches: Batches) -> list[float]:
    """Train `model` under stage 3, and leave the mean over the steps in it; the losses."""
    sharded = Zero3(model, blocks=Layer)
    optimizer = SGD(sharded.parameters(), lr=0.1)
    losses, after = [], []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(sharded(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after.append(sharded.full_state_dict())
    mean = {name: sum(one[name] for one in after) / len(after) for name in after[0]}
    sharded.load_state_dict(mean)
    return losses
