"""06/many_biases: another loss on more ranks."""

from __future__ import annotations

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit06.runs import (
    SCRIPTS,
    SYMPTOMS,
    TIMES,
    not_shared,
    other_bytes,
    other_start,
    other_training,
    scene,
    trials_of,
)

PART = Part(
    "06/many_biases",
    3,
    "Another loss on more ranks",
    13,
    2,
    MendScript(
        SCRIPTS + "train_bias",
        scene(4),
        Check(
            trials_of(1),
            (
                Rule("outputs", 2, judge_by("the first loss is that of one process", other_start)),
                Rule(
                    "training",
                    1,
                    judge_by("as one process", not_shared, other_training, other_bytes),
                    after="outputs",
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=["part = F.linear(F.gelu(inner), layer.narrow.weight, layer.narrow.bias)"],
        look="What is added up over the ranks, and what of it is there once?",
        proof=TIMES,
    ),
)
