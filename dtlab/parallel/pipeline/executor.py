"""The pipeline executor: runs any schedule of forward and backward actions on stages.

            0   1   2   3   4   5   6   7
    rank 0 0F0 0F1     0B0 0F2 0B1     0B2
    rank 1     1F0 1B0 1F1 1B1 1F2 1B2

`0F1` is stage 0, forward, microbatch 1; a column is a slot. A schedule is one list of such actions
for each rank. The kinds are F (forward), B (backward), and the two halves of B: I (gradients of
inputs) and W (gradients of weights). The output of 0F1 is sent to 1F1; the input's gradient of 1B1
is sent to 0B1.

`run_schedule` in `dtlab/simple.py` is the loop alone: one stage on each rank, receives that block,
F and B only. `run_schedule` here runs the same loop. It adds several stages on a rank, tensors of
any shape and early receives (`messages.py`), I and W (`split_backward.py`), tied parameters
(`tied.py`), and stages in `DataParallel`. Neither contains code for a particular schedule. On each
stage, each microbatch has a separate autograd graph. Its leaves are the received tensors; B, or W,
frees the graph. A step computes the same gradients as one process on the whole batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dtlab.parallel.data.data_parallel import DataParallel, NaiveDataParallel
from dtlab.parallel.pipeline.messages import Layout, Plan, Post, agree_on_shapes, plan_of
from dtlab.parallel.pipeline.microbatches import Batch, Data, Loss, StepResult, Tensors, tensors_of
from dtlab.parallel.pipeline.split_backward import Halves, NaiveHalves
from dtlab.parallel.pipeline.tied import Tied
from dtlab.schedules import Action, Schedule, as_schedule
from dtlab.schedules.actions import Row
from dtlab.trace import span

__all__ = ["PipelineStage", "StepResult", "run_schedule"]


REPLICAS = (DataParallel, NaiveDataParallel)
SPANS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


class PipelineStage:
    """One stage of a pipeline: a module, and its position in the model.

    Args:
        module: takes one or several tensors and returns a tensor or a tuple. It may be wrapped in
            `DataParallel`: then gradients are averaged once per step, in the last backward.
        index: the number of the stage in the model; None: this rank's number in the group.
        tied: parameters that other stages share, each under a name that all of these stages use.
            Before the first step all copies get the values of the first stage that has the
            parameter. After each step every copy has the sum of the gradients of all copies.
        group: the ranks of the pipeline; None: all.

    All ranks of the group must run the same schedules with their stages.
    """

    def __init__(
        self,
        module: nn.Module,
        index: int | None = None,
        *,
        tied: Mapping[str, nn.Parameter] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.module, self.group = module, group
        self.index = dist.get_rank(group) if index is None else index
        self.tied = dict(tied or {})
        self.device = next((weight.device for weight in module.parameters()), torch.device("cpu"))
        self._cache = _Cache()


@dataclass
class _Cache:
    """State that a rank keeps from step to step, stored in its stage with the lowest number."""

    plans: list[Plan] = field(default_factory=list)
    shapes: dict[tuple[tuple[Layout, ...], ...], int] = field(default_factory=dict)
    tied: Tied | None = None


def run_schedule(
    schedule: Iterable[Row],
    stages: PipelineStage | Sequence[PipelineStage],
    inputs: Batch | None = None,
    targets: Batch | None = None,
    loss: Loss | None = None,
    *,
    weights: Sequence[float] | None = None,
    halves: type[NaiveHalves] = Halves,
) -> StepResult:
    """Run this rank's part of a schedule and add gradients to `.grad` of its parameters.

    Args:
        schedule: any schedule that `dtlab.schedules.validate` accepts, the same on all ranks.
        stages: this rank's stage, or a list of its stages in any order; it may be empty.
        inputs, targets: a batch, which is cut into the schedule's microbatches, or a list of
            microbatches, which may differ in size. The first stage's rank needs inputs, the last
            stage's rank needs targets; other ranks may pass them too.
        loss: function of an output and its targets: the mean over a microbatch's samples.
        weights: weight of each microbatch in the mean loss, for example its number of tokens;
            None: its number of samples.
        halves: the class that runs I and W; `NaiveHalves` is for comparison.

    Raises: ScheduleError for an invalid schedule; ValueError for stages, batches or outputs that
    do not match the schedule.
    """
    rows = as_schedule(schedule)
    local_stages = [stages] if isinstance(stages, PipelineStage) else list(stages)
    local_stages.sort(key=lambda stage: stage.index)
    if not local_stages:
        if len(rows) == dist.get_world_size() and rows[dist.get_rank()]:
            raise ValueError(
                f"The schedule has actions for rank {dist.get_rank()}, but this rank passed no "
                "stages. Pass its stages."
            )
        return StepResult(None, None, 0)
    plan = _plan(rows, local_stages)
    return _Step(plan, local_stages, Data(plan, inputs, targets, loss, weights), halves).run()


def _plan(schedule: Schedule, local_stages: list[PipelineStage]) -> Plan:
    """Return this rank's plan for the schedule; each plan is computed once and kept."""
    cache, group = local_stages[0]._cache, local_stages[0].group
    plan = next((plan for plan in cache.plans if plan.schedule == schedule), None)
    if plan is None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if len(schedule) != size:
            raise ValueError(f"The schedule has {len(schedule)} ranks, but the group has {size}.")
        plan = plan_of(schedule, rank)
        cache.plans.append(plan)
    needed = {action.stage for action in plan.row}
    given = [stage.index for stage in local_stages]
    if sorted(given) != sorted(needed):
        raise ValueError(
            f"On rank {plan.rank} the schedule has stages {sorted(needed)}, but the stages passed "
            f"are {sorted(given)}."
        )
    return plan


@dataclass(frozen=True)
class _Graph:
    """The autograd graph of a microbatch on a stage, between its F and its B (or W)."""

    halves: NaiveHalves  # runs B, or I and then W
    leaves: Tensors
    needs_gradient: list[bool]  # for each floating-point output, whether it requires a gradient


class _Step:
    """Runs one rank's actions in order."""

    def __init__(
        self, plan: Plan, stages: list[PipelineStage], data: Data, halves: type[NaiveHalves]
    ) -> None:
        self._plan, self._data, self._halves = plan, data, halves
        self._stages = {stage.index: stage for stage in stages}
        cache, group, device = stages[0]._cache, stages[0].group, stages[0].device
        if cache.tied is None:
            ranks = [rank for rank, row in enumerate(plan.schedule) if row]
            cache.tied = Tied({stage.index: stage.tied for stage in stages}, ranks, group)
        self._tied = cache.tied
        shapes_id = agree_on_shapes(plan, cache.shapes, data.inputs, group, device)
        self._post = Post(plan, shapes_id, group, device)
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._begun: set[int] = set()  # stages that have run a forward
        self._peak_in_flight = 0

    def run(self) -> StepResult:
        """Run all actions and return the result of the step."""
        self._tied.begin()
        for index, (action, slot) in enumerate(zip(self._plan.row, self._plan.slots, strict=True)):
            self._post.wait_for_old_sends(slot)
            if action.kind == "F":
                self._forward(action)
            elif action.kind == "W":
                self._weights(action, index)
            else:
                self._backward(action, index)
        self._post.wait_for_old_sends(float("inf"))
        self._tied.finish()
        return self._data.result(self._peak_in_flight)

    def _forward(self, action: Action) -> None:
        stage, is_last = self._stages[action.stage], action.stage == self._plan.last_stage
        inputs = self._inputs(action)
        with _span(action), self._buffer_sync(stage):
            outputs = tensors_of(stage.module(*inputs))
            if is_last:
                outputs = (self._data.loss_of(outputs, action.microbatch),)
        if not is_last:
            self._post.send(action, tuple(tensor.detach() for tensor in outputs))
        needs_gradient = [tensor.requires_grad for tensor in outputs if tensor.is_floating_point()]
        ends = [get_gradient_edge(tensor) for tensor in outputs if tensor.requires_grad]
        leaves = tuple(tensor for tensor in inputs if tensor.requires_grad)
        graph = _Graph(self._halves(ends, leaves), leaves, needs_gradient)
        self._graphs[action.stage, action.microbatch] = graph
        self._peak_in_flight = max(self._peak_in_flight, len(self._graphs))

    def _inputs(self, action: Action) -> Tensors:
        """Return the leaves of the microbatch's graph; floating-point ones need gradients."""
        if action.stage == 0:
            return self._data.inputs[action.microbatch]
        received = self._post.take(action._replace(stage=action.stage - 1))
        return tuple(leaf.detach().requires_grad_(leaf.is_floating_point()) for leaf in received)

    def _backward(self, action: Action, index: int) -> None:
        """Run B or I, at `index` in this rank's row of the schedule; send the input gradients."""
        graph = self._graphs[action.stage, action.microbatch]
        gradients = self._gradients(action, graph)
        with _span(action):
            self._set_averaging(action, index)
            if action.kind == "B":
                computed = graph.halves.both(gradients)
            else:
                computed = graph.halves.inputs(gradients)
        if action.stage > 0:
            each = zip(computed, graph.leaves, strict=True)
            filled = (torch.zeros_like(leaf) if grad is None else grad for grad, leaf in each)
            self._post.send(action._replace(kind="B"), tuple(filled))  # I is sent as B
        if action.kind == "B":
            del self._graphs[action.stage, action.microbatch]

    def _gradients(self, action: Action, graph: _Graph) -> list[Tensor]:
        """Return the gradients of the outputs that need one.

        On the last stage, the output is the loss: its gradient is its weight in the mean.
        """
        if action.stage == self._plan.last_stage:
            return [self._data.weight_of(action.microbatch)] if any(graph.needs_gradient) else []
        received = self._post.take(Action(action.stage + 1, "B", action.microbatch))
        return [grad for grad, need in zip(received, graph.needs_gradient, strict=True) if need]

    def _weights(self, action: Action, index: int) -> None:
        with _span(action):
            self._set_averaging(action, index)
            self._graphs.pop((action.stage, action.microbatch)).halves.weights()

    # ------------------------------------------------------------------ with DataParallel

    def _buffer_sync(self, stage: PipelineStage) -> contextlib.AbstractContextManager[None]:
        """Return `no_sync` except in a replica's first forward of a step, which syncs buffers."""
        is_first = stage.index not in self._begun
        self._begun.add(stage.index)
        if is_first or not isinstance(stage.module, REPLICAS):
            return contextlib.nullcontext()
        return stage.module.no_sync()

    def _set_averaging(self, action: Action, index: int) -> None:
        """Average a replica's gradients in its stage's last backward, when they are complete."""
        module = self._stages[action.stage].module
        if isinstance(module, REPLICAS):
            module.average_next(index == self._plan.last_gradient[action.stage])


def _span(action: Action) -> span:
    return span(SPANS[action.kind], stage=action.stage, microbatch=action.microbatch)
