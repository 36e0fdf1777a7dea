"""03/run_2: over after two epochs."""

from __future__ import annotations

from dtlab.units.unit03.run_trials import (
    accumulated,
    linear,
    run_check,
    run_part,
    scene,
)

PART = run_part(
    2,
    "Over after two epochs",
    11,
    2,
    run_check(
        accumulated,
        linear,
        "schedule",
        "the schedule goes one step for each update, on 2 and 3 ranks",
    ),
    scene(4, (64, 4)),
    "rate gone",
    ["schedule.step()"],
    "Which line moves the rate on, and how often does it run?",
)
