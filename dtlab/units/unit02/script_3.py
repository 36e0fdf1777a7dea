"""02/script_3: every epoch the first."""

from __future__ import annotations

from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit02.script_runs import (
    MOMENTUM,
    SCRIPTS,
    SYMPTOMS,
    for_long,
    samples_check,
)

PART = Part(
    "02/script_3",
    3,
    "Every epoch the first",
    7,
    1,
    MendScript(
        SCRIPTS + "train_3",
        Trial(2, [Training(0, 128)]),
        samples_check(
            MOMENTUM, "order", "every epoch shares the samples out in another order", for_long
        ),
        symptoms=SYMPTOMS,
        lines=[
            "for epoch in range(epochs):",
            "total = 0.0",
            "losses.append(total / len(loader))",
        ],
        look="A line is missing. Below which one does an epoch begin?",
        optimizer=MOMENTUM,
    ),
)
