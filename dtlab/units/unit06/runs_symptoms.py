"""Symptoms of the programs of Level III, as the notebook lists them, and the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.mend import Proof
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom
from dtlab.units.unit06.runs_cases import SharedRun, cut_dim, events_of

__all__ = ["COUNTED", "GATHERED", "SYMPTOMS", "TIMES"]

_NEAR = 1e-4  # of a loss, and of a parameter

# What is measured -------------------------------------------------------------------------------


def _case(scene: Scene) -> SharedRun:
    (case,) = scene.one.trial.cases
    assert isinstance(case, SharedRun)
    return case


def _all(scene: Scene) -> list[Any]:
    found: list[Any] = scene.one.results[0]
    return found


def _sent(scene: Scene, name: str) -> int:
    return sum(one.bytes for one in events_of(scene.one, name))


def _gathers(scene: Scene) -> Finding:
    gathered, reduced = (_sent(scene, name) for name in ("all_gather", "all_reduce"))
    words = f"rank 0 had {gathered:,} bytes in all-gathers and {reduced:,} in all-reduces"
    return Finding(gathered > reduced, words)


def _wrong_start(scene: Scene) -> Finding:
    own, wanted = _all(scene)[0]["losses"][0], _case(scene).one_process[0][0]
    words = f"the first loss was {own:.5f}, and in one process {wanted:.5f}"
    return Finding(abs(own - wanted) > _NEAR * wanted, words)


def _drift(scene: Scene) -> Finding:
    first, *others = [seen["after"] for seen in _all(scene)]
    whole = [name for name in first if cut_dim(name) is None]
    far = max(float((other[name] - first[name]).abs().max()) for other in others for name in whole)
    words = f"copies of a parameter that all ranks have were up to {far:.2g} apart in the end"
    return Finding(far > _NEAR, words)


def _explodes(scene: Scene) -> Finding:
    losses = _all(scene)[0]["losses"]
    words = f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
    return Finding(not losses[-1] <= 2 * losses[0], words)


def _whole(scene: Scene) -> Finding:
    (wide,) = {tuple(seen["after"]["layers.0.wide.weight"].shape) for seen in _all(scene)}
    words = f"each rank had {wide[0]} of {_case(scene).inner} features of the first layer"
    return Finding(wide[0] == _case(scene).inner, words)


def _stands(scene: Scene) -> Finding:
    start, after = _case(scene).state, _all(scene)[0]["after"]
    still = [
        name for name in after if cut_dim(name) is None and bool(after[name].equal(start[name]))
    ]
    return Finding(bool(still), f"{len(still)} of the parameters that all ranks have stood still")


SYMPTOMS: dict[str, Symptom] = {
    "gathers": Symptom("a rank has more bytes in all-gathers than in all-reduces", _gathers),
    "wrong start": Symptom("the first loss is not that of one process", _wrong_start),
    "drift": Symptom("copies of a parameter that all ranks have whole differ in the end", _drift),
    "explodes": Symptom("the last loss is more than twice the first", _explodes),
    "whole": Symptom("each rank has all weights of a layer", _whole),
    "stands": Symptom("a parameter that all ranks have whole never moves", _stands),
}

# The numbers ------------------------------------------------------------------------------------


def _of_gathers(scene: Scene) -> Mapping[str, Any]:
    case = _case(scene)
    return {
        "right": _sent(scene, "all_gather") / case.steps,
        "steps": case.steps,
        "ranks": scene.one.trial.world_size,
        "depth": case.depth,
        "reduced": _sent(scene, "all_reduce") / case.steps,
    }


def _of_biases(scene: Scene) -> Mapping[str, Any]:
    return {"right": _all(scene)[0]["times"], "depth": _case(scene).depth}


def _of_reduces(scene: Scene) -> Mapping[str, Any]:
    case = _case(scene)
    called = len(events_of(scene.one, "all_reduce"))
    return {
        "right": called / case.steps,
        "needed": 2 * case.depth,
        "steps": case.steps,
        "ranks": scene.one.trial.world_size,
    }


def _right(given: Mapping[str, Any]) -> float:
    return float(given["right"])


GATHERED = Proof(
    _of_gathers,
    Number(
        _right,
        (
            Mistake(lambda g: g["right"] * g["steps"], "that is the whole run. Divide by steps."),
            Mistake(lambda g: g["right"] / 2, "that is one of the two passes: see backward, too."),
            Mistake(lambda g: g["right"] / g["depth"], "that is one layer."),
            Mistake(lambda g: g["right"] / (2 * g["depth"]), "that is one all-gather."),
            Mistake(lambda g: g["right"] / 4, "those are elements, of 4 bytes each."),
            Mistake(lambda g: g["reduced"], "that is what is all-reduced, as it should be."),
            Mistake(lambda g: g["right"] + g["reduced"], "some of these are all-reduces."),
        ),
        "Add up the bytes of rank 0's events called all_gather, and divide by the steps.",
        tolerance=0,
    ),
)

TIMES = Proof(
    _of_biases,
    Number(
        _right,
        (
            Mistake(lambda g: g["right"] - 1, "that is how often it is there too many."),
            Mistake(lambda g: 1, "so it would be in one process. Divide what is printed."),
            Mistake(lambda g: g["right"] * g["depth"], "that is all layers: asked for is one."),
            Mistake(lambda g: 1 / g["right"], "the other way round."),
        ),
        "Divide what the layer adds too much by its bias, and count the one that belongs there.",
        tolerance=0.01,
    ),
)

COUNTED = Proof(
    _of_reduces,
    Number(
        _right,
        (
            Mistake(lambda g: g["needed"], "that is what a step takes. What does this one call?"),
            Mistake(lambda g: g["right"] * g["steps"], "that is the whole run. Divide by steps."),
            Mistake(lambda g: g["right"] * g["ranks"] * g["steps"], "those are of all ranks."),
            Mistake(lambda g: 1, "that is one layer's."),
            Mistake(lambda g: 0, "that is the backward pass alone."),
        ),
        "Count rank 0's events called all_reduce, and divide by the steps.",
        tolerance=0,
    ),
)
