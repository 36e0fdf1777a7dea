"""Runs of the broken programs of 06/program_1, 06/program_2 and 06/program_3.

The programs are in `runs_scripts`, as the notebook shows them. This file measures their runs, and
checks those of the fixed programs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import close
from dtlab.checks.functions.criteria import Objection
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import unseen_collectives
from dtlab.checks.programs.run import (
    TrainingRun,
    events_of,
    named,
    other_losses,
    other_parameters,
)
from dtlab.checks.programs.training import Scene
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "AS_ONE", "NEAR", "SharedRun", "not_shared", "other_bytes", "other_updates",
    "reduced", "scene", "trials",
]  # fmt: skip

NEAR = 1e-4  # relative tolerance of a loss or parameter
_FAR = 1e-3  # of an update
_LIMIT = 15.0  # seconds; the first optimizer on a machine imports PyTorch's compiler
_MORE = 1.1  # times the bytes of a step: allows an extra all-reduce of small parameters


@dataclass(frozen=True)
class SharedRun(TrainingRun):
    """A run of `program(model, batches)` on ranks that share the layers and get equal batches."""

    width: int
    inner: int
    depth: int
    num_steps: int = 4

    rows: ClassVar[int] = 16
    apart: ClassVar[float] = 1e-6
    looks: ClassVar[tuple[str, str]] = (
        "Of which tensor does each rank have only a part of the gradient?",
        "Its gradient is only a part, or is counted more than once.",
    )

    def __str__(self) -> str:
        steps = counted(self.num_steps, "step")
        return f"{counted(self.depth, 'layer')} of {self.width} and {self.inner} features, {steps}"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.width, self.inner, self.depth

    @property
    def steps(self) -> int:
        return self.num_steps

    @property
    def activation(self) -> int:
        """Bytes of the activations between two layers."""
        return 4 * self.rows * self.width

    @staticmethod
    def build(*sizes: int) -> nn.Module:
        from dtlab.units.unit06.runs_scripts import Net

        return Net(*sizes)

    def replica(self, rank: int) -> int:
        return 0

    def part(self, name: str, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """A rank has some features: rows of both halves of `wide`, and columns of `narrow`."""
        import torch

        if name.endswith("narrow.weight"):
            return whole.tensor_split(ranks, 1)[rank]
        if name.endswith("wide.weight"):
            return torch.cat([half.tensor_split(ranks)[rank] for half in whole.chunk(2)])
        return whole


def scene(steps: int = 4) -> Trial:
    """The run of the notebook, on four ranks."""
    return Trial(4, [SharedRun(0, 32, 160, 3, steps)], limit=_LIMIT)


def trials(seed: int) -> list[Trial]:
    """Draws a model unlike the notebook's, and runs one step and four, each on three ranks."""
    draw = random.Random(seed)
    arguments = draw.randrange(1, 10**6), 2 * draw.randint(6, 12), 3 * draw.randint(16, 32)
    depth = draw.randint(2, 4)
    return [Trial(3, [SharedRun(*arguments, depth, steps)], limit=_LIMIT) for steps in (1, 4)]


def reduced(scene: Scene) -> float:
    """Bytes that rank 0 passes to all-reduces in a step."""
    sent = sum(event.bytes for event in events_of(scene.one, "all_reduce"))
    return sent / float(scene.case.steps)


# Checks of a fixed program ----------------------------------------------------------------------


def not_shared(case: SharedRun, results: Sequence[Any], run: Observation) -> str:
    """A message if the shape of a rank's parameter is not that of its part; empty otherwise."""
    for name, whole in named(case.model()).items():
        for rank, result in enumerate(results):
            shape = tuple(result["after"][name].shape)
            part = tuple(case.part(name, whole, rank, len(results)).shape)
            if shape != part:
                return (
                    f"{name} has shape {shape} on rank {rank}; its part is {part}. Keep the "
                    "layers sharded."
                )
    return ""


def other_updates(case: SharedRun, results: Sequence[Any], run: Observation) -> str:
    """A message unless each first update is that of one process; begins at the loss."""
    if case.steps > 1:
        return ""
    for name in reversed(list(results[0]["after"])):
        for rank in range(len(results)):
            size, far = case.first_update(results, name, rank)
            if far > _FAR:
                return (
                    f"the first update of {name} on rank {rank} is {size:.3g} times that of one "
                    "process: run the program, and compare all first updates."
                )
    return ""


def other_bytes(case: SharedRun, results: Sequence[Any], run: Observation) -> str:
    """A message unless ranks send the bytes of two all-reduces per layer and step."""
    goal = 2 * 2 * case.depth * case.activation * case.steps
    for rank in range(len(results)):
        counts: dict[str, int] = {}
        for event in events_of(run, rank=rank):
            counts[event.name] = counts.get(event.name, 0) + event.bytes
        twice = ("all_reduce", "broadcast")  # on a ring, a rank sends their bytes twice
        sent = sum((1 + (name in twice)) * count for name, count in counts.items())
        if 0.95 * goal <= sent <= _MORE * goal:
            continue
        called = " and ".join(f"{n // case.steps:,} bytes in {name}" for name, n in counts.items())
        advice = (
            "Which sum is computed more than once, or is not needed?"
            if sent > goal
            else "A call is missing: where, in forward or in backward, does a rank use a part of "
            "a sum although it needs the whole sum?"
        )
        return (
            f"the calls of rank {rank} in a step send {sent / goal:.2f} times the bytes of two "
            f"all-reduces of {case.activation:,} bytes per layer: {called or 'nothing is sent'}. "
            f"{advice}"
        )
    return unseen_collectives(run)


def other_order(case: SharedRun, results: Sequence[Any], run: Observation) -> str:
    """A message if a rank has the right rows of `wide.weight` in another order."""
    _, after = case.one_process(len(results))
    for name, whole in after[-1].items():
        for rank, result in enumerate(results if name.endswith("wide.weight") else ()):
            got, part = result["after"][name], case.part(name, whole, rank, len(results))
            if not close(got, part) and close(got.sort(0).values, part.sort(0).values):
                return (
                    f"{name} on rank {rank} has its rows in another order than the text asks: "
                    "first the rows of the gate, then those of the values."
                )
    return ""


AS_ONE: tuple[Objection, ...] = (other_losses(NEAR), other_order, other_parameters)
