"""Symptoms of the run in fp16, as the notebook lists them, and the number that proves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.mend import Proof
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom, drift
from dtlab.units.unit04.nan_run_cases import made_steps

__all__ = ["PROOF", "SYMPTOMS"]

_FAR = 1.5  # times max_norm: what rounding does not explain

# What is measured -------------------------------------------------------------------------------


def _lengths(scene: Scene) -> list[float]:
    """Of the gradients that steps were made with, as parts of max_norm."""
    _, _, max_norm = scene.case.more
    return [float(step.got.norm()) / max_norm for step in made_steps(scene.case, scene.results)]


def _skipped(scene: Scene) -> list[bool]:
    """Of each step, whether the parameters stayed where they were."""
    seen = scene.results[0]
    ends = [*seen.before[1:], seen.after]
    return [end.equal(begin) for begin, end in zip(seen.before, ends, strict=True)]


# Symptoms ---------------------------------------------------------------------------------------


def _too_long(scene: Scene) -> Finding:
    longest = max(_lengths(scene), default=0.0)
    return Finding(longest > _FAR, f"the longest gradient had {longest:.3g} times max_norm")


def _too_short(scene: Scene) -> Finding:
    longest = max(_lengths(scene), default=0.0)
    return Finding(_FAR * longest < 1, f"the longest gradient had {longest:.3g} times max_norm")


def _bad_parameters(scene: Scene) -> Finding:
    bad = not all(bool(one.after.isfinite().all()) for one in scene.results)
    return Finding(bad, f"the parameters were {'not ' if bad else ''}finite in the end")


def _none_skipped(scene: Scene) -> Finding:
    skipped = _skipped(scene)
    many = "none" if not any(skipped) else "some"
    return Finding(not any(skipped), f"{many} of {len(skipped)} steps were skipped")


def _all_skipped(scene: Scene) -> Finding:
    skipped = _skipped(scene)
    many = "all" if all(skipped) else "not all"
    return Finding(all(skipped), f"{many} of {len(skipped)} steps were skipped")


def _left_out(scene: Scene) -> Finding:
    case = scene.case
    fed = sum(len(batch) for own in scene.results for batch in own.passes)
    words = f"{fed / case.epochs:g} of {case.samples} samples were taken in an epoch"
    return Finding(fed < case.epochs * case.samples, words)


SYMPTOMS: dict[str, Symptom] = {
    "too long": Symptom("steps are made with gradients longer than max_norm", _too_long),
    "too short": Symptom("no step is made with a gradient near max_norm", _too_short),
    "bad parameters": Symptom("a step was made with inf or NaN: parameters are", _bad_parameters),
    "none skipped": Symptom("no step is skipped, whatever its gradients are", _none_skipped),
    "all skipped": Symptom("every step is skipped, from the first one on", _all_skipped),
    "drift": Symptom("the copies of the model differ, by more and more", drift),
    "samples left out": Symptom("an epoch does not take all samples", _left_out),
}


# The number -------------------------------------------------------------------------------------


def _measured(scene: Scene) -> Mapping[str, Any]:
    scales = [scale for _, scale in scene.results[0].curve]
    first = _skipped(scene).index(False)
    return {
        "times": scales[0] / scales[first],
        "scale": scales[first],
        "skipped": first,
        "length": _lengths(scene)[0],
        "max_norm": scene.case.more[2],
    }


PROOF = Proof(
    _measured,
    Number(
        lambda given: given["times"],
        (
            Mistake(lambda g: 1 / g["times"], "that is the other way round."),
            Mistake(lambda g: g["skipped"], "that many steps were skipped before it."),
            Mistake(lambda g: g["scale"], "that is the scale of that step."),
            Mistake(lambda g: g["times"] * g["max_norm"], "that is the limit itself."),
            Mistake(
                lambda g: g["length"], "that is how long the gradient was, and not the limit."
            ),
            Mistake(1, "then it would be what it should be."),
        ),
        "Gradients are compared with the limit while they are times the scale. Divide both by "
        "the scale of the first step that was made.",
        tolerance=0.001,
    ),
)
