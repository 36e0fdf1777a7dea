"""02/script_7: a step that grows."""

from __future__ import annotations

from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.judges import (
    copies_differ,
    not_shared_out,
)
from dtlab.grading.scripts.mend import MendScript
from dtlab.grading.scripts.training import not_as_one_process
from dtlab.units.unit02.script_runs import (
    AS_ONE,
    COPIES,
    FAST,
    FORWARD,
    SCRIPTS,
    SYMPTOMS,
    piled_up_in_an_epoch,
    shared,
    two_criteria,
)

PART = Part(
    "02/script_7",
    3,
    "A step that grows",
    7,
    1,
    MendScript(
        SCRIPTS + "train_7",
        Trial(2, [Training(0, 128)]),
        two_criteria(
            shared,
            (
                "training",
                2,
                AS_ONE,
                [not_shared_out, piled_up_in_an_epoch(FAST), not_as_one_process(FAST)],
            ),
            ("copies", 1, f"{COPIES}, on 2 and 3 ranks", [copies_differ]),
        ),
        symptoms=SYMPTOMS,
        lines=[
            "for images, labels in loader:",
            FORWARD,
            "optimizer.step()",
            "total += loss.item()",
        ],
        look="A line is missing: between one backward pass and the next, outside of which two?",
        optimizer=FAST,
    ),
)
