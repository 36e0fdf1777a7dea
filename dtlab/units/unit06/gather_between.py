"""06/gather_between: right, and too many bytes."""

from __future__ import annotations

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit06.runs import (
    GATHERED,
    SCRIPTS,
    SYMPTOMS,
    not_shared,
    other_bytes,
    other_training,
    scene,
    trials_of,
)

PART = Part(
    "06/gather_between",
    3,
    "Right, and too many bytes",
    13,
    1,
    MendScript(
        SCRIPTS + "train_gather",
        scene(2),
        Check(
            trials_of(0),
            (
                Rule("bytes", 2, judge_by("two all-reduces a layer", not_shared, other_bytes)),
                Rule("training", 1, judge_by("as one process", other_training), after="bytes"),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "inner = F.gelu(gather_from_region(inner))",
            "part = F.linear(scatter_to_region(inner), layer.narrow.weight)",
        ],
        look="Which features does each product need, and who has them by then?",
        proof=GATHERED,
    ),
)
