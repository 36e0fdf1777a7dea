"""03/run_2: over after two epochs."""

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
    rates_and_end(
        linear, "schedule", "the schedule goes one step for each update, on 2 and 3 ranks"
    ),
    SYMPTOMS,
    ["schedule.step()"],
    "Which line moves the rate on, and how often does it run?",
    proof=proof(
        measured,
        "moving",
        "Count those in the list of rates that are above 0.",
        {
            "updates": "these are all updates. In how many is the rate not 0?",
            "updates - moving": "these are the updates without a rate.",
            "moving - 1": "they are counted from 0: how many are there?",
        },
        unit="updates",
    ),
)
