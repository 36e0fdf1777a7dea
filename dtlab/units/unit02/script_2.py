"""02/script_2: the samplers of the ranks shuffle with different seeds."""

from __future__ import annotations

from dtlab.checks.programs.data_parallel import SCENE, SGD, shared, shared_samples
from dtlab.checks.programs.training import script_part

PART = script_part(
    "02/script_2",
    "Script 2",
    7,
    1,
    "dtlab.units.unit02.scripts.train_2",
    SCENE,
    shared,
    shared_samples(SGD, "samples", "in every epoch each sample goes to one rank"),
    lines=[
        "seed = 2 + dist.get_rank()",
        "sampler = DistributedSampler(data, seed=seed)",
    ],
    look="What must be the same on all ranks so that their shares fit together?",
)
