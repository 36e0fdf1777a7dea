"""06/many_biases: another loss on more ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.units.unit06.runs import (
    AS_ONE,
    NEAR,
    SYMPTOMS,
    SharedRun,
    not_shared,
    other_bytes,
    scene,
    trials_of,
)


def _other_start(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """The first loss is not that of one process."""
    wanted = case.one_process(1)[0][0][0]
    for rank, seen in enumerate(results):
        got = seen["losses"][0]
        if not abs(got - wanted) <= NEAR * wanted:
            return (
                f"the first loss of rank {rank} is {got:.5f}, and in one process {wanted:.5f}. No "
                "step was made yet: what do the ranks add up that is there once?"
            )
    return ""


PART = script_part(
    "06/many_biases",
    "Another loss on more ranks",
    13,
    2,
    "dtlab.units.unit06.runs_scripts.train_bias",
    scene(4),
    trials_of(1),
    (
        criterion("outputs", 2, "the first loss is that of one process", _other_start),
        criterion(
            "training", 1, "as one process", not_shared, *AS_ONE, other_bytes, after="outputs"
        ),
    ),
    SYMPTOMS,
    ["part = F.linear(F.gelu(inner), layer.narrow.weight, layer.narrow.bias)"],
    "What is added up over the ranks, and what of it is there once?",
    proof=proof(
        lambda scene: {"times": scene.results[0]["times"]},
        "times",
        "Divide what the layer adds too much by its bias, and count the one that belongs there.",
        {
            "times - 1": "that is how often it is there too many.",
            "1": "so it would be in one process. Divide what is printed.",
            "times * case.depth": "that is all layers: asked for is one.",
            "1 / times": "the other way round.",
        },
        tolerance=0.01,
    ),
)
