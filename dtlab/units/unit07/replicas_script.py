"""The broken program of 07/run_a, as level-3.ipynb shows it, and its stages.

This module imports torch. It is imported only when a check runs.
"""

# mypy: disable-error-code="operator, assignment"
# The program is written as most people write theirs, without full type annotations.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from dtlab.parallel.mesh import make_mesh
from dtlab.parallel.pipeline import PipelineStage, run_schedule
from dtlab.schedules import one_f_one_b

__all__ = ["build", "train_replicas"]

Batches = Iterable[tuple[Tensor, Tensor]]


def build(width: int, num_stages: int) -> list[nn.Module]:
    """64 pixels to 10 classes: all stages but the last one end in a tanh."""
    sizes = [64, *[width] * (num_stages - 1)]
    stages: list[nn.Module] = [
        nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(sizes)
    ]
    return [*stages, nn.Linear(sizes[-1], 10)]


def train_replicas(stages: Sequence[nn.Module], batches: Batches) -> list[float]:
    """Train as many pipelines of these stages as there are ranks for; the losses of this one."""
    mesh = make_mesh(data=dist.get_world_size() // len(stages), pipeline=len(stages))
    replicas, place = mesh.get_group("data"), mesh.get_local_rank("pipeline")
    stage = PipelineStage(stages[place], group=mesh.get_group("pipeline"))
    optimizer = SGD(stage.module.parameters(), lr=0.1)
    schedule = one_f_one_b(len(stages), 4)

    def mean_loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels) / replicas.size()

    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        result = run_schedule(schedule, stage, images, labels, mean_loss)
        if result.loss is not None:
            losses.append(result.loss.item() * replicas.size())
            for parameter in stage.module.parameters():
                dist.all_reduce(parameter.grad, group=replicas)
                parameter.grad /= replicas.size()
        optimizer.step()
    return losses
