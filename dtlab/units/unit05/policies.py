"""05/policies: two precision policies."""

from __future__ import annotations

from typing import Any

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.grading.scripts.run import events_of, other_losses, other_steps
from dtlab.units.unit05.runs import (
    REDUCES,
    ROOM,
    SYMPTOMS,
    ShardedRun,
    dtypes_of,
    largest_gather,
    scene,
    trials_of,
)

_IN_16_BITS = 0.2  # of a loss
_OF_A_STEP = 0.1  # of the way that parameters move; rounding to bfloat16 takes 0.01


def _in_two_formats(one: Observation) -> str:
    """Why the ranks did not come back, and what to look at where formats are mixed."""
    if "dtype" not in one.trouble:
        return one.trouble
    return (
        f"{one.trouble}\nA module gets inputs in one format, and computes in another. The outputs "
        "of a layer go into the next module: which policy says in what format, and which modules "
        "need to say so?"
    )


def _narrow(one: Observation) -> list[int]:
    """Bytes of the gradients that are added up in 16 bits."""
    return [e.bytes for e in events_of(one, *REDUCES) if "16" in str(e.extra.get("dtype"))]


def _narrow_gradients(case: ShardedRun, results: list[Any], one: Observation) -> str:
    narrow = _narrow(one)
    if narrow:
        return (
            f"{sum(narrow) // case.steps:,} bytes of gradients travel in 16 bits in each step, in "
            f"{len(narrow)} operations. Which policy do these modules have?"
        )
    reduced = sum(event.bytes for event in events_of(one, *REDUCES))
    if reduced < 0.9 * 4 * case.elements * case.steps:
        return "not all gradients are added up over the ranks."
    return ""


def _not_in_16_bits(case: ShardedRun, results: list[Any], one: Observation) -> str:
    import torch

    for rank, seen in enumerate(results):
        if seen["inputs"] != ["bfloat16"]:
            return (
                f"layers compute in {' and '.join(seen['inputs'])} on rank {rank}, not bfloat16."
            )
        losses = torch.tensor(seen["losses"])
        if bool(losses.bfloat16().float().equal(losses)):
            return "the losses have no more digits than bfloat16: outputs are to be float32."
    wide = sum("32" in dtype for dtype in dtypes_of(one, "all_gather"))
    if wide:
        return f"{wide} all-gathers travel in float32: parameters are gathered in bfloat16."
    largest = largest_gather(one)
    if largest > ROOM * 2 * max(case.layer, case.root):
        return f"an all-gather has {largest:,} bytes: is every layer still a block of its own?"
    return ""


PART = script_part(
    "05/policies",
    "Two precision policies",
    13,
    2,
    "dtlab.units.unit05.runs_scripts.train_policies",
    scene(watched=False),
    trials_of(3, watched=False),
    (
        criterion(
            "gradients", 2, "added up in float32", _narrow_gradients, trouble=_in_two_formats
        ),
        criterion(
            "training",
            1,
            "computed and gathered in bfloat16",
            _not_in_16_bits,
            other_losses(_IN_16_BITS),
            other_steps(_OF_A_STEP),
            waits=True,
        ),
    ),
    SYMPTOMS,
    [
        "in_layers = MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
        "fully_shard(layer, mesh=mesh, mp_policy=in_layers)",
    ],
    "Which call says in what format the gradients of a layer travel?",
    proof=proof(
        lambda scene: {"bytes": sum(_narrow(scene.one)) / scene.case.steps},
        "bytes",
        "Add up the bytes of rank 0's events called reduce_scatter whose dtype has 16 bits, and "
        "divide by the steps.",
        {
            "bytes * case.steps": "that is the whole run. Divide by steps.",
            "2 * bytes": "that is what they would have in float32.",
            "bytes / case.depth": "that is one layer.",
            "bytes / ranks": "that is what one rank is left with.",
            "bytes + 4 * case.root": "some of these travel in float32.",
            "4 * case.root": "those travel in float32, as they should.",
        },
        tolerance=0.001,
    ),
)
