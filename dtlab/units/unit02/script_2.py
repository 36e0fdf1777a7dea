"""02/script_2, "As fast as one rank": every rank trains on all samples."""

from __future__ import annotations

from dtlab.grading.scripts.data_parallel import SCENE, SGD, SYMPTOMS, shared, shared_samples
from dtlab.grading.scripts.mend import script_part

PART = script_part(
    "02/script_2",
    "As fast as one rank",
    8,
    1,
    "dtlab.units.unit02.scripts.train_2",
    SCENE,
    shared,
    shared_samples(SGD, "samples", "in every epoch each sample goes to one rank"),
    SYMPTOMS,
    ["loader = DataLoader(data, batch_size=16, shuffle=True, generator=order)"],
    "Where is it settled which samples a rank takes?",
)
