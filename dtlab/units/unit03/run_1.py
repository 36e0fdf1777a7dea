"""03/run_1: the schedule is too short: its length is divided twice by the number of ranks."""

from __future__ import annotations

from dtlab.checks.programs.training import script_part
from dtlab.units.unit03.run_trials import accumulated, linear, rates_and_end, scene

PART = script_part(
    "03/run_1",
    "Run 1",
    10,
    1,
    "dtlab.units.unit03.runs.train_1",
    scene(8, (32, 8)),
    accumulated,
    rates_and_end(
        linear,
        "rate",
        "updates have the rates of a schedule of their length, on 2 and 3 ranks",
    ),
    lines=["share = len(data) // dist.get_world_size()", "updates = epochs * share // batch"],
    look="The rate of an update is a peak times a factor. Which numbers set the factor?",
)
