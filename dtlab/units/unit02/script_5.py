"""02/script_5: a hook of one's own."""

from __future__ import annotations

from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit02.script_runs import (
    ADAM,
    SCRIPTS,
    SYMPTOMS,
    copies_check,
    more_than_gradients,
)

PART = Part(
    "02/script_5",
    3,
    "A hook of one's own",
    11,
    2,
    MendScript(
        SCRIPTS + "train_5",
        Trial(2, [Training(0, 128)]),
        copies_check(ADAM, more_than_gradients),
        symptoms=SYMPTOMS,
        lines=["dist.all_reduce(parameter.data)", "parameter.data /= size"],
        look="What is averaged, and when: before the optimizer steps, or after it?",
        optimizer=ADAM,
    ),
)
