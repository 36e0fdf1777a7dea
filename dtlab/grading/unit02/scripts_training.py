"""Whether ranks have trained as one process does on all their samples, or what they did."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dtlab.grading.trials import Observation
from dtlab.grading.unit02.scripts_cases import Seen, Training
from dtlab.grading.unit02.scripts_judges import Objection
from dtlab.grading.unit02.scripts_reference import (
    Optimizer,
    Step,
    averaged_after_each_step,
    in_one_process,
    mean,
    off,
    steps_of,
)
from dtlab.grading.unit02.scripts_symptoms import NEAR

if TYPE_CHECKING:
    import torch

__all__ = ["not_as_one_process", "not_as_one_process_on_shards", "too_large_passes"]


def not_as_one_process(optimizer: Optimizer, passes: bool = False) -> Objection:
    """The parameters are not those of one process that takes all ranks' samples in each step.

    `passes`: a step has as many forward passes as the case says.
    """

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        steps = steps_of(case, results, case.more[0] if passes else 1)
        wanted = in_one_process(case, [mean(step) for step in steps], optimizer)
        far = [off(own.after, wanted, case.start(0)) for own in results]
        if max(far) < NEAR:
            return ""
        rank = far.index(max(far))
        why = _what_else(case, steps, results[rank], optimizer)
        return (
            f"rank {rank}'s parameters are not those of one process that takes all these samples: "
            f"they are off by {far[rank]:.1%} of the way that those went. {why}"
        )

    return objection


def _what_else(case: Training, steps: list[Step], got: Seen, optimizer: Optimizer) -> str:
    """What the ranks did instead, where it is something that people do."""
    if off(got.after, case.start(0), got.after + 1) == 0:
        return "They are those of the beginning: is there a gradient when the optimizer steps?"
    for words, parameters in _known(case, steps, optimizer):
        if off(got.after, parameters(), case.start(0)) < NEAR:
            return words
    return (
        "Is every step made with the mean of all ranks' gradients, those of this step alone, and "
        "with the rate and the optimizer of the script?"
    )


def _known(
    case: Training, steps: list[Step], optimizer: Optimizer
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    ranks = len(steps[0]) if steps else 0
    means = [mean(step) for step in steps]
    sums = {
        ranks: "They step with the sum of the ranks' gradients: divide it by their number.",
        len(steps[0][0]) if steps else 0: (
            "They step with the sum over the micro-batches: divide by how many there are."
        ),
    }
    for factor, words in sums.items():
        if factor > 1:
            larger = [{k: factor * share for k, share in one.items()} for one in means]
            yield words, partial(in_one_process, case, larger, optimizer)
    yield (
        "Gradients of earlier steps are in every step.",
        partial(in_one_process, case, means, optimizer, piled_up=True),
    )
    yield (
        "They are averaged after each rank has made its own step. The optimizer does not forget "
        "the gradients that it was given: average those, before the step.",
        partial(averaged_after_each_step, case, steps, optimizer),
    )
    for rank in range(ranks):
        own = [mean([step[rank]]) for step in steps]
        for first in {0, rank}:
            yield (
                f"They are those of training on rank {rank}'s samples alone: what the other ranks "
                "compute is thrown away.",
                partial(in_one_process, case, own, optimizer, first=first),
            )
    last = [mean([own[-1:] for own in step]) for step in steps]
    yield (
        "They step with the last micro-batch of each step alone.",
        partial(in_one_process, case, last, optimizer),
    )


def too_large_passes(most: int) -> Objection:
    """A forward pass takes more than `most` samples: accumulating is there to avoid that."""

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        largest = max((len(batch) for own in results for batch in own.passes), default=0)
        if largest <= most:
            return ""
        return (
            f"a forward pass takes {largest} samples at once. A micro-batch has {most}: memory "
            "for more is what accumulation does without."
        )

    return objection


# Shards of different sizes ----------------------------------------------------------------------


def not_as_one_process_on_shards(optimizer: Optimizer) -> Objection:
    """The same, where a rank may be through before others: any of three means is right.

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
