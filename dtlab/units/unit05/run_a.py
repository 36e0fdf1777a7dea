"""05/run_a: fix a script with two faults, of which the first hides the effect of the second.

both faults              no parameter moves; whole gradients stay on a rank between steps
only the optimizer fixed parameters move, by the gradients of other microbatches
only the sync fixed      no parameter moves
"""

from __future__ import annotations

from typing import Any

from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation
from dtlab.checks.programs.reference import Optimizer
from dtlab.checks.programs.run import events_of, other_losses
from dtlab.checks.programs.training import Scene, proof, script_part, unmoved
from dtlab.predict.units import counted
from dtlab.units.unit05.runs import EXACT, REDUCES, ShardedRun, scene, trials_of

_MORE = 0.5  # of the model's bytes, for buffers; whole gradients would take 1


def _unmoved(case: ShardedRun, results: list[Any], run: Observation) -> str:
    for rank, result in enumerate(results):
        pieces = [piece for piece in result["after"].values() if piece.numel()]
        names = unmoved(Scene(run, Optimizer(case.rate)), rank)
        if names:
            return (
                f"{len(names)} of the {len(pieces)} pieces of rank {rank} have the same values "
                f"after {counted(case.steps, 'step')} as before."
            )
    return ""


def _holds_more(case: ShardedRun, results: list[Any], run: Observation) -> str:
    share = 4 * case.elements / len(results)
    for rank, result in enumerate(results):
        whole = result["whole"] / (4 * case.elements)
        if whole > 0.5:
            return f"while a layer computes on rank {rank}, {whole:.0%} of the model is whole."
        held = max(result["alive"][1:])
        if held > 2 * share + _MORE * 4 * case.elements:
            return (
                f"rank {rank} holds up to {held:,} bytes between steps. Its pieces and their "
                f"gradients take {2 * share:,.0f}. What else is there?"
            )
    return ""


def _other_passes(case: ShardedRun, results: list[Any], run: Observation) -> str:
    rows = max(result["rows"] for result in results)
    if rows > case.rows // 2:
        samples = counted(rows, "sample")
        return f"a layer computes {samples} at once; a microbatch has {case.rows // 2}."
    steps = max(1, len(results[0]["losses"]))  # `other_losses` reports missing steps
    reduced = sum(event.bytes for event in events_of(run, *REDUCES)) // steps
    if not 0.9 < reduced / (4 * case.elements) < 1.5:  # padding takes some
        return (
            f"{reduced:,} bytes of gradients are reduced in a step, and the model has "
            f"{4 * case.elements:,}. Reduce each gradient once in a step."
        )
    return ""


PART = script_part(
    "05/run_a",
    "Run A",
    13,
    3,
    "dtlab.units.unit05.runs_scripts.train_a",
    scene(),
    trials_of(3),
    (
        rule("steps", 1, "each step moves the parameters", by=_unmoved),
        rule("held", 1, "a rank holds pieces and their gradients", by=_holds_more),
        rule(
            "training",
            2,
            "it trains as one process does",
            by=(_other_passes, other_losses(EXACT)),
            after="steps",
        ),
    ),
    [
        "optimizer = SGD(model.parameters(), lr=0.1)",
        "model.set_requires_gradient_sync(number % 2 == 0)",
    ],
    "For each line, say which tensors it works with at that moment, and what happens to them.",
    proof=proof(
        lambda scene: {
            "held": scene.results[0]["alive"][-1],
            "share": 4 * scene.case.elements / len(scene.results),
        },
        "held - 2 * share",
        "What must a rank of a right program hold when it draws a batch? Subtract that from what "
        "it holds here.",
        {
            "held": "that is all of it. Its pieces and their gradients belong there.",
            "held - share": "that is more than its pieces. Which gradients must it hold?",
            "share": "that is the size of a rank's pieces.",
            "case.elements": "those are elements: a parameter has 4 bytes.",
        },
        tolerance=0.02,
    ),
)
