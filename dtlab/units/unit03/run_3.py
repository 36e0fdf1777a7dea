"""03/run_3: the right rate, and too far."""

from __future__ import annotations

from dtlab.units.unit03.runs_cases import (
    accumulated,
)
from dtlab.units.unit03.runs_common import (
    linear,
    run_check,
    run_part,
    scene,
)
from dtlab.units.unit03.runs_judges import of_gradients

__all__ = ["PART"]

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
