"""06/drift: a gradient in parts."""

from __future__ import annotations

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit06.runs import (
    COUNTED,
    SCRIPTS,
    SYMPTOMS,
    copies_differ,
    not_shared,
    other_bytes,
    other_training,
    scene,
    trials_of,
)

PART = Part(
    "06/drift",
    3,
    "A gradient in parts",
    13,
    3,
    MendScript(
        SCRIPTS + "train_drift",
        scene(2),
        Check(
            trials_of(1),
            (
                Rule("copies", 2, judge_by("all ranks end with the same copies", copies_differ)),
                Rule(
                    "training",
                    1,
                    judge_by("as one process", not_shared, other_training, other_bytes),
                    after="copies",
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=["inner = F.linear(layer.norm(x), layer.wide.weight, layer.wide.bias)"],
        look="Where does every rank begin to find only a part of a gradient?",
        proof=COUNTED,
    ),
)
