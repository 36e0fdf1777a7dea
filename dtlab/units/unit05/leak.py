"""05/leak: more with every step."""

from __future__ import annotations

from typing import Any

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.grading.scripts.run import other_losses
from dtlab.grading.scripts.symptoms import Scene
from dtlab.units.unit05.blocks import alike
from dtlab.units.unit05.runs import EXACT, NOISE, SYMPTOMS, ShardedRun, rises, scene, trials_of

_MORE = 1.1  # times what has to be held
_OBJECTS = 0.75  # of a share: what a step leaves of its own accord is under half of one


def _grows(case: ShardedRun, results: list[Any], one: Observation) -> str:
    share = 4 * case.elements / len(results)
    # Buffers that collectives still have, and the memory in which the model began, count too.
    most = _MORE * (3 * share + 4 * (case.elements + case.layer + case.root))
    for rank, seen in enumerate(results):
        arrays, objects, nodes = (
            [kept[name] for kept in seen["kept"][1:]] for name in ("arrays", "objects", "nodes")
        )
        held = [a + b for a, b in zip(seen["alive"][1:], arrays, strict=True)]
        if rises(held, NOISE * held[0]):
            of_numpy = arrays[-1] - arrays[0]
            which = f", {of_numpy:,} of them in NumPy's arrays" if of_numpy > 0 else ""
            return (
                f"rank {rank} holds {held[-1] - held[0]:,} bytes more before the last batch than "
                f"before the second{which}. What is kept of each step?"
            )
        if max(held) > most:
            return (
                f"rank {rank} holds {max(held):,} bytes between steps. Its pieces, their "
                f"gradients and mean are {3 * share:,.0f}, beside buffers. Is the mean whole?"
            )
        if rises(nodes, 0):
            return (
                f"rank {rank}: before the second batch autograd remembers {nodes[0]} operations, "
                f"and before the last one {nodes[-1]}: a graph reaches back through all steps. "
                "Which tensor that you keep, or add up, still has its graph?"
            )
        if rises(objects, _OBJECTS * share):
            return (
                f"rank {rank}: lists, bytes and other objects of Python's take "
                f"{objects[-1] - objects[0]:,} bytes more before the last batch than before the "
                "second. What is kept of each step?"
            )
    return ""


def _another_mean(case: ShardedRun, results: list[Any], one: Observation) -> str:
    import torch

    _, after = case.one_process(len(results))
    for name in after[0]:
        got = torch.cat([seen["after"][name] for seen in results])
        steps = torch.stack([step[name].flatten() for step in after])
        if not alike(got, steps.mean(0)):
            last = "It has the parameters of the last step." if alike(got, steps[-1]) else ""
            return f"{name} does not end as the mean over the steps. {last}".rstrip()
    return ""


def _measured(scene: Scene) -> dict[str, float]:
    held = scene.results[0]["alive"]
    return {"bytes": (held[-1] - held[1]) / (scene.case.steps - 2)}


PART = script_part(
    "05/leak",
    "More with every step",
    13,
    2,
    "dtlab.units.unit05.runs_scripts.train_leak",
    scene(steps=5),
    trials_of(3, half=(12, 15), steps=4, kept=True),
    (
        criterion("memory", 2, "held is what a share takes", _grows),
        criterion(
            "training",
            1,
            "it ends with the mean over the steps",
            other_losses(EXACT),
            _another_mean,
            waits=True,
        ),
    ),
    SYMPTOMS,
    ["after.append(sharded.full_state_dict())"],
    "Which line makes something whole, and who still has it in the next step?",
    proof=proof(
        _measured,
        "bytes",
        "Compare what a rank holds when a batch is drawn with what it held at the batch before, "
        "from the second one on.",
        {
            "bytes / ranks": "that would be a rank's own pieces.",
            "bytes * case.steps": "that is all steps together.",
            "bytes / 4": "those are elements: a parameter has 4 bytes.",
            "bytes / 2": "that would be so in 16 bits.",
        },
        tolerance=0.02,
    ),
)
