"""03/run_1, "Slow, and nobody complains": the rate does not grow with the batch."""

from __future__ import annotations

from dtlab.grading.scripts.mend import proof, script_part
from dtlab.units.unit03.run_trials import (
    SYMPTOMS,
    accumulated,
    linear,
    measured,
    rates_and_end,
    scene,
)

PART = script_part(
    "03/run_1",
    "Slow, and nobody complains",
    10,
    1,
    "dtlab.units.unit03.runs.train_1",
    scene(8, (32, 8)),
    accumulated,
    rates_and_end(linear, "rate", "updates have the rates of the linear rule, on 2 and 3 ranks"),
    SYMPTOMS,
    ["optimizer = SGD(replica.parameters(), lr=0.05, momentum=0.9)"],
    "Where is the peak of the rate set?",
    proof=proof(
        measured,
        "times",
        "Count the samples of an update, over all ranks and microbatches, and compare the peak "
        "with 0.05 for every 32 samples.",
        {
            "1 / times": "that is the inverse.",
            "times ** 0.5": "that is the square-root rule.",
            "times / ranks": "an update takes the samples of all ranks.",
            "times / case.passes": "an update has several microbatches.",
            "batch": "these are the samples of an update. How many times 32 are they?",
        },
        unit="times",
        tolerance=0.02,
    ),
)
