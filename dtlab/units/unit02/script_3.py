"""02/script_3, "Every epoch the first": set_epoch is never called."""

from __future__ import annotations

from functools import partial

from dtlab.grading.scripts.data_parallel import SCENE, SYMPTOMS, shared, shared_samples
from dtlab.grading.scripts.mend import script_part
from dtlab.grading.scripts.reference import Optimizer

_MOMENTUM = Optimizer(0.05, momentum=0.9)
_EPOCHS = 6  # enough to see an order repeat

PART = script_part(
    "02/script_3",
    "Every epoch the first",
    7,
    1,
    "dtlab.units.unit02.scripts.train_3",
    SCENE,
    partial(shared, epochs=_EPOCHS),
    shared_samples(_MOMENTUM, "order", "every epoch shares the samples out in another order"),
    SYMPTOMS,
    ["for epoch in range(epochs):", "total = 0.0", "losses.append(total / len(loader))"],
    "A line is missing. Below which one does an epoch begin?",
    optimizer=_MOMENTUM,
)
