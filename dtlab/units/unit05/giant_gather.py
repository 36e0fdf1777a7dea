"""05/giant_gather: one giant gather."""

from __future__ import annotations

import random
from typing import Any

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.grading.scripts.run import events_of, other_losses
from dtlab.units.unit05.runs import EXACT, ROOM, SYMPTOMS, ShardedRun, largest_gather, scene, trial


def _trials(seed: int) -> list[Trial]:
    """Many narrow layers, a small part of the model each; and a few that are twice as wide.

    So neither a number of elements nor a part of the model says which modules are layers.
    """
    draw = random.Random(seed)
    width, depth = 2 * draw.randint(6, 9), draw.randint(22, 26)
    deep = ShardedRun(draw.randrange(10**6), width, depth, steps=2)
    return [trial(3, deep), trial(3, ShardedRun(deep.seed + 1, 64, 4))]


def _too_much_whole(case: ShardedRun, results: list[Any], one: Observation) -> str:
    for rank, seen in enumerate(results):
        part = seen["whole"] / (4 * case.elements)
        if part > 0.5:
            return f"while a layer computes on rank {rank}, {part:.0%} of the model is whole."
    largest, goal = largest_gather(one), 4 * max(case.layer, case.root)
    if largest > ROOM * goal:
        return (
            f"the largest all-gather has {largest:,} bytes, and a layer {4 * case.layer:,}. Which "
            "modules of this model are blocks? It is not the notebook's size."
        )
    gathered = sum(event.bytes for event in events_of(one, "all_gather"))
    steps = min(case.steps, len(results[0]["losses"]))  # too few are told elsewhere
    if gathered < 0.9 * 2 * 4 * case.elements * steps:
        return (
            f"{gathered // steps:,} bytes are gathered in a step, of {4 * case.elements:,}. "
            "What is not gathered for backward stayed whole after forward."
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
        criterion("peak", 2, "a layer at a time", _too_much_whole),
        criterion("training", 1, "as one process", other_losses(EXACT), waits=True),
    ),
    SYMPTOMS,
    [
        "return sum(one.numel() for one in module.parameters()) >= 5000",
        "sharded = Zero3(model, blocks=is_block)",
    ],
    "Who decides what is gathered together?",
    proof=proof(
        lambda scene: {"bytes": largest_gather(scene.one)},
        "bytes",
        "Look through the events called all_gather, of one rank: which has the most bytes?",
        {
            "bytes / ranks": "that is what one rank has of it.",
            "bytes / 4": "those are elements: a parameter has 4 bytes.",
            "4 * case.elements": "that is the whole model: what is outside its layers?",
            "4 * case.layer": "that is one layer, as it should be.",
            "4 * case.root": "that is what is in no layer.",
        },
        tolerance=0.001,
    ),
)
