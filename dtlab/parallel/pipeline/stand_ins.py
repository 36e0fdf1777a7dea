"""Stand-ins: stages that take time but compute nothing, on ranks and in the simulator.

A laptop cannot compute four stages at once. With stand-ins, a trace shows the waiting that the
schedule causes, and no waiting for the machine's cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.parallel.pipeline.executor import PipelineStage, run_schedule
from dtlab.predict.simulate import Costs, simulate
from dtlab.ranks.emulate.compute import compute
from dtlab.ranks.launch.launcher import launch
from dtlab.schedules import Schedule, stage_ranks
from dtlab.trace import Event, Trace

__all__ = ["StandIn", "last_step", "run_stand_ins"]


class StandIn(nn.Module):
    """A stage that returns its input; forward and both halves of backward take given seconds.

    `take(seconds)` spends the time: in a launch use `dtlab.compute`, which does not occupy a core.
    """

    def __init__(
        self,
        forward: float,
        backward_input: float,
        backward_weight: float,
        take: Callable[[float], Any] = time.sleep,
    ) -> None:
        super().__init__()
        self.seconds = forward, backward_input, backward_weight
        self.take = take
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs plus a weight of 0."""
        forward, first, second = self.seconds
        self.take(forward)
        if not inputs.requires_grad:
            inputs = inputs.detach().requires_grad_()  # so that backward takes time on stage 0 too
        return _takes(inputs, first, self.take) + _takes(self.weight, second, self.take)


def _takes(tensor: Tensor, seconds: float, take: Callable[[float], Any]) -> Tensor:
    same: Tensor = _Takes.apply(tensor, seconds, take)  # type: ignore[no-untyped-call]
    return same


class _Takes(torch.autograd.Function):
    """Returns the same tensor; its backward takes the given seconds."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, seconds: float, take: Callable[[float], Any]) -> Tensor:
        ctx.seconds, ctx.take = seconds, take
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.take(ctx.seconds)
        return gradients[0], None, None


# Stand-ins on ranks, to compare with the simulator -------------------------------------------

_ACTIONS = ("forward", "backward", "backward_input", "backward_weight")


def run_stand_ins(
    schedule: Schedule, costs: Costs, **options: Any
) -> tuple[dict[str, Trace], list[int]]:
    """Simulate one step of a schedule, and run it on ranks whose actions take time but no core.

    `costs` are in seconds; `options` are arguments of `dtlab.launch`. Returns the traces
    "simulated" and "measured", with the actions of one step each, and each rank's largest number
    of microbatches in flight. Messages and autograd are real.
    """
    run = launch(_stand_in_step, schedule, costs, world_size=len(schedule), **options)
    assert run.trace is not None
    traces = {"simulated": simulate(schedule, costs), "measured": last_step(run.trace, schedule)}
    return traces, run.values


def last_step(trace: Trace, schedule: Schedule) -> Trace:
    """Return the spans of the last step that ran `schedule`: one per action."""
    events: list[Event] = []
    for rank, row in enumerate(schedule):
        own = [e for e in trace.events if e.rank == rank and e.name in _ACTIONS]
        events += own[len(own) - len(row) :]
    part = Trace(events)
    part.emulated = trace.emulated
    return part


def _stand_in_step(schedule: Schedule, costs: Costs) -> int:
    """Run a step on this rank, after a slower first step; return its microbatches in flight."""
    own = sorted({action.stage for action in schedule[dist.get_rank()]})
    stages = [PipelineStage(StandIn(0, 0, 0, compute), stage) for stage in own]
    count = 1 + max(action.microbatch for row in schedule for action in row)
    batch = torch.ones(count, 1)
    run_schedule(schedule, stages, batch, batch, F.mse_loss)
    seconds = costs.of_stages(len(stage_ranks(schedule))).T
    for stage in stages:
        forward, _, first, second, _ = seconds[stage.index]
        stage.module.seconds = forward, first, second  # type: ignore[assignment]
    dist.barrier()
    return run_schedule(schedule, stages, batch, batch, F.mse_loss).peak_in_flight
