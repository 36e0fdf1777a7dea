"""Runs of the broken programs of 05/run_a, 05/run_b and 05/run_c, and what is measured in them.

The programs are in `runs_scripts`, as the notebook shows them, with the code that measures them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.programs.run import Program, TrainingRun, events_of
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "EXACT", "NOISE", "REDUCES", "ROOM", "ShardedRun", "dtypes_of", "largest_gather", "rises",
    "scene", "trials_of",
]  # fmt: skip

REDUCES = ("reduce_scatter", "all_to_all", "all_reduce")  # operations that reduce gradients
EXACT = 1e-3  # relative error of a loss
NOISE = 0.02  # of the bytes held, for buffers that are not yet released
ROOM = 1.25  # allowed ratio to the bytes that must be whole
_WIDTH, _DEPTH = 32, 6  # of the model in the notebook
_LIMIT = 30.0  # seconds; the first program that uses PyTorch's FSDP must import it


@dataclass(frozen=True)
class ShardedRun(TrainingRun):
    """A run of `program(model, batches)`, with different batches on each rank.

    With `watched`, the bytes of all tensors are recorded whenever a batch is drawn; with `kept`,
    also the memory outside of tensors.
    """

    advices: ClassVar = {
        "dtype": "A module computes in another dtype than its inputs have. The outputs of a layer "
        "are the inputs of the next module: which policy sets their dtype, and which modules need "
        "it?"
    }

    width: int
    depth: int
    steps: int = 4
    watched: bool = True
    kept: bool = False

    def __str__(self) -> str:
        layers = counted(self.depth, "layer")
        return f"{layers} of width {self.width}, {counted(self.steps, 'step')}"

    @property
    def sizes(self) -> tuple[int, int]:
        return self.width, self.depth

    @property
    def layer(self) -> int:
        """Elements of a layer."""
        return 4 * self.width**2 + 3 * self.width

    @property
    def root(self) -> int:
        """Elements of the parameters outside of layers."""
        return 65 * self.width + 10 * self.width + 10

    @property
    def elements(self) -> int:
        """Elements of the model."""
        return self.root + self.depth * self.layer

    @staticmethod
    def build(*sizes: int) -> nn.Module:
        from dtlab.units.unit05.runs_scripts import Net

        return Net(*sizes)

    def part(self, name: str, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """The rows that `fully_shard` gives a rank."""
        chunks = whole.chunk(ranks)
        return chunks[rank] if rank < len(chunks) else whole[:0]

    def inputs(self, rank: int, world_size: int) -> dict[str, Any]:
        watch = {"alive": self.watched, "kept": self.kept}
        return {**super().inputs(rank, world_size), "watch": watch}

    @classmethod
    def run(cls, fn: Program, model: Any, given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit05.runs_scripts import Watch

        with Watch(model, **given["watch"]) as watch:
            result = super().run(fn, model, {"batches": watch.batches(given["batches"])})
        return {**result, **watch.noted}


def trial(ranks: int, case: ShardedRun) -> Trial:
    """One launch of a program."""
    return Trial(ranks, [case], limit=_LIMIT)


def scene(ranks: int = 2, **more: Any) -> Trial:
    """The run of the notebook."""
    return trial(ranks, ShardedRun(0, _WIDTH, _DEPTH, **more))


def trials_of(
    ranks: int, *, half: tuple[int, int] = (9, 12), **more: Any
) -> Callable[[int], list[Trial]]:
    """Makes a function that draws a trial, with a model unlike the notebook's.

    Half of the model's width is drawn from the range `half`.
    """

    def trials(seed: int) -> list[Trial]:
        draw = random.Random(seed)
        sizes = 2 * draw.randint(*half), draw.randint(4, 6)
        return [trial(ranks, ShardedRun(draw.randrange(10**6), *sizes, **more))]

    return trials


# Measurements -----------------------------------------------------------------------------------


def largest_gather(run: Observation) -> int:
    """Bytes of the largest all-gather of rank 0."""
    return max((event.bytes for event in events_of(run, "all_gather")), default=0)


def dtypes_of(run: Observation, *names: str) -> list[str]:
    """The dtype of each of rank 0's operations of these names."""
    return [str(event.extra.get("dtype")) for event in events_of(run, *names)]


def rises(counts: Sequence[float], by: float) -> bool:
    """Whether every count exceeds the one before it by more than `by`."""
    return all(b > a + by for a, b in pairwise(counts))
