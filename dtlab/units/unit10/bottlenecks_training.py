"""The runs of 10/bottlenecks: a small GPT on an emulated cluster of two nodes of two GPUs.

This file imports torch, so it is imported only when a check runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

import dtlab
from dtlab.parallel.gpt import ParallelGPT
from dtlab.parallel.mesh import make_mesh
from dtlab.training.models import GPTConfig

__all__ = ["STEPS", "train"]

STEPS = 3
_READ = 1e-4  # seconds of compute that stand for reading the batch, before the step


def train(
    sizes: Mapping[str, int],
    config: Mapping[str, int],
    options: Mapping[str, Any],
    batch: int,
    run: int = 0,
) -> None:
    """Runs on every rank: three steps, each with a span "batch" and a span "step"."""
    gpt = GPTConfig(**config)
    mesh = make_mesh(**sizes)
    model = ParallelGPT(gpt, mesh, **options)
    optimizer = model.make_optimizer(torch.optim.SGD, lr=1e-2)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(gpt.vocab_size, (batch, gpt.context + 1), generator=draw)
    local = tokens.chunk(sizes["data"])[mesh.get_local_rank("data")]
    for number in range(STEPS):
        dist.barrier()
        with dtlab.span("batch", run=run, number=number):
            dtlab.compute(_READ)
        with dtlab.span("step", run=run, number=number):
            model.forward_backward(local[:, :-1], local[:, 1:])
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
