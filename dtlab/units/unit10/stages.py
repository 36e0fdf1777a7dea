"""The code of 10/train_step that runs on ranks: a stage, and functions that record their calls.

This file imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from dtlab.parallel.pipeline import PipelineStage
from dtlab.parallel.tensor import ParallelMLP
from dtlab.units.unit10.mesh_cases import groups_on

__all__ = ["train"]


class Diary:
    """A record of one step: F(orward), B(ackward), r(educe), c(lip) and s(tep), in order."""

    def __init__(self, module: nn.Module) -> None:
        self.letters, self.samples = "", 0
        forward = module.forward

        def noted(x: Tensor) -> Tensor:
            output: Tensor = forward(x)
            self.letters += "F"
            self.samples += len(x)
            if output.requires_grad:
                output.register_hook(lambda _: self.note("B"))  # type: ignore[no-untyped-call]
            return output

        module.forward = noted

    def note(self, letter: str) -> None:
        """Append a letter to the record."""
        self.letters += letter

    def noting(self, letter: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that each call appends a letter."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.note(letter)
            return function(*args, **kwargs)

        return noted

    def turn(self) -> tuple[str, int]:
        """Return this step's letters and number of samples, and reset both for the next step."""
        found = self.letters, self.samples
        self.letters, self.samples = "", 0
        return found


def train(fn: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Run all steps with the learner's function; returns the records, losses and parameters."""
    groups = groups_on(given["sizes"])
    module = ParallelMLP.from_dense(_dense(given["state"]), groups["tensor"])
    parameters: list[Any] = list(module.parameters())
    for parameter in parameters:
        parameter.kind, parameter.tied = "sharded", False
    parameters[-1].kind = "equal"  # the bias of the row layer
    diary = Diary(module)
    optimizer = torch.optim.SGD(parameters, given["rate"])
    optimizer.register_step_pre_hook(lambda *_: diary.note("s"))
    parts = SimpleNamespace(
        stage=PipelineStage(module, group=groups["pipeline"]),
        optimizer=optimizer,
        loss=mse_loss,
        groups=groups,
        microbatches=given["microbatches"],
        max_norm=given["max_norm"],
        reduce_gradients=diary.noting("r", _average),
        clip_mesh=diary.noting("c", _clip),
    )
    names = ("log", "samples", "losses", "states")
    steps = []
    for inputs, targets in given["batches"]:
        loss = fn(parts, inputs, targets)
        is_number = isinstance(loss, Tensor | float | int)
        returned = float(loss) if is_number else None if loss is None else type(loss).__name__
        steps.append((*diary.turn(), returned, [one.detach().clone() for one in parameters]))
    return dict(zip(names, map(list, zip(*steps, strict=True)), strict=True))


def _dense(state: Sequence[Tensor]) -> nn.Sequential:
    inner, width = state[0].shape
    dense = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
    for parameter, content in zip(dense.parameters(), state, strict=True):
        parameter.data = content.clone()
    return dense


def _average(parameters: Sequence[Any], groups: Mapping[str, Any]) -> None:
    """Average the gradients over the data group; these parameters need no other reduction."""
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=groups["data"])
            parameter.grad /= dist.get_world_size(groups["data"])


def _clip(parameters: Sequence[Any], max_norm: float, groups: Mapping[str, Any]) -> Tensor:
    total = torch.zeros(())
    for parameter in parameters:
        if parameter.grad is not None and (
            parameter.kind == "sharded" or dist.get_rank(groups["tensor"]) == 0
        ):
            total += parameter.grad.square().sum()
    for axis in ("tensor", "pipeline"):
        dist.all_reduce(total, group=groups[axis])
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= (max_norm / total.sqrt()).clamp(max=1)
    return total.sqrt()
