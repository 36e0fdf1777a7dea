"""The broken program of 11/killed_job, as level-3.ipynb shows it.

This file imports torch, so it is imported only when a check runs.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.parallel.data import DataParallel
from dtlab.training.checkpoint import Samples
from dtlab.training.loss_scaling import DynamicLossScaler

__all__ = ["resumable"]


def resumable(model, images, labels, disk, steps, every):
    """Train, save after every `every` steps, and go on from the newest checkpoint on the disk."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    scaler = DynamicLossScaler(2.0**16, growth_interval=3)
    samples = Samples(len(images), 8 * ranks, rank=rank, ranks=ranks)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule,
             "scaler": scaler, "samples": samples}  # fmt: skip
    begin, names = 0, sorted(disk.names())
    if names:
        state = disk.load(names[-1])
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["random"])
        begin = state["step"]
    torch.manual_seed(100 + rank)
    replica = DataParallel(model)
    for step in range(begin, steps):
        batch = next(samples)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(replica(images[batch]), labels[batch])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        if (step + 1) % every == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"random": torch.get_rng_state(), "step": step + 1}
            disk.save(f"step_{step + 1}", state)
        scaler.update()
        schedule.step()
