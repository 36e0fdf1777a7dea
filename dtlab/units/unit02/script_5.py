"""02/script_5: each rank clips its gradient before it is averaged."""

from __future__ import annotations

from functools import partial

from dtlab.checks.programs.data_parallel import SCENE, equal_copies, shared
from dtlab.checks.programs.reference import Optimizer
from dtlab.checks.programs.training import script_part

_LONGEST = 0.6  # some gradients in the trials are longer, some are not
_CLIPPED = Optimizer(0.5, clip=_LONGEST)

PART = script_part(
    "02/script_5",
    "Script 5",
    10,
    2,
    "dtlab.units.unit02.scripts.train_5",
    SCENE,
    partial(shared, more=(_LONGEST,)),
    equal_copies(_CLIPPED),
    lines=["clip_grad_norm_(model.parameters(), max_norm)"],
    look="Compare the lengths of the steps with those of one process. Which line sets a length?",
    optimizer=_CLIPPED,
)
