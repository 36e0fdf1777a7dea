"""02/script_3: the batches of the first epoch are kept in a list."""

from __future__ import annotations

from functools import partial

from dtlab.checks.programs.data_parallel import SCENE, shared, shared_samples
from dtlab.checks.programs.reference import Optimizer
from dtlab.checks.programs.training import script_part

_MOMENTUM = Optimizer(0.05, momentum=0.9)
_EPOCHS = 6  # enough to see an order repeat

PART = script_part(
    "02/script_3",
    "Script 3",
    7,
    1,
    "dtlab.units.unit02.scripts.train_3",
    SCENE,
    partial(shared, epochs=_EPOCHS),
    shared_samples(_MOMENTUM, "order", "every epoch distributes the samples in another order"),
    lines=["batches = list(DataLoader(data, batch_size=16, sampler=sampler))"],
    look="When does the loader ask the sampler for its order?",
    optimizer=_MOMENTUM,
)
