"""06/program_2: fix a program whose first loss is wrong on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation
from dtlab.checks.programs.training import script_part
from dtlab.units.unit06.runs import (
    AS_ONE,
    NEAR,
    SharedRun,
    not_shared,
    other_bytes,
    scene,
    trials,
)


def _other_start(case: SharedRun, results: Sequence[Any], run: Observation) -> str:
    """A message if the first loss is not that of one process; empty otherwise."""
    wanted = case.one_process(1)[0][0][0]
    for rank, result in enumerate(results):
        got = result["losses"][0]
        if not abs(got - wanted) <= NEAR * wanted:
            return (
                f"the first loss of rank {rank} is {got:.5f}, and in one process {wanted:.5f}. No "
                "step was made yet: which numbers does a rank multiply with each other?"
            )
    return ""


PART = script_part(
    "06/program_2",
    "Program 2",
    13,
    2,
    "dtlab.units.unit06.runs_scripts.train_2",
    scene(),
    trials,
    (
        rule("outputs", 3, "the first loss is that of one process", by=_other_start),
        rule(
            "training",
            2,
            "it trains as one process does",
            by=(not_shared, *AS_ONE, other_bytes),
            after="outputs",
        ),
    ),
    ["layer.wide.weight = nn.Parameter(own(layer.wide.weight, 0))"],
    "Write down, on two ranks, which features each line has on rank 0.",
)
