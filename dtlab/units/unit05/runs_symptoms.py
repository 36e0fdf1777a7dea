"""Symptoms of the programs of Level III, as the notebook lists them, and the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.mend import Proof
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom
from dtlab.units.unit05.runs_cases import (
    REDUCES,
    ShardedRun,
    events_of,
    largest_gather,
    one_process,
)

__all__ = ["GIANT", "GROWS", "ROUNDED", "SYMPTOMS"]

_NOISE = 0.02  # of what is held: buffers that are still there
_APART = 0.25  # of a loss: rounding to bfloat16 takes a fifth of it

# What is measured -------------------------------------------------------------------------------


def _case(scene: Scene) -> ShardedRun:
    (case,) = scene.one.trial.cases
    assert isinstance(case, ShardedRun)
    return case


def _first(scene: Scene) -> dict[str, Any]:
    found: Any = scene.one.results[0][0]
    assert isinstance(found, dict)
    return found


def _giant(scene: Scene) -> Finding:
    part = _first(scene)["whole"] / (4 * _case(scene).elements)
    return Finding(part > 0.5, f"while a layer computed, {part:.0%} of the model was whole")


def _grows(scene: Scene) -> Finding:
    held = _first(scene)["alive"][1:-1]
    grows = all(b > a + _NOISE * held[0] for a, b in pairwise(held)) and bool(any(held))
    words = "more with every step" if grows else "not more with every step"
    return Finding(grows, f"between steps a rank held {words}")


def _rounded(scene: Scene) -> Finding:
    dtypes = {str(one.extra.get("dtype")) for one in events_of(scene.one, *REDUCES)}
    words = f"gradients travelled as {' and '.join(sorted(dtypes))}"
    return Finding(any(one.endswith("16") for one in dtypes), words)


def _wide(scene: Scene) -> Finding:
    inputs = _first(scene)["inputs"]
    dtypes = {str(one.extra.get("dtype")) for one in events_of(scene.one, "all_gather")}
    words = f"layers computed in {' and '.join(inputs)}, gathered were {' and '.join(dtypes)}"
    return Finding("bfloat16" in inputs and "float32" in dtypes, words)


def _rounded_losses(scene: Scene) -> Finding:
    import torch

    losses = torch.tensor(_first(scene)["losses"])
    rounded = bool(losses.bfloat16().float().equal(losses))
    return Finding(rounded, f"losses had {'no ' * rounded}more digits than bfloat16")


def _apart(scene: Scene) -> Finding:
    wanted, _ = one_process(_case(scene), len(scene.one.results[0]))
    found: list[Any] = scene.one.results[0]
    far = max(
        abs(a - b) / b
        for seen, own in zip(found, wanted, strict=True)
        for a, b in zip(seen["losses"], own, strict=True)
    )
    return Finding(far > _APART, f"losses were off those of one process by up to {far:.1%}")


def _stands(scene: Scene) -> Finding:
    import torch

    pairs = zip(_first(scene)["pieces"], _case(scene).state(), strict=True)
    moved = [not bool(torch.isin(own, start).all()) for own, start in pairs if own.numel()]
    return Finding(not any(moved), f"{sum(moved)} of {len(moved)} pieces moved")


SYMPTOMS: dict[str, Symptom] = {
    "giant gather": Symptom("while one layer computes, over half of the model is whole", _giant),
    "grows": Symptom("between steps a rank holds more bytes after every step", _grows),
    "rounded gradients": Symptom("gradients travel and are added up in 16 bits", _rounded),
    "wide gathers": Symptom("layers compute in 16 bits, and are gathered in 32", _wide),
    "rounded losses": Symptom("the losses have no more digits than bfloat16", _rounded_losses),
    "apart": Symptom("losses are off those of one process by over a quarter", _apart),
    "stands": Symptom("no piece of the parameters moves", _stands),
}

# The numbers ------------------------------------------------------------------------------------


def _of_gathers(scene: Scene) -> Mapping[str, Any]:
    case, ranks = _case(scene), scene.one.trial.world_size
    return {"bytes": largest_gather(scene.one), "ranks": ranks, "model": 4 * case.elements,
            "layer": 4 * case.layer, "root": 4 * case.root}  # fmt: skip


def _of_reduces(scene: Scene) -> Mapping[str, Any]:
    case = _case(scene)
    narrow = [one for one in events_of(scene.one, *REDUCES) if "16" in str(one.extra.get("dtype"))]
    step = sum(one.bytes for one in narrow) / case.steps
    return {"bytes": step, "steps": case.steps, "depth": case.depth, "root": 4 * case.root,
            "ranks": scene.one.trial.world_size}  # fmt: skip


def _of_memory(scene: Scene) -> Mapping[str, Any]:
    case, held = _case(scene), _first(scene)["alive"]
    return {
        "bytes": (held[-2] - held[1]) / (case.steps - 2),
        "steps": case.steps,
        "ranks": scene.one.trial.world_size,
    }


def _right(given: Mapping[str, Any]) -> float:
    return float(given["bytes"])


GIANT = Proof(
    _of_gathers,
    Number(
        _right,
        (
            Mistake(lambda g: g["bytes"] / g["ranks"], "that is what one rank has of it."),
            Mistake(lambda g: g["bytes"] / 4, "those are elements: a parameter has 4 bytes."),
            Mistake(lambda g: g["model"], "that is the whole model: what is outside its layers?"),
            Mistake(lambda g: g["layer"], "that is one layer, as it should be."),
            Mistake(lambda g: g["root"], "that is what is in no layer."),
        ),
        "Look through the events called all_gather, of one rank: which has the most bytes?",
        tolerance=0.001,
    ),
)

ROUNDED = Proof(
    _of_reduces,
    Number(
        _right,
        (
            Mistake(lambda g: g["bytes"] * g["steps"], "that is the whole run. Divide by steps."),
            Mistake(lambda g: 2 * g["bytes"], "that is what they would have in float32."),
            Mistake(lambda g: g["bytes"] / g["depth"], "that is one layer."),
            Mistake(lambda g: g["bytes"] / g["ranks"], "that is what one rank is left with."),
            Mistake(lambda g: g["bytes"] + g["root"], "some of these travel in float32."),
            Mistake(lambda g: g["root"], "those travel in float32, as they should."),
        ),
        "Add up the bytes of rank 0's events called reduce_scatter whose dtype has 16 bits, and "
        "divide by the steps.",
        tolerance=0.001,
    ),
)

GROWS = Proof(
    _of_memory,
    Number(
        _right,
        (
            Mistake(lambda g: g["bytes"] / g["ranks"], "that would be a rank's own pieces."),
            Mistake(lambda g: g["bytes"] * g["steps"], "that is all steps together."),
            Mistake(lambda g: g["bytes"] / 4, "those are elements: a parameter has 4 bytes."),
            Mistake(lambda g: g["bytes"] / 2, "that would be so in 16 bits."),
        ),
        "Compare what a rank holds when a batch is drawn with what it held at the batch before, "
        "from the second one on.",
        tolerance=0.02,
    ),
)
