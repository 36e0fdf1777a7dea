"""05/policies: two precision policies."""

from __future__ import annotations

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.checking.trials import Observation
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit05.runs import (
    IN_16_BITS,
    ROUNDED,
    SCRIPTS,
    SYMPTOMS,
    narrow_gradients,
    not_in_16_bits,
    other_losses,
    scene,
    trials_of,
)


def _in_two_formats(one: Observation) -> str:
    """What went wrong, and where formats are mixed, whose matter that is."""
    return f"{one.trouble}\n{_OUTPUTS}" if "dtype" in one.trouble else one.trouble


_OUTPUTS = (
    "A module gets inputs in one format, and computes in another. What comes out of a layer goes "
    "into the next module: which policy says in what format, and which modules need to say so?"
)

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
            trials_of(3, watched=False),
            (
                Rule(
                    "gradients",
                    2,
                    judge_by("added up in float32", narrow_gradients, trouble=_in_two_formats),
                ),
                Rule(
                    "training",
                    1,
                    judge_by(
                        "computed and gathered in bfloat16",
                        not_in_16_bits,
                        other_losses(IN_16_BITS),
                        waits=True,
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
