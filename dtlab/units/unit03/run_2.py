"""03/run_2, "Over after two epochs": the schedule steps once per microbatch."""

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
    "03/run_2",
    "Over after two epochs",
    11,
    2,
    "dtlab.units.unit03.runs.train_2",
    scene(4, (64, 4)),
    accumulated,
    rates_and_end(linear, "schedule", "the schedule makes one step per update, on 2 and 3 ranks"),
    SYMPTOMS,
    ["schedule.step()"],
    "Which line changes the rate, and how often does it run?",
    proof=proof(
        measured,
        "moving",
        "Count the entries above 0 in the list of rates.",
        {
            "updates": "these are all updates. In how many is the rate not 0?",
            "updates - moving": "these are the updates without a rate.",
            "moving - 1": "these are counted from 0. How many are there?",
        },
        unit="updates",
    ),
)
