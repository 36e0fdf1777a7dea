"""A small model by which a schedule of 07/budget is tried on ranks. This file loads torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from dtlab.parallel.pipeline import PipelineStage, run_schedule
from dtlab.schedules import as_schedule

__all__ = ["gradients_of", "step"]

_WIDTH = 4


def stage_of(index: int) -> nn.Module:
    """The stage of that number: the same wherever it is made."""
    linear = nn.Linear(_WIDTH, _WIDTH)
    draw = torch.Generator().manual_seed(index)
    linear.weight.data = torch.randn(_WIDTH, _WIDTH, generator=draw)
    linear.bias.data = torch.randn(_WIDTH, generator=draw)
    return nn.Sequential(linear, nn.Tanh())


def batch_of(samples: int) -> Tensor:
    """Inputs, and targets too."""
    return torch.randn(samples, _WIDTH, generator=torch.Generator().manual_seed(samples))


def step(rows: Sequence[Sequence[str]], samples: int) -> dict[str, Any]:
    """Runs on every rank: one step by this schedule."""
    schedule = as_schedule(rows)
    own = sorted({action.stage for action in schedule[dist.get_rank()]})
    stages = [PipelineStage(stage_of(index), index) for index in own]
    batch = batch_of(samples)
    result = run_schedule(schedule, stages, batch, batch, mse_loss)
    gradients = [[stage.index, _gradient(stage.module)] for stage in stages]
    return {"peak": result.peak_in_flight, "gradients": gradients}


def gradients_of(num_stages: int, samples: int) -> list[Tensor]:
    """What one process with the whole model and the whole batch comes to, by stage."""
    stages, batch = [stage_of(index) for index in range(num_stages)], batch_of(samples)
    mse_loss(nn.Sequential(*stages)(batch), batch).backward()  # type: ignore[no-untyped-call]
    return [_gradient(stage) for stage in stages]


def _gradient(module: nn.Module) -> Tensor:
    return torch.cat([one.grad.flatten() for one in module.parameters() if one.grad is not None])
