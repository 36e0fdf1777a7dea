"""06/many_biases: repair a script whose loss changes with the number of ranks."""

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


def _other_start(case: SharedRun, results: Sequence[Any], run: Observation) -> str:
    """A message if the first loss is not that of one process; empty otherwise."""
    wanted = case.one_process(1)[0][0][0]
    for rank, result in enumerate(results):
        got = result["losses"][0]
        if not abs(got - wanted) <= NEAR * wanted:
            return (
                f"the first loss of rank {rank} is {got:.5f}, and in one process {wanted:.5f}. No "
                "step was made yet: which tensor do the ranks sum that must be added only once?"
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
            "training",
            1,
            "it trains as one process does",
            not_shared,
            *AS_ONE,
            other_bytes,
            after="outputs",
        ),
    ),
    SYMPTOMS,
    ["part = F.linear(F.gelu(inner), layer.narrow.weight, layer.narrow.bias)"],
    "What do the ranks sum, and which part of it must be added only once?",
    proof=proof(
        lambda scene: {"times": scene.results[0]["times"]},
        "times",
        "Divide the excess of the layer's output by its bias, and add 1 for the bias that belongs "
        "there.",
        {
            "times - 1": "that counts only the biases that are too many.",
            "1": "this would be right in one process. Divide the printed values.",
            "times * case.depth": "that is all layers. Take one layer.",
            "1 / times": "the other way round.",
        },
        tolerance=0.01,
    ),
)
