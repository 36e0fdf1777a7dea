"""Symptoms of the four runs, as the notebook lists them, and the numbers that prove them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.mend import Proof
from dtlab.grading.scripts.reference import steps_of
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom, drift, too_many_bytes
from dtlab.units.unit03.runs_cases import BASE_BATCH, BASE_RATE
from dtlab.units.unit03.runs_judges import moves

__all__ = ["PROOFS", "SYMPTOMS"]

_ABOUT = 1.1  # times: about the same
_TWICE = 1.5  # times what it should be: none of the scripts comes near


# What is measured -------------------------------------------------------------------------------


def _rates(scene: Scene) -> list[float]:
    return [rate for _, rate in scene.results[0].curve]


def _batch(scene: Scene) -> float:
    """Samples of an update, over all ranks."""
    fed = sum(len(batch) for own in scene.results for batch in own.passes)
    return fed / len(_rates(scene))


def _rate_for_batch(scene: Scene) -> float:
    """The peak rate that the linear rule has for the samples of an update."""
    return BASE_RATE * _batch(scene) / BASE_BATCH


def _stretch(scene: Scene) -> float:
    """How many times as long the first update is as rate and gradient of the mean loss say."""
    first = steps_of(scene.case, scene.results)[:1]
    (move,) = moves(scene.case, scene.results[0], first)
    return move.rate / _rates(scene)[0]


# Symptoms ---------------------------------------------------------------------------------------


def _peak(scene: Scene) -> str:
    peak, rule = max(_rates(scene)), _rate_for_batch(scene)
    other = "a lower" if peak > _ABOUT * rule else "about the same"
    other = "a higher" if rule > _ABOUT * peak else other
    return f"the peak rate was {peak:.3g}; for such updates the linear rule has {other} one"


def _too_low(scene: Scene) -> Finding:
    return Finding(_TWICE * max(_rates(scene)) < _rate_for_batch(scene), _peak(scene))


def _too_high(scene: Scene) -> Finding:
    return Finding(max(_rates(scene)) > _TWICE * _rate_for_batch(scene), _peak(scene))


def _gone(scene: Scene) -> Finding:
    rates = _rates(scene)
    none = sum(rate == 0 for rate in rates)
    often = "most" if 2 * none > len(rates) else "some" if none else "none"
    return Finding(2 * none > len(rates), f"{often} of {len(rates)} updates had a rate of 0")


def _still_rising(scene: Scene) -> Finding:
    rates = _rates(scene)
    top = rates.index(max(rates))
    return Finding(
        top == len(rates) - 1, f"the rate was highest in update {top} of {len(rates)}, from 0"
    )


def _too_long(scene: Scene) -> Finding:
    times = _stretch(scene)
    return Finding(times > _TWICE, _length(times))


def _too_short(scene: Scene) -> Finding:
    times = _stretch(scene)
    return Finding(_TWICE * times < 1, _length(times))


def _length(times: float) -> str:
    how = "longer than" if times > _TWICE else "as long as"
    how = "shorter than" if _TWICE * times < 1 else how
    return f"the first update was {how} its rate and the mean gradient make it"


def _left_out(scene: Scene) -> Finding:
    case = scene.case
    fed = sum(len(batch) for own in scene.results for batch in own.passes)
    words = f"{fed / case.epochs:g} of {case.samples} samples were taken in an epoch"
    return Finding(fed < case.epochs * case.samples, words)


SYMPTOMS: dict[str, Symptom] = {
    "rate too low": Symptom("the peak rate fits a smaller batch than an update takes", _too_low),
    "rate too high": Symptom("the peak rate fits a larger batch than an update takes", _too_high),
    "rate gone": Symptom("most updates are made with a rate of 0", _gone),
    "still rising": Symptom("the rate is at its highest in the last update", _still_rising),
    "too long": Symptom("an update is longer than its rate times the mean gradient", _too_long),
    "too short": Symptom("an update is shorter than its rate times the mean gradient", _too_short),
    "too many bytes": Symptom(
        "updates are right, but more is sent for each than one gradient", too_many_bytes
    ),
    "drift": Symptom("the copies of the model differ, by more and more", drift),
    "samples left out": Symptom("an epoch does not take all samples", _left_out),
}


# Numbers ----------------------------------------------------------------------------------------


def _measured(scene: Scene) -> Mapping[str, Any]:
    rates, case = _rates(scene), scene.case
    return {
        "batch": _batch(scene),
        "times": _rate_for_batch(scene) / max(rates),
        "moving": sum(rate > 0 for rate in rates),
        "updates": len(rates),
        "stretch": _stretch(scene),
        "ranks": len(scene.results),
        "passes": case.passes,
        "micro": case.micro_batch,
    }


_BY_RULE = Number(
    lambda given: given["times"],
    (
        Mistake(lambda g: 1 / g["times"], "that is the other way round."),
        Mistake(lambda g: g["times"] ** 0.5, "that is the square-root rule."),
        Mistake(lambda g: g["times"] / g["ranks"], "an update takes the samples of all ranks."),
        Mistake(lambda g: g["times"] / g["passes"], "an update has several microbatches."),
        Mistake(lambda g: g["batch"], "these are the samples of an update: how many times 32?"),
    ),
    "Count the samples of an update, over all ranks and microbatches, and compare the peak with "
    "0.05 for every 32 of them.",
    unit="times",
    tolerance=0.02,
)
_MOVING = Number(
    lambda given: given["moving"],
    (
        Mistake(lambda g: g["updates"], "these are all updates. In how many is the rate not 0?"),
        Mistake(lambda g: g["updates"] - g["moving"], "these are the updates without a rate."),
        Mistake(lambda g: g["moving"] - 1, "they are counted from 0: how many are there?"),
    ),
    "Count those in the list of rates that are above 0.",
    unit="updates",
    tolerance=0,
)
_STRETCH = Number(
    lambda given: given["stretch"],
    (
        Mistake(lambda g: 1 / g["stretch"], "that is the other way round."),
        Mistake(lambda g: g["ranks"] * g["stretch"], "DDP has averaged over the ranks already."),
        Mistake(1, "then it would be as long as it should be. Divide the lengths."),
    ),
    "Divide the length of the first update by its rate times the length of the mean gradient.",
    unit="times",
    tolerance=0.02,
)
_BATCH = Number(
    lambda given: given["batch"],
    (
        Mistake(lambda g: g["batch"] / g["ranks"], "these are the samples of one rank."),
        Mistake(lambda g: g["batch"] / g["passes"], "an update has several microbatches."),
        Mistake(lambda g: g["micro"], "that is one forward pass on one rank."),
        Mistake(lambda g: g["batch"] / g["times"], "this is the batch that the rate would fit."),
    ),
    "Divide the samples of an epoch by its updates.",
    unit="samples",
    tolerance=0,
)

PROOFS = {
    "rate too low": Proof(_measured, _BY_RULE),
    "rate gone": Proof(_measured, _MOVING),
    "too long": Proof(_measured, _STRETCH),
    "rate too high": Proof(_measured, _BATCH),
}
