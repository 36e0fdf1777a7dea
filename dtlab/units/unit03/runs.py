"""The four training runs of Level III that fail without an error, as level-3.ipynb shows them.

This module imports torch. It is imported only when a check runs.
"""

# mypy: disable-error-code="no-untyped-call, var-annotated"
# The scripts are written as most people write theirs, without full type annotations.

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DistributedSampler, TensorDataset

from dtlab.training.accumulation import per_step
from dtlab.training.datasets import batches
from dtlab.training.learning_rate import WarmupThenDecay, linear_scaled_lr

__all__ = [f"train_{number}" for number in range(1, 5)]

Net = nn.Module
Data = TensorDataset
Curve = list[tuple[float, Any]]  # loss and rate of each update


def train_1(model: Net, data: Data, epochs: int, micro: int, accumulate: int) -> Curve:
    """Train `model`; return the loss and rate of each update. Batch 32 takes a rate of 0.05."""
    batch = micro * accumulate * dist.get_world_size()
    share = len(data) // dist.get_world_size()
    updates = epochs * share // batch
    sampler = DistributedSampler(data, seed=1)
    replica = DDP(model)
    optimizer = SGD(replica.parameters(), lr=linear_scaled_lr(0.05, 32, batch), momentum=0.9)
    schedule = WarmupThenDecay(optimizer, 3 * updates // 8, updates, start_factor=32 / batch)
    curve = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step in per_step(batches(data, micro, sampler=sampler), accumulate):
            mean = 0.0
            for number, (images, labels) in enumerate(step, start=1):
                with replica.no_sync() if number < len(step) else nullcontext():
                    loss = F.cross_entropy(replica(images), labels) / len(step)
                    loss.backward()
                mean += loss.item()
            curve.append((mean, schedule.get_last_lr()[0]))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return curve


def train_2(model: Net, data: Data, epochs: int, micro: int, accumulate: int) -> Curve:
    """Train `model`; return the loss and rate of each update. Batch 32 takes a rate of 0.05."""
    batch = micro * accumulate * dist.get_world_size()
    updates = epochs * len(data) // batch
    sampler = DistributedSampler(data, seed=2)
    replica = DDP(model)
    optimizer = SGD(replica.parameters(), lr=linear_scaled_lr(0.05, 32, batch), momentum=0.9)
    schedule = WarmupThenDecay(optimizer, 3 * updates // 8, updates, start_factor=32 / batch)
    curve = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step in per_step(batches(data, micro, sampler=sampler), accumulate):
            mean = 0.0
            for number, (images, labels) in enumerate(step, start=1):
                with replica.no_sync() if number > 1 else nullcontext():
                    loss = F.cross_entropy(replica(images), labels) / len(step)
                    loss.backward()
                mean += loss.item()
            curve.append((mean, schedule.get_last_lr()[0]))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return curve


def train_3(model: Net, data: Data, epochs: int, micro: int, accumulate: int) -> Curve:
    """Train `model`; return the loss and rate of each update. Batch 32 takes a rate of 0.05."""
    batch = micro * accumulate * dist.get_world_size()
    updates = epochs * len(data) // batch
    sampler = DistributedSampler(data, seed=3)
    replica = DDP(model)
    peak = linear_scaled_lr(0.05, 32, micro * accumulate)
    optimizer = SGD(replica.parameters(), lr=peak, momentum=0.9)
    schedule = WarmupThenDecay(optimizer, 3 * updates // 8, updates, start_factor=32 / batch)
    curve = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step in per_step(batches(data, micro, sampler=sampler), accumulate):
            mean = 0.0
            for number, (images, labels) in enumerate(step, start=1):
                with replica.no_sync() if number < len(step) else nullcontext():
                    loss = F.cross_entropy(replica(images), labels, reduction="sum") / micro
                    loss.backward()
                mean += loss.item() / len(step)
            curve.append((mean, schedule.get_last_lr()[0]))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return curve


def train_4(model: Net, data: Data, epochs: int, batch: int, rate: float, parts: int) -> Curve:
    """Train `model` with one GPU's recipe; return the loss and the rate of each update."""
    size = dist.get_world_size()
    micro = batch // (size * parts)
    updates = epochs * len(data) // batch
    sampler = DistributedSampler(data, seed=4)
    replica = DDP(model)
    optimizer = SGD(replica.parameters(), lr=size * parts * rate, momentum=0.9)
    schedule = WarmupThenDecay(optimizer, 3 * updates // 8, updates, start_factor=32 / batch)
    curve = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step in per_step(batches(data, micro, sampler=sampler), parts):
            mean = 0.0
            for number, (images, labels) in enumerate(step, start=1):
                with replica.no_sync() if number < len(step) else nullcontext():
                    loss = F.cross_entropy(replica(images), labels) / len(step)
                    loss.backward()
                mean += loss.item()
            curve.append((mean, schedule.get_last_lr()[0]))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return curve
