"""Level III of unit 04: a run in fp16 whose loss becomes NaN, since scaled gradients are clipped.

The script is in `nan_run_script`, as the notebook shows it. Symptom and number are measured in a
run of it on digits (`nan_run_symptoms`); the mended one is judged by the gradient that each step
is made with, and by where it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.checking.trials import Observation
from dtlab.grading.parts import Part
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.judges import copies_differ, not_shared_out, too_much_sent
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit04.nan_run_cases import Made, made_steps, scene, trials
from dtlab.units.unit04.nan_run_symptoms import PROOF, SYMPTOMS

__all__ = ["PART"]

_NEAR = 0.25  # of a gradient: in fp16 a unit near 0 may be on where it is off in float64
_EXACT = 0.02  # of its length, where it is clipped

# Judges of the mended run -----------------------------------------------------------------------


def _other_steps(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """As many as there are batches, some of them skipped, and most of them made."""
    passes, wanted = len(results[0].passes), case.steps(len(results))
    if passes != wanted:
        return f"rank 0 makes {passes} forward passes, and there are {wanted} batches for it."
    made = len(made_steps(case, results))
    if made == passes:
        return (
            "no step is skipped, and at the scale of the script the first ones overflow. Is the "
            "loss still scaled? What has to change is the clipping alone."
        )
    if 3 * made < passes:
        return (
            f"{made} of {passes} steps are made; all others are skipped. What do they find in the "
            "gradients, and how does the scale go?"
        )
    return ""


def _other_gradients(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """A step is not made with the mean gradient, cut to max_norm where it is longer."""
    _, _, max_norm = case.more
    for step in made_steps(case, results):
        got, true = float(step.got.norm()), float(step.true.norm())
        wanted = step.true * min(1.0, max_norm / (true + 1e-6))
        far = float((step.got - wanted).norm()) > _NEAR * float(wanted.norm())
        is_clipped = true * (1 - _NEAR) > max_norm
        if far or (is_clipped and abs(got / max_norm - 1) > _EXACT):
            return f"{_told(step, max_norm)} {_why(step, max_norm)}".rstrip()
    return ""


def _told(step: Made, max_norm: float) -> str:
    return (
        f"step {step.number} is made with a gradient of length {float(step.got.norm()):.3g}; "
        f"that of the loss has {float(step.true.norm()):.3g}, and max_norm is {max_norm:g}."
    )


def _why(step: Made, max_norm: float) -> str:
    got, true = float(step.got.norm()), float(step.true.norm())
    along = float(step.got @ step.true) > (1 - _NEAR**2) * got * true
    if not along:
        return (
            "It does not point where that of the loss does: all gradients are cut by one factor."
        )
    if got > (1 + _NEAR) * max(true, max_norm):
        return "It is still times a scale: who divides by that, and when?"
    if got > (1 + _EXACT) * max_norm:
        return (
            "It is not cut as it should be: is it clipped at all, by its length? And when they "
            "are compared, are the gradient and the limit both times the scale, or neither?"
        )
    if got < 0.1 * _NEAR * min(true, max_norm):
        return (
            "It is cut far too much: times which number was it when it was compared with max_norm?"
        )
    if got < (1 - _EXACT) * min(true, max_norm):
        return (
            "It is cut too far, and not by a scale: is it cut once, and to max_norm itself? What "
            "is shorter stays as it is."
        )
    return ""


def _ends_elsewhere(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """The parameters are no numbers in the end."""
    for rank, seen in enumerate(results):
        if not bool(seen.after.isfinite().all()):
            return f"rank {rank} ends with parameters that are inf or NaN."
    return ""


_CLIPPING = judge_by(
    "each step is made with the true gradient, cut to max_norm, on 2 and 3 ranks",
    _other_steps,
    _other_gradients,
)

PART = Part(
    name="04/nan_run",
    level=3,
    title="NaN after twenty steps",
    minutes=20,
    difficulty=2,
    check=MendScript(
        "dtlab.units.unit04.nan_run_script.train",
        scene(),
        Check(
            trials,
            (
                Rule("clipping", 2, _CLIPPING),
                Rule(
                    "training",
                    1,
                    judge_by(
                        "ranks share the samples out, agree, and send each gradient once",
                        not_shared_out,
                        copies_differ,
                        too_much_sent,
                        _ends_elsewhere,
                    ),
                    after="clipping",
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "limit = max_norm * scaler.get_scale()",
            "clip_grad_norm_(replica.parameters(), limit)",
        ],
        look="Which line is there so that no gradient is longer than max_norm, and what does it "
        "compare with what?",
        proof=PROOF,
    ),
)
