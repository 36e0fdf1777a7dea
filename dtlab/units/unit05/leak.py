"""05/leak: more with every step."""

from __future__ import annotations

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit05.runs import (
    EXACT,
    GROWS,
    SCRIPTS,
    SYMPTOMS,
    another_mean,
    grows,
    other_losses,
    scene,
    trials_of,
)

PART = Part(
    "05/leak",
    3,
    "More with every step",
    13,
    2,
    MendScript(
        SCRIPTS + "train_leak",
        scene(steps=5),
        Check(
            trials_of(3, half=(12, 15), steps=4, kept=True),
            (
                Rule("memory", 2, judge_by("held is what a share takes", grows)),
                Rule(
                    "training",
                    1,
                    judge_by(
                        "it ends with the mean over the steps",
                        other_losses(EXACT),
                        another_mean,
                        waits=True,
                    ),
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=["after.append(sharded.full_state_dict())"],
        look="Which line makes something whole, and who still has it in the next step?",
        proof=GROWS,
    ),
)
