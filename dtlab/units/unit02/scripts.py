"""The eight broken training scripts of Level III, as level-3.ipynb shows them.

This module imports torch. It is imported only when a check runs.
"""

# mypy: disable-error-code="no-untyped-call, var-annotated"
# The scripts are written as most people write theirs, without full type annotations.

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dtlab.parallel.data import DataParallel

__all__ = [f"train_{number}" for number in range(1, 9)]

Data = TensorDataset
Card = Callable[[int], torch.device]


def train_1(model: nn.Module, data: Data, epochs: int) -> list[float]:
    """Train `model` on all ranks, with Adam; this rank's mean loss in each epoch."""
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    replica = DDP(model)
    optimizer = torch.optim.Adam(replica.parameters(), lr=2e-3, eps=1e-3)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_2(model: nn.Module, data: Data, epochs: int) -> list[float]:
    """Train `model` on all ranks, with SGD; this rank's mean loss in each epoch."""
    order = torch.Generator().manual_seed(2)
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=order)
    replica = DataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):  # noqa: B007
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_3(model: nn.Module, data: Data, epochs: int) -> list[float]:
    """Train `model` on all ranks, with momentum; this rank's mean loss in each epoch."""
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    replica = DDP(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(epochs):  # noqa: B007
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_4(model: nn.Module, shard: Data, epochs: int) -> list[float]:
    """Train `model` on all ranks, each on a shard of its own; this rank's mean losses."""
    order = torch.Generator().manual_seed(4)
    loader = DataLoader(shard, batch_size=8, shuffle=True, generator=order)
    replica = DataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):  # noqa: B007
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_5(model: nn.Module, data: Data, epochs: int) -> list[float]:
    """Train `model` on all ranks, averaged by hooks; this rank's mean loss in each epoch."""
    size = dist.get_world_size()

    def average(parameter: Tensor) -> None:
        dist.all_reduce(parameter.data)
        parameter.data /= size

    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
        parameter.register_post_accumulate_grad_hook(average)
    sampler = DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-3)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_6(model: nn.Module, data: Data, epochs: int, accumulate: int) -> list[float]:
    """Train `model`, a step for every `accumulate` microbatches; this rank's mean losses."""
    sampler = DistributedSampler(data, seed=6)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    replica = DDP(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for number, (images, labels) in enumerate(loader, start=1):
            loss = F.cross_entropy(replica(images), labels) / accumulate
            total += loss.item()
            if number % accumulate == 0:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                with replica.no_sync():
                    loss.backward()
        losses.append(total * accumulate / len(loader))
    return losses


def train_7(model: nn.Module, data: Data, epochs: int) -> list[float]:
    """Train `model` on all ranks, with SGD; this rank's mean loss in each epoch."""
    sampler = DistributedSampler(data, seed=7)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    replica = DDP(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.5)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            loss = F.cross_entropy(replica(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_8(model: nn.Module, data: Data, epochs: int, card: Card) -> list[float]:
    """Train `model` on several nodes; `card(k)` is torch.device("cuda", k), or stands for it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = card(rank)
    model.to(device)
    sampler = DistributedSampler(data, num_replicas=size, rank=rank, seed=8)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    replica = DDP(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses
