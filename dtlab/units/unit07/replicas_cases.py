"""How a check runs a program of 07/unsynchronised, and what one process comes to.

rank r is in pipeline r // stages, and has stage r % stages

            stage 0   1        a column are the replicas of a stage
pipeline 0        0   1
pipeline 1        2   3
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.trials import Case, Observation

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Replica", "Trained", "hash_of", "one_process", "reduced"]

RATE, _ROWS = 0.1, 8  # as in the script; samples of a pipeline in a step
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "reduce")


class Trained(NamedTuple):
    """What a rank was left with: its losses, and the parameters of its stage in one row."""

    losses: list[float]
    own: Tensor


@dataclass(frozen=True)
class Replica(Case):
    """`script(stages, batches)` on `steps` batches of random images for each pipeline."""

    seed: int
    width: int
    num_stages: int = 2
    steps: int = 4

    def __str__(self) -> str:
        return f"{self.num_stages} stages, {self.width} wide, {self.steps} steps"

    def bytes_of(self, stage: int) -> int:
        """Bytes of a stage's parameters, and of their gradients."""
        inputs = self.width if stage else 64
        outputs = self.width if stage < self.num_stages - 1 else 10
        return 4 * (inputs + 1) * outputs

    def start(self) -> list[list[Tensor]]:
        """Parameters to begin with, by stage: the same on all ranks."""
        import torch

        from dtlab.units.unit07.replicas_script import build

        draw = torch.Generator().manual_seed(self.seed)
        return [
            [torch.randn(one.shape, generator=draw) * 0.2 for one in stage.parameters()]
            for stage in build(self.width, self.num_stages)
        ]

    def batch(self, pipeline: int, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels of a pipeline."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + pipeline) * 97 + step)
        images = torch.randn(_ROWS, 64, generator=draw)
        return images, torch.randint(10, (_ROWS,), generator=draw)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        pipeline, place = divmod(rank, self.num_stages)
        return {
            "sizes": (self.width, self.num_stages),
            "place": place,
            "start": self.start(),
            "batches": [self.batch(pipeline, step) for step in range(self.steps)],
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        import torch

        from dtlab.units.unit07.replicas_script import build

        stages = build(*given["sizes"])
        for stage, start in zip(stages, given["start"], strict=True):
            for parameter, numbers in zip(stage.parameters(), start, strict=True):
                parameter.data.copy_(numbers)
        losses = fn(stages, iter([tuple(batch) for batch in given["batches"]]))
        own = [one.detach().flatten() for one in stages[given["place"]].parameters()]
        return {"losses": [float(one) for one in losses], "own": torch.cat(own).clone()}

    def opened(self, result: Any) -> Trained:
        """See `Case`."""
        return Trained([float(one) for one in result["losses"]], result["own"].float())

    def mistake(self, results: Sequence[Trained]) -> str:
        """See `Case`; what is wrong with a run is for its judges to say."""
        return ""


def hash_of(numbers: Tensor) -> str:
    """Of the bits of a tensor, in a few letters."""
    return hashlib.blake2b(numbers.contiguous().numpy().tobytes(), digest_size=4).hexdigest()


def reduced(one: Observation, rank: int) -> int:
    """Bytes that a rank has in collectives, in the whole run."""
    events = one.trace.events if one.trace is not None else ()
    return sum(e.bytes for e in events if e.rank == rank and e.name in _COLLECTIVES)


def one_process(case: Replica, replicas: int) -> tuple[list[list[float]], list[Tensor]]:
    """What one process comes to with all batches: losses by pipeline, parameters by stage."""
    import torch
    import torch.nn.functional as F

    from dtlab.units.unit07.replicas_script import build

    model = torch.nn.Sequential(*build(case.width, case.num_stages))
    parameters = list(model.parameters())
    start = [one for stage in case.start() for one in stage]
    for parameter, numbers in zip(parameters, start, strict=True):
        parameter.data = numbers
    losses: list[list[float]] = [[] for _ in range(replicas)]
    for step in range(case.steps):
        every = []
        for pipeline in range(replicas):
            images, labels = case.batch(pipeline, step)
            every.append(F.cross_entropy(model(images), labels))
            losses[pipeline].append(float(every[-1].detach()))
        gradients = torch.autograd.grad(torch.stack(every).mean(), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.data = parameter.data - RATE * gradient
    rows = [torch.cat([one.detach().flatten() for one in stage.parameters()]) for stage in model]
    return losses, rows
