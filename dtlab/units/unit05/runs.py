"""Runs and symptoms of the broken programs of 05/giant_gather, 05/policies and 05/leak.

The programs are in `runs_scripts`, as the notebook shows them, with the code that measures them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.scripts.run import Program, TrainingRun, events_of
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptoms, unmoved

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "EXACT", "NOISE", "REDUCES", "ROOM", "SYMPTOMS", "ShardedRun", "dtypes_of", "largest_gather",
    "rises", "scene", "trial", "trials_of",
]  # fmt: skip

REDUCES = ("reduce_scatter", "all_to_all", "all_reduce")  # operations that reduce gradients
EXACT, APART = 1e-3, 0.25  # relative errors of a loss; rounding to bfloat16 gives about 0.05
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

    width: int
    depth: int
    steps: int = 4
    watched: bool = True
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.depth} layers of width {self.width}, {self.steps} steps"

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


# Symptoms, as the notebook lists them -----------------------------------------------------------

SYMPTOMS = Symptoms()


@SYMPTOMS.add("giant gather", "while one layer computes, over half of the model is whole")
def _giant(scene: Scene) -> Finding:
    part = scene.results[0]["whole"] / (4 * scene.case.elements)
    return Finding(part > 0.5, f"while a layer computed, {part:.0%} of the model was whole")


@SYMPTOMS.add("grows", "between steps a rank holds more bytes after every step")
def _grows(scene: Scene) -> Finding:
    held = scene.results[0]["alive"][1:]
    grows = bool(held) and rises(held, NOISE * held[0])
    return Finding(grows, f"between steps a rank held {'not ' * (not grows)}more with every step")


@SYMPTOMS.add("rounded gradients", "gradients travel and are added up in 16 bits")
def _rounded(scene: Scene) -> Finding:
    dtypes = {*dtypes_of(scene.one, *REDUCES)}
    message = f"gradients were sent as {' and '.join(sorted(dtypes))}"
    return Finding(any(dtype.endswith("16") for dtype in dtypes), message)


@SYMPTOMS.add("wide gathers", "layers compute in 16 bits, and are gathered in 32")
def _wide(scene: Scene) -> Finding:
    inputs, dtypes = scene.results[0]["inputs"], {*dtypes_of(scene.one, "all_gather")}
    message = f"layers computed in {' and '.join(inputs)} and gathered {' and '.join(dtypes)}"
    return Finding("bfloat16" in inputs and "float32" in dtypes, message)


@SYMPTOMS.add("rounded losses", "the losses have no more digits than bfloat16")
def _rounded_losses(scene: Scene) -> Finding:
    import torch

    losses = torch.tensor(scene.results[0]["losses"])
    rounded = bool(losses.bfloat16().float().equal(losses))
    return Finding(rounded, f"losses had {'no ' * rounded}more digits than bfloat16")


@SYMPTOMS.add("apart", "losses are off those of one process by over a quarter")
def _apart(scene: Scene) -> Finding:
    wanted, _ = scene.case.one_process(len(scene.results))
    far = max(
        abs(a - b) / b
        for result, own in zip(scene.results, wanted, strict=True)
        for a, b in zip(result["losses"], own, strict=True)
    )
    return Finding(far > APART, f"losses differed from those of one process by up to {far:.1%}")


@SYMPTOMS.add("stands", "no piece of the parameters moves")
def _stands(scene: Scene) -> Finding:
    pieces = [t for t in scene.results[0]["after"].values() if t.numel()]
    moved = len(pieces) - len(unmoved(scene))
    return Finding(not moved, f"{moved} of {len(pieces)} pieces moved")
