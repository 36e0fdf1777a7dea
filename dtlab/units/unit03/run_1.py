"""03/run_1: slow, and nobody complains."""

from __future__ import annotations

from dtlab.units.unit03.run_trials import (
    accumulated,
    linear,
    run_check,
    run_part,
    scene,
)

PART = run_part(
    1,
    "Slow, and nobody complains",
    10,
    1,
    run_check(
        accumulated, linear, "rate", "updates have the rates of the linear rule, on 2 and 3 ranks"
    ),
    scene(8, (32, 8)),
    "rate too low",
    ["optimizer = SGD(replica.parameters(), lr=0.05, momentum=0.9)"],
    "Where is it settled how high the rate goes?",
)
