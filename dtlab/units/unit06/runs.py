"""Runs of the broken programs of 06/gather_between, 06/many_biases and 06/drift.

The programs are in `runs_scripts`, as the notebook shows them. This file has their symptoms, and
the checks of the repaired programs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.criteria import Objection
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.unseen import unseen_collectives
from dtlab.grading.scripts.run import (
    Program,
    TrainingRun,
    events_of,
    named,
    other_losses,
    other_parameters,
)
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptoms, unmoved

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "AS_ONE", "NEAR", "SYMPTOMS", "SharedRun", "bytes_of", "cut_dim", "not_shared", "other_bytes",
    "scene", "trials_of",
]  # fmt: skip

NEAR = 1e-4  # relative tolerance of a loss or parameter
_LIMIT = 15.0  # seconds; the first optimizer on a machine imports PyTorch's compiler
_CUT = {"wide.weight": 0, "wide.bias": 0, "narrow.weight": 1}


def cut_dim(name: str) -> int | None:
    """The dim along which ranks share a parameter; None if every rank has it whole."""
    return _CUT.get(name.partition(".")[2].partition(".")[2])


@dataclass(frozen=True)
class SharedRun(TrainingRun):
    """A run of `program(model, batches)` on ranks that share the layers and get equal batches."""

    width: int
    inner: int
    depth: int

    rows: ClassVar[int] = 16
    apart: ClassVar[float] = 1e-6
    looks: ClassVar[tuple[str, str]] = (
        "Which part of its gradient does each rank compute?",
        "Its gradient is only a part, or is counted more than once.",
    )

    def __str__(self) -> str:
        return f"{self.depth} layers of {self.width} and {self.inner} features"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.width, self.inner, self.depth

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
        dim = cut_dim(name)
        return whole if dim is None else whole.tensor_split(ranks, dim)[rank]

    @classmethod
    def run(cls, fn: Program, model: Any, given: dict[str, Any]) -> dict[str, Any]:
        """Run the program as `TrainingRun` does; record how often the bias is added, as `times`.

        It is measured in the first layer and the first forward pass, for the layer `narrow`.
        """
        dense, times = deepcopy(model.layers[0]), [0.0]

        def note(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
            if len(times) == 1:
                extra = out.detach() - dense(inputs[0].detach()).detach()
                times.append(float((1 + extra / dense.narrow.bias.detach()).median()))

        model.layers[0].register_forward_hook(note)
        return {**super().run(fn, model, given), "times": times[-1]}


def scene(ranks: int) -> Trial:
    """The run of the notebook."""
    return Trial(ranks, [SharedRun(0, 32, 160, 3)], limit=_LIMIT)


def trials_of(left: int) -> Callable[[int], list[Trial]]:
    """Makes a function that draws a trial on three ranks, with a model unlike the notebook's.

    The number of inner features has the remainder `left` when divided by three.
    """

    def trials(seed: int) -> list[Trial]:
        draw = random.Random(seed)
        sizes = 2 * draw.randint(6, 12), 3 * draw.randint(16, 32) + left, draw.randint(2, 4)
        return [Trial(3, [SharedRun(draw.randrange(1, 10**6), *sizes)], limit=_LIMIT)]

    return trials


def bytes_of(scene: Scene, name: str) -> int:
    """Bytes of rank 0's operations of this name, in all steps."""
    return sum(event.bytes for event in events_of(scene.one, name))


# Checks of a repaired program -------------------------------------------------------------------


def not_shared(case: SharedRun, results: Sequence[Any], run: Observation) -> str:
    """A message if the shape of a rank's parameter is not that of its part; empty otherwise."""
    for name, whole in named(case.model()).items():
        for rank, result in enumerate(results):
            shape = tuple(result["after"][name].shape)
            part = tuple(case.part(name, whole, rank, len(results)).shape)
            if shape != part:
                return (
                    f"{name} has shape {shape} on rank {rank}; its part is {part}. Keep the "
                    "layers sharded as share_out cuts them."
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
        if 0.95 * goal <= sent <= 1.05 * goal:
            continue
        called = " and ".join(f"{n // case.steps:,} bytes in {name}" for name, n in counts.items())
        advice = (
            "Which of these bytes does the next product need?"
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


AS_ONE: tuple[Objection, ...] = (other_losses(NEAR), other_parameters)


# Symptoms, as the notebook lists them -----------------------------------------------------------

SYMPTOMS = Symptoms()


@SYMPTOMS.add("gathers", "a rank has more bytes in all-gathers than in all-reduces")
def _gathers(scene: Scene) -> Finding:
    gathered, reduced = bytes_of(scene, "all_gather"), bytes_of(scene, "all_reduce")
    message = f"rank 0 had {gathered:,} bytes in all-gathers and {reduced:,} in all-reduces"
    return Finding(gathered > reduced, message)


@SYMPTOMS.add("wrong start", "the first loss is not that of one process")
def _wrong_start(scene: Scene) -> Finding:
    first, wanted = scene.results[0]["losses"][0], scene.case.one_process(1)[0][0][0]
    message = f"the first loss was {first:.5f}, and in one process {wanted:.5f}"
    return Finding(abs(first - wanted) > NEAR * wanted, message)


@SYMPTOMS.add("drift", "copies of a parameter that all ranks have whole differ in the end")
def _drift(scene: Scene) -> Finding:
    first, *others = [result["after"] for result in scene.results]
    whole = [name for name in first if cut_dim(name) is None]
    far = max(float((other[name] - first[name]).abs().max()) for other in others for name in whole)
    message = f"copies of a parameter that all ranks have differed by up to {far:.2g} in the end"
    return Finding(far > NEAR, message)


@SYMPTOMS.add("explodes", "the last loss is more than twice the first")
def _explodes(scene: Scene) -> Finding:
    losses = scene.results[0]["losses"]
    message = f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
    return Finding(not losses[-1] <= 2 * losses[0], message)


@SYMPTOMS.add("whole", "each rank has all weights of a layer")
def _whole(scene: Scene) -> Finding:
    features = len(scene.results[0]["after"]["layers.0.wide.weight"])
    message = f"each rank had {features} of {scene.case.inner} features of the first layer"
    return Finding(features == scene.case.inner, message)


@SYMPTOMS.add("stands", "a parameter that all ranks have whole never moves")
def _stands(scene: Scene) -> Finding:
    still = [name for name in unmoved(scene) if cut_dim(name) is None]
    return Finding(bool(still), f"{len(still)} of the parameters that all ranks have never moved")
