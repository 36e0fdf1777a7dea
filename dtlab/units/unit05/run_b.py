"""05/run_b: fix a script whose layers reduce their gradients in 16 bits."""

from __future__ import annotations

from typing import Any

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation
from dtlab.checks.programs.run import events_of, other_losses, other_steps
from dtlab.checks.programs.training import proof, script_part
from dtlab.predict.units import counted
from dtlab.units.unit05.runs import (
    REDUCES,
    ROOM,
    ShardedRun,
    dtypes_of,
    largest_gather,
    scene,
    trials_of,
)

_IN_16_BITS = 0.2  # relative tolerance of a loss
_OF_A_STEP = 0.1  # share of the distance that parameters move; rounding to bfloat16 causes 0.01


def _narrow(run: Observation) -> list[int]:
    """Bytes of each operation that reduces gradients in 16 bits."""
    return [e.bytes for e in events_of(run, *REDUCES) if "16" in str(e.extra.get("dtype"))]


def _narrow_gradients(case: ShardedRun, results: list[Any], run: Observation) -> str:
    narrow = _narrow(run)
    if narrow:
        return (
            f"{sum(narrow) // case.steps:,} bytes of gradients are sent in 16 bits in each step, "
            f"in {counted(len(narrow), 'operation')}. Which policy do these modules have?"
        )
    reduced = sum(event.bytes for event in events_of(run, *REDUCES))
    if reduced < 0.9 * 4 * case.elements * case.steps:
        return "not all gradients are reduced over the ranks."
    return ""


def _not_in_16_bits(case: ShardedRun, results: list[Any], run: Observation) -> str:
    import torch

    for rank, result in enumerate(results):
        if result["inputs"] != ["bfloat16"]:
            return (
                f"layers compute in {' and '.join(result['inputs'])} on rank {rank}, not bfloat16."
            )
        losses = torch.tensor(result["losses"])
        if same(losses.bfloat16().float(), losses):
            return "the losses have no more digits than bfloat16: outputs must be float32."
    wide = sum("32" in dtype for dtype in dtypes_of(run, "all_gather"))
    if wide:
        return f"{wide} all-gathers send float32: gather parameters in bfloat16."
    largest = largest_gather(run)
    if largest > ROOM * 2 * max(case.layer, case.root):
        return f"an all-gather has {largest:,} bytes: is every layer still a separate block?"
    return ""


PART = script_part(
    "05/run_b",
    "Run B",
    13,
    2,
    "dtlab.units.unit05.runs_scripts.train_b",
    scene(watched=False),
    trials_of(3, watched=False),
    (
        rule("gradients", 2, "reduced in float32", by=_narrow_gradients),
        rule(
            "training",
            2,
            "layers compute and are gathered in bfloat16",
            by=(_not_in_16_bits, other_losses(_IN_16_BITS), other_steps(_OF_A_STEP)),
        ),
    ),
    [
        "in_layers = MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
        "fully_shard(layer, mesh=mesh, mp_policy=in_layers)",
    ],
    "Which call sets the dtype in which the gradients of a layer are reduced?",
    proof=proof(
        lambda scene: {"bytes": _narrow(scene.one)[0]},
        "bytes",
        "Which of rank 0's operations does not have the dtype that the author wants?",
        {
            "bytes * case.depth": "that is all layers of a step. Give one operation.",
            "bytes * case.depth * case.steps": "that is the whole run. Give one operation.",
            "2 * bytes": "those would be the bytes in float32.",
            "bytes / ranks": "that is the part that one rank keeps.",
            "4 * case.root": "those are sent in float32, which is right.",
        },
        tolerance=0.001,
    ),
)
