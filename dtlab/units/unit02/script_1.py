"""02/script_1, "Four copies, four models": the loop calls the model instead of the DDP replica."""

from __future__ import annotations

from dtlab.grading.scripts.data_parallel import ADAM, SCENE, SYMPTOMS, equal_copies, shared
from dtlab.grading.scripts.mend import script_part

PART = script_part(
    "02/script_1",
    "Four copies, four models",
    7,
    1,
    "dtlab.units.unit02.scripts.train_1",
    SCENE,
    shared,
    equal_copies(ADAM),
    SYMPTOMS,
    ["loss = F.cross_entropy(model(images), labels)"],
    "Which object is called here, and which object would have averaged the gradients?",
    optimizer=ADAM,
)
