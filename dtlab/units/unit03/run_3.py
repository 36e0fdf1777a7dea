"""03/run_3: the right rate, and too far."""

from __future__ import annotations

from dtlab.units.unit03.run_trials import (
    accumulated,
    linear,
    of_gradients,
    run_check,
    run_part,
    scene,
)

PART = run_part(
    3,
    "The right rate, and too far",
    12,
    2,
    run_check(
        accumulated,
        linear,
        "gradient",
        "updates go along the gradient of the mean loss, on 2 and 3 ranks",
        of_gradients,
    ),
    scene(8, (32, 8)),
    "too long",
    ["loss = F.cross_entropy(outputs, labels)", "loss.backward()"],
    "`.grad` is a sum. Of what, and by what is it divided?",
)
