"""02/script_4: the shard that is longer."""

from __future__ import annotations

from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.judges import (
    copies_differ,
)
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit02.script_runs import (
    AS_ONE,
    SCRIPTS,
    SGD,
    SYMPTOMS,
    OnShards,
    not_as_one_process_on_shards,
    shards,
    two_criteria,
    unused_samples,
)

PART = Part(
    "02/script_4",
    3,
    "The shard that is longer",
    11,
    2,
    MendScript(
        SCRIPTS + "train_4",
        Trial(2, [OnShards(0, sizes=(40, 56))]),
        two_criteria(
            shards,
            ("samples", 2, "all ranks come to the end, with all samples", [unused_samples]),
            ("training", 1, AS_ONE, [copies_differ, not_as_one_process_on_shards(SGD)]),
        ),
        symptoms=SYMPTOMS,
        lines=["for images, labels in loader:"],
        look="Which line runs more often on one rank than on another?",
    ),
)
