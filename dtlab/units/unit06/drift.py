"""06/drift: repair a script in which each rank has only a part of a gradient."""

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
        criterion("copies", 2, "all ranks end with equal copies", copies_differ),
        criterion(
            "training",
            1,
            "it trains as one process does",
            not_shared,
            *AS_ONE,
            other_bytes,
            after="copies",
        ),
    ),
    SYMPTOMS,
    ["inner = F.linear(layer.norm(x), layer.wide.weight, layer.wide.bias)"],
    "From which line on does each rank compute only a part of a gradient?",
    proof=proof(
        _measured,
        "called",
        "Count rank 0's events called all_reduce, and divide by the number of steps.",
        {
            "2 * case.depth": "a right step has so many calls. How many does this one make?",
            "called * case.steps": "that is the whole run. Divide by the number of steps.",
            "called * ranks * case.steps": "those are the calls of all ranks.",
            "1": "that is one layer.",
            "0": "that is the backward pass only.",
        },
    ),
)
