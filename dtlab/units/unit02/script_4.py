"""02/script_4, "The shard that is longer": ranks have different numbers of batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dtlab.grading.checking.criteria import Objection, criterion
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.data_parallel import SGD, SYMPTOMS, trained
from dtlab.grading.scripts.judges import copies_differ, uneven_epochs
from dtlab.grading.scripts.mend import script_part
from dtlab.grading.scripts.reference import (
    NEAR,
    Optimizer,
    Step,
    Weights,
    in_one_process,
    mean,
    off,
    steps_of,
)

__all__ = ["PART", "OnShards", "not_as_one_process_on_shards", "unused_samples"]


@dataclass(frozen=True)
class OnShards(Training):
    """Calls `script(model, shard, epochs)`; rank r alone has its `shards[r]` samples."""

    samples: int = field(default=0, init=False)
    shards: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", sum(self.shards))

    def __str__(self) -> str:
        return f"shards of {', '.join(map(str, self.shards))} samples, {self.epochs} epochs"

    def share(self, rank: int) -> slice:
        first = sum(self.shards[:rank])
        return slice(first, first + self.shards[rank])


def _trials(seed: int) -> list[Trial]:
    """Trials on two and on three ranks whose shards yield unequal numbers of batches of 8."""
    draw = random.Random(seed)
    long, short = 8 * draw.randint(3, 4) + draw.randint(1, 8), 8 * draw.randint(1, 2)
    middle = short + 8 + draw.randint(1, 7)
    return [
        Trial(2, [OnShards(seed, shards=(short, long))]),
        Trial(3, [OnShards(seed + 1, shards=(long, short, middle))]),
    ]


def unused_samples(case: OnShards, results: Sequence[Seen], one: Observation) -> str:
    """Objects if a rank leaves out samples of its shard in some epoch."""
    for rank, own in enumerate(results):
        shard = case.share(rank)
        for epoch, batches in enumerate(own.by_epoch(case.epochs)):
            used = {sample for batch in batches for sample in batch}
            left_out = case.shards[rank] - len(used & set(range(shard.start, shard.stop)))
            if left_out:
                return (
                    f"rank {rank} leaves out {left_out} of its {case.shards[rank]} samples in "
                    f"epoch {epoch}. The ranks no longer hang, but each must use all its samples."
                )
    return uneven_epochs(case, results)


# Three ways to average over shards of different lengths are right --------------------------------


def not_as_one_process_on_shards(optimizer: Optimizer) -> Objection:
    """Objects if parameters differ from one process's; ranks may run out of batches early."""

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        for steps, weights in itertools.product(_aligned(case, results), _MEANS):
            wanted = in_one_process(case, [weights(step) for step in steps], optimizer)
            if all(off(own.after, wanted, case.start(0)) < NEAR for own in results):
                return ""
        for rank, own in enumerate(results):
            fed = [sample for batch in own.by_epoch(case.epochs)[0] for sample in batch]
            if len(fed) > len(set(fed)):
                return (
                    f"rank {rank} takes {len(fed) - len(set(fed))} of its samples twice in an "
                    "epoch, and they count twice. A rank without a batch must add nothing to the "
                    "mean."
                )
        return (
            "the parameters are not those of one process that takes the batches of all ranks in "
            "each step. What does a rank that has no batch left add to the mean?"
        )

    return objection


def _aligned(case: Training, results: Sequence[Seen]) -> Iterator[list[Step]]:
    """Yields the ranks' steps in two versions, both of which are accepted.

    First, all ranks begin an epoch in the same step. Second, a rank that has no batches left
    begins its next epoch at once.
    """
    fresh = [_without_repeats(own, case.epochs) for own in results]
    yield steps_of(case, fresh)
    most = max(len(own.passes) for own in fresh)
    yield [[own.passes[k : k + 1] for own in fresh] for k in range(most)]


def _without_repeats(own: Seen, epochs: int) -> Seen:
    """The passes, with an empty one for each batch that repeats samples of its epoch."""
    passes: list[list[int]] = []
    for batches in own.by_epoch(epochs):
        before: set[int] = set()
        for batch in batches:
            passes.append([] if before.issuperset(batch) else batch)
            before.update(batch)
    return replace(own, passes=passes)


def _present(step: Step) -> list[Sequence[Sequence[int]]]:
    return [rank for rank in step if rank and rank[0]]


def _over_all(step: Step) -> Weights:
    """Averages over all ranks, with zero from ranks that are out of batches, as `join` does."""
    share = len(_present(step)) / len(step)
    return {sample: share * weight for sample, weight in mean(_present(step)).items()}


def _over_those_present(step: Step) -> Weights:
    return mean(_present(step))


def _over_samples(step: Step) -> Weights:
    samples = [sample for rank in step for batch in rank for sample in batch]
    return dict.fromkeys(samples, 1 / max(1, len(samples)))


_MEANS = (_over_all, _over_those_present, _over_samples)

PART = script_part(
    "02/script_4",
    "The shard that is longer",
    11,
    2,
    "dtlab.units.unit02.scripts.train_4",
    Trial(2, [OnShards(0, shards=(40, 56))]),
    _trials,
    (
        criterion("samples", 2, "all ranks finish, with all samples", unused_samples),
        trained(1, "samples", copies_differ, not_as_one_process_on_shards(SGD)),
    ),
    SYMPTOMS,
    ["for images, labels in loader:"],
    "Which line runs more often on one rank than on another?",
)
