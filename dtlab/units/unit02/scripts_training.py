"""What else training may come to: on shards of different lengths, with gradients that pile up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dtlab.grading.checking.objections import Objection
from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.reference import (
    NEAR,
    Optimizer,
    Step,
    gradient_of,
    in_one_process,
    mean,
    off,
    steps_of,
)

if TYPE_CHECKING:
    import torch

__all__ = ["not_as_one_process_on_shards", "piled_up_in_an_epoch"]


def not_as_one_process_on_shards(optimizer: Optimizer) -> Objection:
    """As `not_as_one_process`, where a rank may be through before others: three means are right.

    Over all ranks, with nothing from those that are through, as `join` has it; over the ranks
    that still have a batch; or over the samples of the step.
    """

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        for steps, weights in itertools.product(_aligned(case, results), _MEANS):
            wanted = in_one_process(case, [weights(step) for step in steps], optimizer)
            if all(off(own.after, wanted, case.start(0)) < NEAR for own in results):
                return ""
        for rank, own in enumerate(results):
            each = len(own.passes) // case.epochs
            fed = [sample for batch in own.passes[:each] for sample in batch]
            if len(fed) > len(set(fed)):
                return (
                    f"rank {rank} takes {len(fed) - len(set(fed))} of its samples twice in an "
                    "epoch, and they count twice. A rank that is through adds nothing to the mean."
                )
        return (
            "the parameters are not those of one process that takes the batches of all ranks in "
            "each step. What does a rank add to the mean that has no batch any more?"
        )

    return objection


def _aligned(case: Training, results: Sequence[Seen]) -> Iterator[list[Step]]:
    """The steps, epoch by epoch; and where a rank goes on to its next epoch without waiting."""
    fresh = [_without_repeats(own, case.epochs) for own in results]
    yield steps_of(case, fresh)
    most = max(len(own.passes) for own in fresh)
    yield [[own.passes[k : k + 1] for own in fresh] for k in range(most)]


def _without_repeats(own: Seen, epochs: int) -> Seen:
    """With empty passes in the place of those whose samples have been there in this epoch."""
    each, passes = max(1, len(own.passes) // epochs), []
    for at, batch in enumerate(own.passes):
        before = {sample for one in own.passes[at - at % each : at] for sample in one}
        passes.append([] if before.issuperset(batch) else batch)
    return Seen(passes, own.before, own.after, own.cards)


def _present(step: Step) -> list[Sequence[Sequence[int]]]:
    return [rank for rank in step if rank and rank[0]]


def _over_all(step: Step) -> dict[int, float]:
    share = len(_present(step)) / len(step)
    return {sample: share * weight for sample, weight in mean(_present(step)).items()}


def _over_those_present(step: Step) -> dict[int, float]:
    return dict(mean(_present(step)))


def _over_samples(step: Step) -> dict[int, float]:
    samples = [sample for rank in step for batch in rank for sample in batch]
    return dict.fromkeys(samples, 1 / max(1, len(samples)))


_MEANS = (_over_all, _over_those_present, _over_samples)


def piled_up_in_an_epoch(optimizer: Optimizer) -> Objection:
    """Gradients are set to zero where an epoch begins, and pile up from there on."""

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        steps = steps_of(case, results)
        each = len(steps) // case.epochs
        if each < 2 or case.epochs < 2:  # as if zeroed in every step, or never
            return ""
        left: list[torch.Tensor] = []

        def gradients(now: torch.Tensor, step: int) -> torch.Tensor:
            new = gradient_of(case, now, mean(steps[step]))
            if step % each:
                new = new + left[-1]
            left.append(new)
            return new

        wanted = optimizer.run(case.start(0), gradients, len(steps))
        if any(off(own.after, wanted, case.start(0)) >= NEAR for own in results):
            return ""
        return (
            "gradients pile up within an epoch, and begin anew with the next one: from its second "
            "step on, `.grad` still holds earlier batches of it. Which loop is the line for?"
        )

    return objection
