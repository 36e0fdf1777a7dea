"""02/script_1: four copies, four models."""

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
)

PART = Part(
    "02/script_1",
    3,
    "Four copies, four models",
    7,
    1,
    MendScript(
        SCRIPTS + "train_1",
        Trial(2, [Training(0, 128)]),
        copies_check(ADAM),
        symptoms=SYMPTOMS,
        lines=["loss = F.cross_entropy(model(images), labels)"],
        look="Who is called here, and who would have averaged the gradients?",
        optimizer=ADAM,
    ),
)
