"""02/script_2: as fast as one rank."""

from __future__ import annotations

from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit02.script_runs import (
    SCRIPTS,
    SGD,
    SYMPTOMS,
    samples_check,
)

PART = Part(
    "02/script_2",
    3,
    "As fast as one rank",
    8,
    1,
    MendScript(
        SCRIPTS + "train_2",
        Trial(2, [Training(0, 128)]),
        samples_check(SGD, "samples", "the ranks share the samples out, anew in every epoch"),
        symptoms=SYMPTOMS,
        lines=["loader = DataLoader(data, batch_size=16, shuffle=True, generator=order)"],
        look="Where is it settled which samples a rank takes?",
    ),
)
