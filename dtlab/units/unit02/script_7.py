"""02/script_7: DDP, created while a layer is frozen, does not average its gradients later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation
from dtlab.checks.programs.cases import Seen, Training
from dtlab.checks.programs.data_parallel import COPIES, SCENE, shared, trained
from dtlab.checks.programs.judges import copies_differ, not_shared_out
from dtlab.checks.programs.reference import NEAR, Optimizer, gradient_of, mean, off, steps_of
from dtlab.checks.programs.training import script_part

if TYPE_CHECKING:
    import torch

_FAST = Optimizer(0.5)


def _not_as_one_process(case: Training, results: Sequence[Seen], run: Observation) -> str:
    """A message if training is not that of one process that freezes layer 0 in epoch 0."""
    steps, frozen = steps_of(case, results), (64 + 1) * case.hidden
    per_epoch = len(steps) // case.epochs

    def gradients(now: torch.Tensor, step: int) -> torch.Tensor:
        gradient = gradient_of(case, now, mean(steps[step]))
        gradient[: frozen * (step < per_epoch)] = 0
        return gradient

    wanted = _FAST.run(case.start(0), gradients, len(steps))
    for rank, result in enumerate(results):
        begin, middle, end = (
            row[:frozen] for row in (result.before[0], result.before[per_epoch], result.after)
        )
        if not same(middle, begin):
            return f"on rank {rank} layer 0 changes in epoch 0, in which it must be frozen."
        if same(end, middle):
            return f"on rank {rank} layer 0 does not change after epoch 0."
        if off(result.after, wanted, case.start(0)) >= NEAR:
            return (
                f"rank {rank}'s parameters are not those of one process that takes all ranks' "
                "samples in each step, and trains layer 0 from epoch 1 on. Is every gradient the "
                "mean over the ranks, and is the learning rate that of the script?"
            )
    return ""


PART = script_part(
    "02/script_7",
    "Script 7",
    10,
    2,
    "dtlab.units.unit02.scripts.train_7",
    SCENE,
    shared,
    (
        rule("copies", 1, COPIES, by=copies_differ),
        trained(2, "copies", not_shared_out, _not_as_one_process),
    ),
    lines=[
        "replica = DDP(model)",
        "first.requires_grad_(True)",
    ],
    look="Compare the bytes of the all-reduces in epochs 0 and 1. When is that decided?",
    optimizer=_FAST,
)
