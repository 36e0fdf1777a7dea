"""How a check runs a program of Level III: what it is given, and what is noted of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.trials import Case, Observation, Trial

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = [
    "EXACT",
    "IN_16_BITS",
    "REDUCES",
    "SCRIPTS",
    "ShardedRun",
    "deep_and_wide",
    "events_of",
    "largest_gather",
    "one_process",
    "scene",
    "trials_of",
]

RATE, _ROWS = 0.1, 8  # as in the scripts; samples of a rank in a step
_DEPTH = 6  # of the model in the notebook
REDUCES = ("reduce_scatter", "all_to_all", "all_reduce")  # what adds gradients up


@dataclass(frozen=True)
class ShardedRun(Case):
    """`script(model, batches)` on `steps` batches of random images for each rank.

    With `watched`, the bytes that exist are noted whenever a batch is drawn; with `kept`, so is
    what is kept outside of tensors.
    """

    seed: int
    width: int
    depth: int
    steps: int = 4
    watched: bool = True
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.depth} layers of width {self.width}, {self.steps} steps"

    @property
    def layer(self) -> int:
        """Elements of a layer."""
        return 4 * self.width**2 + 3 * self.width

    @property
    def root(self) -> int:
        """Elements of what is in no layer."""
        return 65 * self.width + 10 * self.width + 10

    @property
    def elements(self) -> int:
        """Elements of the model."""
        return self.root + self.depth * self.layer

    def state(self) -> list[Tensor]:
        """Parameters to begin with: the same on all ranks.

        The more layers, the smaller, so that losses stay small at the same learning rate.
        """
        import torch

        from dtlab.units.unit05.runs_scripts import Net

        draw = torch.Generator().manual_seed(self.seed)
        shapes = [one.shape for one in Net(self.width, self.depth).parameters()]
        scale = min(1.0, _DEPTH / self.depth) ** 0.5
        return [torch.randn(one, generator=draw) * scale * one[-1] ** -0.5 for one in shapes]

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels of a rank."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + rank) * 97 + step)
        images = torch.randn(_ROWS, 64, generator=draw)
        return images, torch.randint(10, (_ROWS,), generator=draw)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        return {
            "sizes": (self.width, self.depth),
            "state": self.state(),
            "batches": [self.batch(rank, step) for step in range(self.steps)],
            "watched": self.watched,
            "kept": self.kept,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        from dtlab.units.unit05.runs_noted import noted

        return noted(fn, given)

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`: what is wrong with a run is for its judges to say."""
        return ""


def one_process(case: ShardedRun, ranks: int) -> tuple[list[list[float]], list[list[Tensor]]]:
    """What one process comes to with all batches: each rank's losses; parameters by step."""
    import torch
    import torch.nn.functional as F

    from dtlab.units.unit05.runs_scripts import Net

    model = Net(case.width, case.depth)
    parameters = list(model.parameters())
    for parameter, numbers in zip(parameters, case.state(), strict=True):
        parameter.data = numbers
    losses: list[list[float]] = [[] for _ in range(ranks)]
    after = []
    for step in range(case.steps):
        every = []
        for rank in range(ranks):
            images, labels = case.batch(rank, step)
            every.append(F.cross_entropy(model(images), labels))
            losses[rank].append(float(every[-1].detach()))
        gradients = torch.autograd.grad(sum(every, torch.zeros(())) / ranks, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.data = parameter.data - RATE * gradient
        after.append([one.detach().clone() for one in parameters])
    return losses, after


def events_of(one: Observation, *names: str) -> list[Event]:
    """What rank 0 called by these names, in order."""
    events = one.trace.events if one.trace is not None else ()
    return [event for event in events if event.rank == 0 and event.name in names]


def largest_gather(one: Observation) -> int:
    """Bytes of the largest all-gather of rank 0."""
    return max((event.bytes for event in events_of(one, "all_gather")), default=0)


SCRIPTS = "dtlab.units.unit05.runs_scripts."
_WIDTH, _DEPTH = 32, 6  # of the model in the notebook
EXACT, IN_16_BITS = 1e-3, 0.2  # of a loss
_LIMIT = 30.0  # seconds: the first program with PyTorch's FSDP imports it


def trials_of(
    ranks: int, *, half: tuple[int, int] = (9, 12), **more: Any
) -> Callable[[int], list[Trial]]:
    """A model of another size; `half` of its width is drawn between these."""

    def trials(seed: int) -> list[Trial]:
        draw = random.Random(seed)
        sizes = 2 * draw.randint(*half), draw.randint(4, 6)
        return [_trial(ranks, ShardedRun(draw.randrange(10**6), *sizes, **more))]

    return trials


def deep_and_wide(seed: int) -> list[Trial]:
    """Many narrow layers, a small part of the model each; and a few that are twice as wide.

    So neither a number of elements nor a part of the model says which modules are layers.
    """
    draw = random.Random(seed)
    width, depth = 2 * draw.randint(6, 9), draw.randint(22, 26)
    deep = ShardedRun(draw.randrange(10**6), width, depth, steps=2)
    return [_trial(3, deep), _trial(3, ShardedRun(deep.seed + 1, 2 * _WIDTH, 4))]


def _trial(ranks: int, case: ShardedRun) -> Trial:
    return Trial(ranks, [case], limit=_LIMIT)


def scene(ranks: int = 2, **more: Any) -> Trial:
    return _trial(ranks, ShardedRun(0, _WIDTH, _DEPTH, **more))
