"""05/run_c: fix a script that needs more memory with every step."""

from __future__ import annotations

from typing import Any

from dtlab.checks.comparison import difference
from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation
from dtlab.checks.programs.run import other_losses
from dtlab.checks.programs.training import Scene, proof, script_part
from dtlab.predict.units import counted
from dtlab.units.unit05.runs import EXACT, NOISE, ShardedRun, rises, scene, trials_of

_MOST = 4.2  # shares: a correct program holds 3, or 4 with a sum in float64, and some buffers
_OBJECTS = 0.75  # of a share; in a correct step Python objects grow by less than half a share


def _grows(case: ShardedRun, results: list[Any], run: Observation) -> str:
    share = 4 * case.elements / len(results)
    most = _MOST * share
    for rank, result in enumerate(results):
        arrays, objects, nodes = (
            [kept[name] for kept in result["kept"][1:]] for name in ("arrays", "objects", "nodes")
        )
        held = [a + b for a, b in zip(result["alive"][1:], arrays, strict=True)]
        if rises(held, NOISE * held[0]):
            of_numpy = arrays[-1] - arrays[0]
            which = f", {of_numpy:,} of them in NumPy's arrays" if of_numpy > 0 else ""
            return (
                f"rank {rank} holds {held[-1] - held[0]:,} bytes more before the last batch than "
                f"before the second{which}. What does your code keep of each step?"
            )
        if max(held) > most:
            return (
                f"rank {rank} holds {max(held):,} bytes between steps. Its pieces, their "
                f"gradients and the mean take {3 * share:,.0f}, plus buffers. Is the mean whole?"
            )
        if rises(nodes, 0):
            return (
                f"rank {rank}: autograd's graph has {counted(nodes[0], 'operation')} before the "
                f"second batch "
                f"and {nodes[-1]} before the last: the graph reaches back through all steps. "
                "Which tensor that you keep or add up still has its graph?"
            )
        if rises(objects, _OBJECTS * share):
            return (
                f"rank {rank}: lists, bytes and other Python objects take "
                f"{objects[-1] - objects[0]:,} bytes more before the last batch than before the "
                "second. What does your code keep of each step?"
            )
    return ""


def _another_mean(case: ShardedRun, results: list[Any], run: Observation) -> str:
    import torch

    _, after = case.one_process(len(results))
    for name in after[0]:
        got = torch.cat([result["after"][name] for result in results])
        steps = torch.stack([step[name].flatten() for step in after])
        known = {"is that of the last step": steps[-1]}
        hint = "At the end it should be the mean over the steps."
        if wrong := difference(got, steps.mean(0), known, hint=hint):
            return f"{name} " + wrong
    return ""


def _measured(scene: Scene) -> dict[str, float]:
    held = scene.results[0]["alive"]
    return {"bytes": (held[-1] - held[1]) / (scene.case.steps - 2)}


PART = script_part(
    "05/run_c",
    "Run C",
    13,
    2,
    "dtlab.units.unit05.runs_scripts.train_c",
    scene(steps=5),
    trials_of(3, half=(12, 15), steps=4, kept=True),
    (
        rule("memory", 2, "a rank holds no more than its shares", by=_grows),
        rule(
            "training",
            2,
            "it ends with the mean over the steps",
            by=(other_losses(EXACT), _another_mean),
        ),
    ),
    ["after.append(sharded.full_state_dict())"],
    "Which line makes full parameters, and which variable still holds them in the next step?",
    proof=proof(
        _measured,
        "bytes",
        "Compare the bytes that a rank holds when a batch is drawn with the bytes at the batch "
        "before, from the second batch on.",
        {
            "bytes / ranks": "that would be a rank's own pieces.",
            "bytes * case.steps": "that is all steps together.",
            "bytes / 4": "those are elements: a parameter has 4 bytes.",
            "bytes / 2": "those would be the bytes in 16 bits.",
        },
        tolerance=0.02,
    ),
)
