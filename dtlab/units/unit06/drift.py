"""06/drift: a gradient in parts."""

from __future__ import annotations

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.grading.scripts.run import copies_differ, events_of
from dtlab.grading.scripts.symptoms import Scene
from dtlab.units.unit06.runs import AS_ONE, SYMPTOMS, not_shared, other_bytes, scene, trials_of


def _measured(scene: Scene) -> dict[str, float]:
    return {"called": len(events_of(scene.one, "all_reduce")) / scene.case.steps}


PART = script_part(
    "06/drift",
    "A gradient in parts",
    13,
    3,
    "dtlab.units.unit06.runs_scripts.train_drift",
    scene(2),
    trials_of(1),
    (
        criterion("copies", 2, "all ranks end with the same copies", copies_differ),
        criterion(
            "training", 1, "as one process", not_shared, *AS_ONE, other_bytes, after="copies"
        ),
    ),
    SYMPTOMS,
    ["inner = F.linear(layer.norm(x), layer.wide.weight, layer.wide.bias)"],
    "Where does every rank begin to find only a part of a gradient?",
    proof=proof(
        _measured,
        "called",
        "Count rank 0's events called all_reduce, and divide by the steps.",
        {
            "2 * case.depth": "that is what a step takes. What does this one call?",
            "called * case.steps": "that is the whole run. Divide by steps.",
            "called * ranks * case.steps": "those are of all ranks.",
            "1": "that is one layer's.",
            "0": "that is the backward pass alone.",
        },
    ),
)
