"""How a check runs a program of Level III: what it is given, and what one process comes to."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.trials import Case, Observation, Trial

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = [
    "SCRIPTS",
    "SharedRun",
    "cut_dim",
    "events_of",
    "scene",
    "trials_of",
]

RATE, _ROWS = 0.1, 16  # as in the scripts; samples in a step, which all ranks see
_CUT = {"wide.weight": 0, "wide.bias": 0, "narrow.weight": 1}


def cut_dim(name: str) -> int | None:
    """The dim of a parameter that ranks share; None for one that all of them have whole."""
    return _CUT.get(name.partition(".")[2].partition(".")[2])


@dataclass(frozen=True)
class SharedRun(Case):
    """`script(model, batches)` on `steps` batches of random images, the same on all ranks."""

    seed: int
    width: int
    inner: int
    depth: int
    steps: int = 4

    def __str__(self) -> str:
        return f"{self.depth} layers of {self.width} and {self.inner} features"

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Of the model."""
        return self.width, self.inner, self.depth

    @property
    def activation(self) -> int:
        """Bytes of what goes from layer to layer."""
        return 4 * _ROWS * self.width

    @property
    def between(self) -> int:
        """Bytes of what is between the two halves of a layer, on all ranks together."""
        return 4 * _ROWS * self.inner

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """Parameters to begin with, by their names: the same on all ranks."""
        import torch

        from dtlab.units.unit06.runs_scripts import Net

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = Net(*self.sizes)
        return {name: one.detach() for name, one in model.named_parameters()}

    @cached_property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Images and labels of each step."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        return [
            (torch.randn(_ROWS, 64, generator=draw), torch.randint(10, (_ROWS,), generator=draw))
            for _ in range(self.steps)
        ]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        return {"sizes": self.sizes, "state": self.state, "batches": self.batches}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        from dtlab.units.unit06.runs_noted import noted

        return noted(fn, given)

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`: what is wrong with a run is for the judges to say."""
        return ""

    @cached_property
    def one_process(self) -> tuple[list[float], dict[str, Tensor]]:
        """What one process comes to: losses, and parameters in the end."""
        import torch
        import torch.nn.functional as F

        from dtlab.units.unit06.runs_noted import built

        model, losses = built(self.sizes, self.state), []
        for images, labels in self.batches:
            loss = F.cross_entropy(model(images), labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.data -= RATE * gradient
            losses.append(float(loss.detach()))
        return losses, {name: one.detach() for name, one in model.named_parameters()}


def events_of(one: Observation, *names: str, rank: int = 0) -> list[Event]:
    """What a rank called by these names, in order; all that it sent without a name."""
    events = one.trace.events if one.trace is not None else ()
    return [
        event
        for event in events
        if event.rank == rank and event.kind == "comm" and (not names or event.name in names)
    ]


SCRIPTS = "dtlab.units.unit06.runs_scripts."
_WIDTH, _INNER, _DEPTH = 32, 160, 3  # of the model in the notebook
_LIMIT = 15.0  # seconds: the first optimizer of a machine imports PyTorch's compiler


def scene(ranks: int) -> Trial:
    return Trial(ranks, [SharedRun(0, _WIDTH, _INNER, _DEPTH)], limit=_LIMIT)


def trials_of(left: int) -> Callable[[int], list[Trial]]:
    """A model of another size; of its features so many are left when three ranks share them."""

    def trials(seed: int) -> list[Trial]:
        draw = random.Random(seed)
        sizes = 2 * draw.randint(6, 12), 3 * draw.randint(16, 32) + left, draw.randint(2, 4)
        return [Trial(3, [SharedRun(draw.randrange(1, 10**6), *sizes)], limit=_LIMIT)]

    return trials
