"""03/run_4: eight passes, eight times the rate."""

from __future__ import annotations

from dtlab.units.unit03.run_trials import (
    BATCH,
    RATE,
    of_recipe,
    one_recipe,
    run_check,
    run_part,
    scene,
)

PART = run_part(
    4,
    "Eight passes, eight times the rate",
    11,
    2,
    run_check(
        one_recipe, of_recipe, "rate", "updates have the rates of the recipe, on 2 and 3 ranks"
    ),
    scene(4, (BATCH, RATE, 4)),
    "rate too high",
    ["optimizer = SGD(replica.parameters(), lr=size * parts * rate, momentum=0.9)"],
    "What is it that the rate should grow with, and does that grow here?",
)
