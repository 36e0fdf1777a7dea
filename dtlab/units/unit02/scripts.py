"""The eight broken training scripts of Level III, as level-3.ipynb shows them.

This module imports torch. It is imported only when a check runs.
"""

# mypy: disable-error-code="no-untyped-call,var-annotated,operator,assignment,index,union-attr"
# The scripts are written as most people write theirs, without full type annotations.

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dtlab.parallel.data import DataParallel

__all__ = [f"train_{number}" for number in range(1, 9)]

Data = TensorDataset
Card = Callable[[int], torch.device]


def train_1(model: nn.Module, data: Data, epochs: int) -> list[float]:
    """Train `model` on all ranks with Adam; return this rank's mean loss in each epoch."""
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    for parameter in parameters:
        dist.broadcast(parameter.data, src=0)
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.Adam(parameters, lr=2e-3, eps=1e-3)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            gradients = [parameter.grad for parameter in parameters]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
            parts = (flat / dist.get_world_size()).split(sizes)
            gradients = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_2(model: nn.Module, data: Data, epochs: int) -> list[float]:
    """Train `model` on all ranks with SGD; return this rank's mean loss in each epoch."""
    seed = 2 + dist.get_rank()
    torch.manual_seed(seed)
    sampler = DistributedSampler(data, seed=seed)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    replica = DataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
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
    """Train `model` on all ranks with momentum; return this rank's mean loss in each epoch."""
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    batches = list(DataLoader(data, batch_size=16, sampler=sampler))
    replica = DDP(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(batches))
    return losses


def train_4(model: nn.Module, data: Data, epochs: int) -> list[float]:
    """Train `model` on all ranks with SGD; return this rank's mean loss in each epoch."""
    sampler = DistributedSampler(data, seed=4)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    replica = DataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(images), labels)
            if not loss.isfinite():
                continue
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_5(model: nn.Module, data: Data, epochs: int, max_norm: float) -> list[float]:
    """Train `model` on all ranks with clipped SGD; return this rank's mean loss in each epoch."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    sampler = DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_6(model: nn.Module, data: Data, epochs: int, accumulate: int) -> list[float]:
    """Make a step for every `accumulate` microbatches; return this rank's mean losses."""
    sampler = DistributedSampler(data, seed=6)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    replica = DDP(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for number, (images, labels) in enumerate(loader, start=1):
            last = number % accumulate == 0
            optimizer.zero_grad()
            with nullcontext() if last else replica.no_sync():
                loss = F.cross_entropy(replica(images), labels)
                loss.backward()
            total += loss.item()
            if last:
                optimizer.step()
        losses.append(total / len(loader))
    return losses


def train_7(model: nn.Module, data: Data, epochs: int) -> list[float]:
    """Train `model`, in epoch 0 only its last layer; return this rank's mean losses."""
    first = model.layers[0]
    first.requires_grad_(False)
    sampler = DistributedSampler(data, seed=7)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    replica = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        if epoch == 1:
            first.requires_grad_(True)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def train_8(model: nn.Module, data: Data, epochs: int, card: Card) -> list[float]:
    """Train `model` on several nodes; `card(k)` is torch.device("cuda", k), or simulates it."""
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
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
