"""02/script_7, "A step that grows": gradients are never set to zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.data_parallel import COPIES, SCENE, SYMPTOMS, shared, trained
from dtlab.grading.scripts.judges import copies_differ, not_shared_out
from dtlab.grading.scripts.mend import script_part
from dtlab.grading.scripts.reference import (
    NEAR,
    Optimizer,
    gradient_of,
    mean,
    not_as_one_process,
    off,
    steps_of,
)

if TYPE_CHECKING:
    import torch

_FAST = Optimizer(0.5)


def _piled_up_in_an_epoch(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """Objects if gradients are set to zero only once per epoch."""
    steps = steps_of(case, results)
    each = len(steps) // case.epochs
    if each < 2 or case.epochs < 2:  # cannot be told from zeroing in every step, or never
        return ""
    left: list[torch.Tensor] = []

    def gradients(now: torch.Tensor, step: int) -> torch.Tensor:
        new = gradient_of(case, now, mean(steps[step]))
        left.append(new + left[-1] if step % each else new)
        return left[-1]

    wanted = _FAST.run(case.start(0), gradients, len(steps))
    if any(off(own.after, wanted, case.start(0)) >= NEAR for own in results):
        return ""
    return (
        "gradients accumulate within an epoch, and begin anew with the next one: from the second "
        "step on, `.grad` still holds earlier batches. Into which loop does the line belong?"
    )


PART = script_part(
    "02/script_7",
    "A step that grows",
    7,
    1,
    "dtlab.units.unit02.scripts.train_7",
    SCENE,
    shared,
    (
        trained(2, "", not_shared_out, _piled_up_in_an_epoch, not_as_one_process(_FAST)),
        criterion("copies", 1, COPIES, copies_differ, after="training"),
    ),
    SYMPTOMS,
    [
        "for images, labels in loader:",
        "loss = F.cross_entropy(replica(images), labels)",
        "optimizer.step()",
        "total += loss.item()",
    ],
    "A line is missing: it belongs between two backward passes, but not between which two lines?",
    optimizer=_FAST,
)
