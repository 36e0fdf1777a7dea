"""05/giant_gather: repair a script that gathers nearly the whole model in one all-gather."""

from __future__ import annotations

import random
from typing import Any

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.grading.scripts.run import events_of, other_losses
from dtlab.units.unit05.runs import EXACT, ROOM, SYMPTOMS, ShardedRun, largest_gather, scene, trial


def _trials(seed: int) -> list[Trial]:
    """A model of many narrow layers, and one of a few layers that are about four times as wide.

    Neither a number of elements nor a fraction of the model tells which modules are layers.
    """
    draw = random.Random(seed)
    width, depth = 2 * draw.randint(6, 9), draw.randint(22, 26)
    deep = ShardedRun(draw.randrange(10**6), width, depth, steps=2)
    return [trial(3, deep), trial(3, ShardedRun(deep.seed + 1, 64, 4))]


def _too_much_whole(case: ShardedRun, results: list[Any], run: Observation) -> str:
    for rank, result in enumerate(results):
        part = result["whole"] / (4 * case.elements)
        if part > 0.5:
            return f"while a layer computes on rank {rank}, {part:.0%} of the model is whole."
    largest, goal = largest_gather(run), 4 * max(case.layer, case.root)
    if largest > ROOM * goal:
        return (
            f"the largest all-gather has {largest:,} bytes, and a layer {4 * case.layer:,}. Which "
            "modules of this model are blocks? It has another size than in the notebook."
        )
    gathered = sum(event.bytes for event in events_of(run, "all_gather"))
    steps = min(case.steps, len(results[0]["losses"]))  # "training" reports missing steps
    if gathered < 0.9 * 2 * 4 * case.elements * steps:
        return (
            f"{gathered // steps:,} bytes are gathered in a step; the model has "
            f"{4 * case.elements:,}. Parameters that are not gathered again for backward have "
            "stayed whole since forward."
        )
    return ""


PART = script_part(
    "05/giant_gather",
    "One giant gather",
    13,
    1,
    "dtlab.units.unit05.runs_scripts.train_gather",
    scene(),
    _trials,
    (
        criterion("peak", 2, "only one layer is whole at a time", _too_much_whole),
        criterion("training", 1, "it trains as one process does", other_losses(EXACT), waits=True),
    ),
    SYMPTOMS,
    [
        "return sum(one.numel() for one in module.parameters()) >= 5000",
        "sharded = Zero3(model, blocks=is_block)",
    ],
    "Which line decides which parameters are gathered together?",
    proof=proof(
        lambda scene: {"bytes": largest_gather(scene.one)},
        "bytes",
        "Find the event of one rank called all_gather that has the most bytes.",
        {
            "bytes / ranks": "that is one rank's part of it.",
            "bytes / 4": "those are elements: a parameter has 4 bytes.",
            "4 * case.elements": "that is the whole model. Some parameters are in no layer.",
            "4 * case.layer": "that is one layer, the size that it should be.",
            "4 * case.root": "those are the parameters outside of layers.",
        },
        tolerance=0.001,
    ),
)
