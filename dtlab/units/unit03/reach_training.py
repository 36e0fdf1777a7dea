"""The training loop that carries out a plan, as level-3.ipynb shows it: digits, data-parallel.

This module imports torch. Only ranks import it.
"""

# mypy: disable-error-code="no-untyped-call"
# The loop is written as most people write theirs, without full type annotations.

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD

from dtlab.training.datasets import Split
from dtlab.training.learning_rate import WarmupThenDecay
from dtlab.training.models import MLP

__all__ = ["train_by"]

Plan = Mapping[str, Any]
Group = dist.ProcessGroup | None
Result = tuple[float, list[tuple[float, Any]], torch.Tensor]


def train_by(plan: Plan, data: Split, seed: int, group: Group = None) -> Result:
    """Train; return the test error in %, each update's loss and rate, and the final parameters."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    model = MLP(64, 128, 128, 10, seed=seed)
    replica = DDP(model, process_group=group)
    optimizer = SGD(replica.parameters(), lr=plan["rate"], momentum=0.9, fused=True)
    how = {name: plan[name] for name in ("start_factor", "decay")}
    schedule = WarmupThenDecay(optimizer, plan["warmup"], plan["updates"], **how)
    draw = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(len(data.train), generator=draw) for _ in range(8)])
    shape = plan["updates"], size, plan["micro_batches"], plan["micro_batch"]
    if math.prod(shape) > len(order):
        raise ValueError(f"{math.prod(shape)} samples are more than there are in 8 epochs")
    curve = []
    for samples in order[: math.prod(shape)].view(shape)[:, rank]:
        mean = 0.0
        for number, some in enumerate(samples):
            images, labels = data.train[some]
            with nullcontext() if number in plan["travel_in"] else replica.no_sync():
                loss = F.cross_entropy(replica(images), labels) / len(samples)
                loss.backward()
            mean += loss.item()
        curve.append((mean, schedule.get_last_lr()[0]))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    images, labels = data.test.tensors
    with torch.no_grad():
        wrong = (model(images).argmax(1) != labels).float().mean()
    return 100 * wrong.item(), curve, parameters_to_vector(model.parameters()).detach()
