"""The training run of Level III whose loss becomes NaN, as level-3.ipynb shows it.

This module imports torch. It is imported only when a check runs.
"""

# mypy: disable-error-code="no-untyped-call, var-annotated"
# The script is written as most people write theirs, without full type annotations.

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from torch.utils.data import DistributedSampler, TensorDataset

from dtlab.training.datasets import batches
from dtlab.training.loss_scaling import DynamicLossScaler

__all__ = ["train"]

Net = nn.Module
Data = TensorDataset
Curve = list[tuple[float, Any]]  # loss and scale of each step


def train(model: Net, data: Data, epochs: int, batch: int, rate: float, max_norm: float) -> Curve:
    """Train `model` in fp16 on all ranks; loss and scale of each step."""
    sampler = DistributedSampler(data, seed=4)
    replica = DDP(model)
    optimizer = SGD(replica.parameters(), lr=rate, momentum=0.9)
    curve = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        scaler = DynamicLossScaler(init_scale=2.0**24)
        limit = max_norm * scaler.get_scale()
        for images, labels in batches(data, batch // dist.get_world_size(), sampler=sampler):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(replica(images), labels, reduction="sum")
            scaler.scale(loss).backward()
            clip_grad_norm_(replica.parameters(), limit)
            curve.append((loss.item() / len(images), scaler.get_scale()))
            scaler.step(optimizer)
            scaler.update()
    return curve
