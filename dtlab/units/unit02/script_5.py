"""02/script_5, "A hook of one's own": the hook averages parameters instead of gradients."""

from __future__ import annotations

from collections.abc import Sequence

from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.data_parallel import ADAM, SCENE, SYMPTOMS, equal_copies, shared
from dtlab.grading.scripts.mend import script_part
from dtlab.grading.scripts.run import events_of
from dtlab.grading.words import amount

_MORE = 1.25  # a factor: a loss or a count may be averaged too


def _more_than_gradients(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """Objects if a rank all-reduces more than its gradients, such as the parameters."""
    for rank, seen in enumerate(results):
        needed = 4 * len(seen.after) * len(seen.passes)
        handed = sum(event.bytes for event in events_of(one, "all_reduce", rank=rank))
        if handed > _MORE * needed:
            return (
                f"rank {rank} has {amount(handed)} averaged, and its gradients are "
                f"{amount(needed)}. What else is averaged, and what for? Copies that begin equal "
                "and take equal steps stay equal."
            )
    return ""


PART = script_part(
    "02/script_5",
    "A hook of one's own",
    11,
    2,
    "dtlab.units.unit02.scripts.train_5",
    SCENE,
    shared,
    equal_copies(ADAM, _more_than_gradients),
    SYMPTOMS,
    ["dist.all_reduce(parameter.data)", "parameter.data /= size"],
    "What is averaged, and when: before the optimizer steps, or after it?",
    optimizer=ADAM,
)
