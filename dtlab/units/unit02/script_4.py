"""02/script_4: a rank with a loss of NaN skips a step that the other ranks make."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.programs.cases import Seen, Training
from dtlab.checks.programs.data_parallel import SGD, trained
from dtlab.checks.programs.judges import copies_differ, not_shared_out
from dtlab.checks.programs.reference import NEAR, in_one_process, mean, off, steps_of
from dtlab.checks.programs.training import script_part

if TYPE_CHECKING:
    import torch

__all__ = ["PART", "Damaged", "other_steps"]


@dataclass(frozen=True)
class Damaged(Training):
    """A run on data in which all pixels of one image are NaN."""

    @property
    def damaged(self) -> int:
        """The number of this image."""
        return self.seed % self.samples

    @cached_property
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = super().data
        images[self.damaged] = float("nan")
        return images, labels

    def spoilt(self, results: Sequence[Seen]) -> list[bool]:
        """For each step, whether the batch of a rank contains the damaged image."""
        return [
            any(self.damaged in batch for passes in step for batch in passes)
            for step in steps_of(self, results)
        ]


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    two, three = (n * draw.randint(20, 24) for n in (2, 3))
    return [Trial(2, [Damaged(seed, two, 3)]), Trial(3, [Damaged(seed + 1, three, 3)])]


def other_steps(case: Damaged, results: Sequence[Seen], run: Observation) -> str:
    """A message if a rank leaves out another step than the one with the damaged image."""
    import torch

    for rank, result in enumerate(results):
        rows = torch.cat([result.before, result.after[None]])
        if not rows.isfinite().all():
            return f"NaN is in the parameters of rank {rank}. Which gradients did it step with?"
        for step, spoilt in enumerate(case.spoilt(results)):
            if spoilt == same(rows[step], rows[step + 1]):
                continue
            verb = "makes" if spoilt else "leaves out"
            losses = "a loss is NaN" if spoilt else "all losses are finite"
            return f"rank {rank} {verb} step {step}, counted from 0, in which {losses}."
    return ""


def _not_as_one_process(case: Damaged, results: Sequence[Seen], run: Observation) -> str:
    """A message if the parameters are not those of one process that skips the same steps."""
    spoilt, means = case.spoilt(results), map(mean, steps_of(case, results))
    steps = [{} if skips else weights for skips, weights in zip(spoilt, means, strict=True)]
    wanted = in_one_process(case, steps, SGD)
    for rank, result in enumerate(results):
        far = off(result.after, wanted, case.start(0))
        if not far < NEAR:
            return (
                f"rank {rank}'s parameters are not those of one process that leaves out the same "
                f"steps: they are off by {far:.1%} of the distance from the start. Is every "
                "gradient the mean over all ranks, of one and the same step?"
            )
    return ""


PART = script_part(
    "02/script_4",
    "Script 4",
    10,
    2,
    "dtlab.units.unit02.scripts.train_4",
    Trial(2, [Damaged(0, 96, 3)]),
    _trials,
    (
        rule("steps", 2, "all ranks leave out the same steps", by=(not_shared_out, other_steps)),
        trained(1, "steps", copies_differ, _not_as_one_process),
    ),
    lines=[
        "if not loss.isfinite():",
        "continue",
    ],
    look="Count the all-reduces of each rank. Which line decides how many a rank calls?",
)
