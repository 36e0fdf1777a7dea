"""06/gather_between: repair a script that is right, but sends too many bytes."""

from __future__ import annotations

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.grading.scripts.symptoms import Scene
from dtlab.units.unit06.runs import (
    AS_ONE,
    SYMPTOMS,
    bytes_of,
    not_shared,
    other_bytes,
    scene,
    trials_of,
)


def _measured(scene: Scene) -> dict[str, float]:
    gathered, reduced = bytes_of(scene, "all_gather"), bytes_of(scene, "all_reduce")
    return {"gathered": gathered / scene.case.steps, "reduced": reduced / scene.case.steps}


PART = script_part(
    "06/gather_between",
    "Right, and too many bytes",
    13,
    1,
    "dtlab.units.unit06.runs_scripts.train_gather",
    scene(2),
    trials_of(0),
    (
        criterion("bytes", 2, "it sends two all-reduces per layer", not_shared, other_bytes),
        criterion("training", 1, "it trains as one process does", *AS_ONE, after="bytes"),
    ),
    SYMPTOMS,
    [
        "inner = F.gelu(gather_from_region(inner))",
        "part = F.linear(scatter_to_region(inner), layer.narrow.weight)",
    ],
    "Which features does each product need, and which rank already has them?",
    proof=proof(
        _measured,
        "gathered",
        "Add the bytes of rank 0's events called all_gather, and divide by the number of steps.",
        {
            "gathered * case.steps": "that is the whole run. Divide by the number of steps.",
            "gathered / 2": "that is one of the two passes: see backward, too.",
            "gathered / case.depth": "that is one layer.",
            "gathered / (2 * case.depth)": "that is one all-gather.",
            "gathered / 4": "those are elements, of 4 bytes each.",
            "reduced": "those are the bytes of all-reduces, which are right.",
            "gathered + reduced": "some of these are all-reduces.",
        },
    ),
)
