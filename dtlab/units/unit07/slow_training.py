"""Steps of stand-in layers, cut into stages, for 07/run_b. Imports torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

import dtlab
from dtlab.parallel.pipeline import PipelineStage, StandIn, run_schedule
from dtlab.schedules import gpipe

__all__ = ["layer_steps", "stage_step"]


def layer_steps(
    cut: Sequence[Sequence[int]], seconds: Sequence[float], num_microbatches: int, steps: int
) -> list[float]:
    """Runs on every rank: GPipe steps with a stand-in for each layer; returns their seconds.

    Layer n takes `seconds[n]` per microbatch, a third of it forward, and uses no core. In the
    trace each piece of its work is a span "layer", with the numbers of the layer and the step.
    """
    now = {"step": 0}

    def taking(layer: int) -> Callable[[float], None]:
        def take(third: float) -> None:
            with dtlab.span("layer", layer=layer, **now):
                dtlab.compute(third)

        return take

    local = cut[dist.get_rank()]
    thirds = {layer: seconds[layer] / 3 for layer in local}
    layers = [StandIn(each, each, each, taking(layer)) for layer, each in thirds.items()]
    stage = PipelineStage(nn.Sequential(*layers))
    durations = []
    for now["step"] in range(steps):
        durations.append(_step(stage, len(cut), num_microbatches))
    return durations


def stage_step(
    cut: Sequence[Sequence[int]], seconds: Sequence[float], num_microbatches: int
) -> float:
    """Runs on every rank: a GPipe step with one stand-in per stage; returns its seconds.

    One stand-in keeps Python's overhead small for a stage of many small layers. The first step is
    a warm-up and not counted.
    """
    stand_in = StandIn(0, 0, 0, take=dtlab.compute)
    stage = PipelineStage(stand_in)
    _step(stage, len(cut), num_microbatches)
    third = sum(seconds[layer] for layer in cut[dist.get_rank()]) / 3
    stand_in.seconds = third, third, third
    return _step(stage, len(cut), num_microbatches)


def _step(stage: PipelineStage, num_stages: int, num_microbatches: int) -> float:
    batch = torch.ones(num_microbatches, 1)
    dist.barrier()
    start = time.perf_counter()
    run_schedule(gpipe(num_stages, num_microbatches), stage, batch, batch, mse_loss)
    dist.barrier()
    return time.perf_counter() - start
