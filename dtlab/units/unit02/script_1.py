"""02/script_1: the averaged gradients are not written back to `.grad`."""

from __future__ import annotations

from dtlab.checks.programs.data_parallel import ADAM, SCENE, equal_copies, shared
from dtlab.checks.programs.training import script_part

PART = script_part(
    "02/script_1",
    "Script 1",
    8,
    1,
    "dtlab.units.unit02.scripts.train_1",
    SCENE,
    shared,
    equal_copies(ADAM),
    lines=[
        "gradients = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]",
    ],
    look="Follow one gradient from backward to the step: which tensors hold its value?",
    optimizer=ADAM,
)
