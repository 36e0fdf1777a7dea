"""01/fix_2: fix a training loop in which some ranks skip a collective."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.checks.functions.criteria import Fault, Noted
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.values import labelled
from dtlab.checks.parts import Part
from dtlab.checks.questions.waits import judge_waits
from dtlab.predict.units import counted
from dtlab.units.unit01.fixes import BYTES, ELEMENTS, Returning, all_reduced, fix_program, traffic

if TYPE_CHECKING:
    import torch


def _mean(good: Sequence[torch.Tensor], ranks: int) -> torch.Tensor | float:
    """The gradient of a step: the mean of the gradients of its good batches."""
    return sum(good) / max(1, len(good))


_USUAL: tuple[tuple[Callable[..., Any], str], ...] = (  # common wrong gradients, and advice
    (
        lambda good, ranks: sum(good) / ranks,
        "Every sum of gradients is divided by the number of ranks, even if a batch is bad.",
    ),
    (
        lambda good, ranks: _mean(good, ranks) if len(good) == ranks else 0.0,
        "No rank makes a step if one batch is bad, although the other batches are good.",
    ),
    (lambda good, ranks: sum(good), "Each step uses the sum of the gradients."),
)
_DIFFERENT = (
    "The ranks end with different weights: some make a step that others leave out. Every rank "
    "must make the same steps, also a rank with a bad batch."
)
_OTHERWISE = (
    "Go through the steps: which gradients are in the sum, and by what number is it divided?"
)


@dataclass(frozen=True)
class Batches(Returning):
    """A call of `train(batches)`; the batches in `bad`, pairs of rank and step, are not finite."""

    seed: int
    size: int
    steps: int
    bad: frozenset[tuple[int, int]] = frozenset()

    def __str__(self) -> str:
        places = ", ".join(f"rank {rank}'s of step {step}" for rank, step in sorted(self.bad))
        batches = counted(self.steps, "batch", "batches")
        return batches + (f", bad: {places}" if places else ", all good")

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor]:
        """The batches of a rank, [steps, size]."""
        batches = labelled(self.seed, self.size * self.steps, rank).view(self.steps, self.size)
        for step in (step for bad_rank, step in self.bad if bad_rank == rank):
            batches[step, (step + rank) % self.size] = float("nan" if step % 2 else "inf")
        return (batches,)

    def weights(self, ranks: int, mean: Callable[..., torch.Tensor | float]) -> torch.Tensor:
        """The final weights if `mean(good, ranks)` gives the gradient of each step."""
        import torch

        weights = torch.zeros(self.size, dtype=torch.float64)
        inputs = [self.given(rank, ranks)[0] for rank in range(ranks)]
        for batches in zip(*inputs, strict=True):
            good = [weights - batch for batch in batches if batch.isfinite().all()]
            weights = weights - 0.5 * mean(good, ranks)
        return weights

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        import torch

        ranks = len(results)
        right = self.weights(ranks, _mean)
        for rank, noted in enumerate(results):
            got = noted["returned"]
            if isinstance(got, str | list) or (got.shape, got.dtype) != (
                (self.size,),
                torch.float,
            ):
                message = "return a tensor with the shape and dtype of a batch."
                yield "result", f"rank {rank}: {message}"
            elif not got.isfinite().all():
                yield (
                    "result",
                    f"rank {rank}: the weights are not finite. Numbers of a bad batch are in a "
                    "sum, or a sum is divided by zero.",
                )
            elif not _near(got, right):
                why = [hint for mean, hint in _USUAL if _near(got, self.weights(ranks, mean))]
                advice = _DIFFERENT if _differ(results) else why[0] if why else _OTHERWISE
                yield "result", f"rank {rank}: the weights are not right. {advice}"


def _near(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((got.double() - wanted).abs().max() <= 0.1)  # the weights are in the thousands


def _differ(results: Sequence[Noted]) -> bool:
    """Whether ranks return weights of one shape that are not alike."""
    weights = [noted["returned"] for noted in results]
    if any(isinstance(each, str | list) or each.shape != weights[0].shape for each in weights):
        return False
    return not all(_near(each, weights[0].double()) for each in weights[1:])


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)

    def bad(*places: tuple[int, int], steps: int = 3) -> Batches:
        return Batches(seed, draw.randint(2, 5), steps, frozenset(places))

    one_each = [(rank, draw.randrange(3)) for rank in range(3)]
    same_step = [(rank, 1) for rank in range(3)]
    return [
        Trial(1, [bad(), bad(steps=1), bad((0, draw.randrange(3)))]),
        Trial(2, [bad(), bad((1, 2)), bad((0, 0), (1, 2))]),
        Trial(3, [bad((draw.randrange(3), 0)), bad(*one_each), bad(*same_step)]),
        Trial(4, [Batches(seed, ELEMENTS, 3, frozenset({(2, draw.randrange(3))}))]),
    ]


PART = Part(
    "01/fix_2",
    3,
    "Training on raw data",
    14,
    2,
    fix_program(
        "train",
        Trial(4, [Batches(0, 3, 4, frozenset({(2, 1), (0, 2)}))]),
        judge_waits,
        _trials,
        "the weights are right on 1 to 4 ranks, for any bad batches",
        "a step sends little more than one gradient",
        traffic(
            ("all_reduce",),
            6,
            lambda ranks, rank: 3 * all_reduced(ranks, BYTES),
            "A step needs one all-reduce of the gradient and one of a single number.",
        ),
    ),
)
