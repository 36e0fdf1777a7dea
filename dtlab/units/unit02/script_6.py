"""02/script_6: four times the traffic."""

from __future__ import annotations

from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.judges import (
    copies_differ,
    not_shared_out,
    too_much_sent,
)
from dtlab.grading.scripts.mend import MendScript
from dtlab.grading.scripts.training import not_as_one_process, too_large_passes
from dtlab.units.unit02.script_runs import (
    AS_ONE,
    SCRIPTS,
    SGD,
    SYMPTOMS,
    accumulated,
    two_criteria,
)

PART = Part(
    "02/script_6",
    3,
    "Four times the traffic",
    11,
    2,
    MendScript(
        SCRIPTS + "train_6",
        Trial(2, [Training(0, 128, more=(4,), passes=4, micro_batch=8)]),
        two_criteria(
            accumulated,
            ("traffic", 2, "a rank sends one gradient for each step", [too_much_sent]),
            (
                "training",
                1,
                AS_ONE,
                [
                    too_large_passes,
                    not_shared_out,
                    copies_differ,
                    not_as_one_process(SGD),
                ],
            ),
        ),
        symptoms=SYMPTOMS,
        lines=[
            "loss = F.cross_entropy(replica(images), labels) / accumulate",
            "with replica.no_sync():",
        ],
        look="When does DDP make up its mind whether a backward pass sends?",
    ),
)
