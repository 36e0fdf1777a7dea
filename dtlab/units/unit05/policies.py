"""05/policies: two precision policies."""

from __future__ import annotations

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.faults import judge
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit05.runs_cases import (
    IN_16_BITS,
    SCRIPTS,
    scene,
    trials_of,
)
from dtlab.units.unit05.runs_judges import (
    also,
    narrow_gradients,
    not_in_16_bits,
    other_losses,
)
from dtlab.units.unit05.runs_symptoms import ROUNDED, SYMPTOMS

__all__ = ["PART"]

PART = Part(
    "05/policies",
    3,
    "Two precision policies",
    13,
    2,
    MendScript(
        SCRIPTS + "train_policies",
        scene(watched=False),
        Check(
            trials_of(3, watched=False, topic="gradients"),
            (
                Rule(
                    "gradients",
                    2,
                    judge("gradients", "added up in float32", also=also(narrow_gradients)),
                ),
                Rule(
                    "training",
                    1,
                    judge(
                        "training",
                        "computed and gathered in bfloat16",
                        also=also(not_in_16_bits, other_losses(IN_16_BITS)),
                    ),
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "in_layers = MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
            "fully_shard(layer, mesh=mesh, mp_policy=in_layers)",
        ],
        look="Which call says in what format the gradients of a layer travel?",
        proof=ROUNDED,
    ),
)
