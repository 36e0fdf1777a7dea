"""Whether ranks have trained as one process does on all their samples, or what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dtlab.grading.checking.objections import Objection
from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.reference import (
    NEAR,
    Optimizer,
    Step,
    averaged_after_each_step,
    in_one_process,
    mean,
    off,
    steps_of,
)

if TYPE_CHECKING:
    import torch

__all__ = ["OptimizerOf", "not_as_one_process"]

OptimizerOf = Callable[[Training, int], Optimizer]  # of a case, on so many ranks


def not_as_one_process(optimizer: Optimizer | OptimizerOf) -> Objection:
    """The parameters are not those of one process that takes all ranks' samples in each step."""

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        steps = steps_of(case, results)
        known = optimizer if isinstance(optimizer, Optimizer) else optimizer(case, len(results))
        wanted = in_one_process(case, [mean(step) for step in steps], known)
        far = [off(each.after, wanted, case.start(0)) for each in results]
        if max(far) < NEAR:
            return ""
        rank = far.index(max(far))
        why = _what_else(case, steps, results[rank], known)
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
            "They step with the sum over the microbatches: divide by how many there are."
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
        "They step with the last microbatch of each step alone.",
        partial(in_one_process, case, last, optimizer),
    )
