"""06/program_1: fix a program that trains correctly, but sends too many bytes."""

from __future__ import annotations

from dtlab.checks.functions.criteria import rule
from dtlab.checks.programs.training import proof, script_part
from dtlab.units.unit06.runs import AS_ONE, not_shared, other_bytes, reduced, scene, trials

PART = script_part(
    "06/program_1",
    "Program 1",
    13,
    1,
    "dtlab.units.unit06.runs_scripts.train_1",
    scene(),
    trials,
    (
        rule("bytes", 2, "it sends two all-reduces per layer", by=(not_shared, other_bytes)),
        rule("training", 2, "it trains as one process does", by=(*AS_ONE,), after="bytes"),
    ),
    [
        "hidden = layer.norm(x)",
        "gate = F.silu(F.linear(copy_to_region(hidden), gate_weight))",
        "values = F.linear(copy_to_region(hidden), weight)",
    ],
    "Which line starts an all-reduce that another one could include?",
    proof=proof(
        lambda scene: {
            "sent": reduced(scene),
            "needed": 4 * scene.case.depth * scene.case.activation / 2,
        },
        "sent - needed",
        "Add the bytes of rank 0's all-reduces, divide by the number of steps, and subtract what "
        "two all-reduces per layer take.",
        {
            "sent": "some of these bytes are needed.",
            "needed": "those are the bytes that a right step passes to all-reduces.",
            "(sent - needed) * case.steps": "that is the whole run. Divide by the steps.",
            "(sent - needed) / case.depth": "that is one layer.",
            "(sent - needed) / 4": "those are elements, of 4 bytes each.",
        },
        unit="B",
    ),
)
