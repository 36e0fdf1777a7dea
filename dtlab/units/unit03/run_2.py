"""03/run_2: gradients are averaged in the first microbatch of an update, not in the last."""

from __future__ import annotations

from dtlab.checks.programs.training import script_part
from dtlab.units.unit03.run_trials import accumulated, linear, rates_and_end, scene

PART = script_part(
    "03/run_2",
    "Run 2",
    11,
    2,
    "dtlab.units.unit03.runs.train_2",
    scene(8, (32, 8)),
    accumulated,
    rates_and_end(
        linear,
        "gradient",
        "updates follow the gradient of the mean loss, on 2 and 3 ranks",
    ),
    lines=["with replica.no_sync() if number > 1 else nullcontext():"],
    look="When is the all-reduce of an update, and which gradients exist at that time?",
)
