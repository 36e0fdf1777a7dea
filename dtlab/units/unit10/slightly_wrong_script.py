"""The broken program of 10/slightly_wrong, as level-3.ipynb shows it, and its model.

This file imports torch, so it is imported only when a check runs.
"""

# mypy: disable-error-code="union-attr, no-untyped-def, no-untyped-call, assignment"
# The program is written as most people write theirs, without full type annotations.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import SGD

from dtlab.parallel.mesh import make_mesh
from dtlab.parallel.pipeline import PipelineStage, run_schedule
from dtlab.parallel.tensor import ParallelBlock
from dtlab.parallel.tensor.sequence import (
    SequenceLayerNorm,
    gather_from_sequence,
    scatter_to_sequence,
)
from dtlab.schedules import one_f_one_b
from dtlab.training.models import Block, GPTConfig

__all__ = ["Net", "cut", "train"]

Batches = Iterable[tuple[Tensor, Tensor]]


class Net(nn.Module):
    """Token ids [n, tokens] to logits [n, vocab, tokens]; embedding and head are not tied."""

    def __init__(self, vocab: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        config = GPTConfig(vocab, num_layers=layers, num_heads=4, width=width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, as `F.cross_entropy` takes them."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)).transpose(1, 2)
        return logits


def cut(model: Any, mesh: DeviceMesh, forward: Callable[[Any, Tensor], Tensor]) -> Any:
    """Reduce a `Net` to this rank's pipeline stage, with sequence-parallel blocks and norms.

    The stage then computes `forward(stage, x)`; embedding and head are not sharded.
    """
    tensor, place = mesh.get_group("tensor"), mesh.get_local_rank("pipeline")
    stages, layers = mesh.get_group("pipeline").size(), len(model.blocks)
    model.is_first, model.is_last = place == 0, place == stages - 1
    numbers = range(layers * place // stages, layers * (place + 1) // stages)
    model.blocks = nn.ModuleDict({
        f"{n}": ParallelBlock.from_dense(model.blocks[n], tensor, sequence_parallel=True)
        for n in numbers
    })  # fmt: skip
    norm = SequenceLayerNorm(model.norm.normalized_shape, group=tensor)
    norm.load_state_dict(model.norm.state_dict())
    model.norm = norm if model.is_last else None
    model.head = model.head if model.is_last else None
    model.embedding = model.embedding if model.is_first else None
    model.forward = partial(forward, model)
    return model


def train(model: Any, batches: Batches, sizes: Mapping[str, int]) -> list[float]:
    """Train this rank's part of `model` over a mesh; return the losses, on the last stage."""
    mesh = make_mesh(**sizes)
    data, pipeline, tensor = (mesh.get_group(axis) for axis in ("data", "pipeline", "tensor"))

    def forward(stage, x):
        if stage.is_first:
            x = scatter_to_sequence(stage.embedding(x), tensor)
        for block in stage.blocks.values():
            x = block(x)
        if stage.is_last:
            x = stage.head(gather_from_sequence(stage.norm(x), tensor)).transpose(1, 2)
        return x

    stage, losses = PipelineStage(cut(model, mesh, forward), group=pipeline), []
    schedule, optimizer = one_f_one_b(pipeline.size(), 2), SGD(model.parameters(), lr=0.1)
    for tokens, targets in batches:
        optimizer.zero_grad()
        result = run_schedule(schedule, stage, tokens, targets, F.cross_entropy)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=data)
            parameter.grad /= data.size() * tensor.size()
        optimizer.step()
        losses += [result.loss.item()] if stage.module.is_last else []
    return losses
