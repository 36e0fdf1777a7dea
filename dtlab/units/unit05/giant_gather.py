"""05/giant_gather: one giant gather."""

from __future__ import annotations

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit05.runs import (
    EXACT,
    GIANT,
    SCRIPTS,
    SYMPTOMS,
    deep_and_wide,
    other_losses,
    scene,
    too_much_whole,
)

PART = Part(
    "05/giant_gather",
    3,
    "One giant gather",
    13,
    1,
    MendScript(
        SCRIPTS + "train_gather",
        scene(),
        Check(
            deep_and_wide,
            (
                Rule("peak", 2, judge_by("a layer at a time", too_much_whole)),
                Rule(
                    "training",
                    1,
                    judge_by("as one process", other_losses(EXACT), waits=True),
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "return sum(one.numel() for one in module.parameters()) >= 5000",
            "sharded = Zero3(model, blocks=is_block)",
        ],
        look="Who decides what is gathered together?",
        proof=GIANT,
    ),
)
