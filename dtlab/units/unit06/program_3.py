"""06/program_3: fix a program with two faults, one of which hides the other.

    both faults           copies agree; parameters that all ranks have whole, except for norms,
                          move t times as far as in one process
    without the sum       the norms' copies drift apart
    with f after norms    all parameters that all ranks have whole move t times as far
"""

from __future__ import annotations

from dtlab.checks.functions.criteria import rule
from dtlab.checks.programs.run import copies_differ
from dtlab.checks.programs.training import proof, script_part
from dtlab.units.unit06.runs import (
    AS_ONE,
    not_shared,
    other_bytes,
    other_updates,
    scene,
    trials,
)

PART = script_part(
    "06/program_3",
    "Program 3",
    18,
    3,
    "dtlab.units.unit06.runs_scripts.train_3",
    scene(1),
    trials,
    (
        rule("copies", 1, "all ranks end with equal copies", by=copies_differ),
        rule(
            "updates",
            2,
            "the first update of each parameter is that of one process",
            by=(not_shared, other_updates),
            after="copies",
        ),
        rule(
            "training",
            1,
            "it trains as one process does",
            by=(*AS_ONE, other_bytes),
            after="updates",
        ),
    ),
    [
        "hidden = layer.norm(copy_to_region(x))",
        "whole = [p for name, p in model.named_parameters() if not name.endswith(shards)]",
        "for parameter in whole:",
        "dist.all_reduce(parameter.grad)",
    ],
    "Which gradients are right on every rank before the all-reduces, and which are only parts?",
    proof=proof(
        lambda scene: {"times": scene.case.first_update(scene.results, "enter.weight", 0)[0]},
        "times",
        "Run the program on four ranks, and read the size of this first update.",
        {
            "ranks / 2": "that is what it is on two ranks.",
            "1": "that is the size of a right update, and what the norms' updates have.",
            "1 / ranks": "that is the inverse.",
            "ranks - 1": "that is only the excess.",
        },
        tolerance=0.01,
    ),
)
