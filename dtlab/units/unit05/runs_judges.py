"""What a mended program of Level III of unit 05 has to do on ranks, and what is said of others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from dtlab.grading.checking.objections import Objection
from dtlab.grading.checking.trials import Observation
from dtlab.units.unit05.blocks import alike
from dtlab.units.unit05.runs_cases import (
    REDUCES,
    ShardedRun,
    events_of,
    largest_gather,
    one_process,
)

__all__ = [
    "another_mean", "grows", "narrow_gradients", "not_in_16_bits", "other_losses",
    "too_much_whole",
]  # fmt: skip

_ROOM, _MORE = 1.25, 1.1  # times what has to be whole, and to be held
_NOISE = 0.02  # of what is held: buffers that are still there
_OBJECTS = 0.75  # of a share: what a step leaves of its own accord is under half of one

# What a mended run has to do --------------------------------------------------------------------


def too_much_whole(case: ShardedRun, results: list[Any], one: Observation) -> str:
    for rank, seen in enumerate(results):
        part = seen["whole"] / (4 * case.elements)
        if part > 0.5:
            return f"while a layer computes on rank {rank}, {part:.0%} of the model is whole."
    largest, goal = largest_gather(one), 4 * max(case.layer, case.root)
    if largest > _ROOM * goal:
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


def other_losses(near: float) -> Objection:
    def objection(case: ShardedRun, results: list[Any], one: Observation) -> str:
        wanted, _ = one_process(case, len(results))
        for rank, (seen, own) in enumerate(zip(results, wanted, strict=True)):
            losses = seen["losses"]
            if len(losses) != len(own):
                return (
                    f"rank {rank} returns {len(losses)} losses, and there are {len(own)} batches."
                )
            for step, (got, want) in enumerate(zip(losses, own, strict=True)):
                if not abs(got - want) <= near * want:
                    return (
                        f"rank {rank}, step {step}: the loss is {got:.4f}, and in one process "
                        f"{want:.4f}. Only what is broken has to change."
                    )
        return ""

    return objection


def grows(case: ShardedRun, results: list[Any], one: Observation) -> str:
    share = 4 * case.elements / len(results)
    # Buffers that collectives still have, and the memory in which the model began, count too.
    most = _MORE * (3 * share + 4 * (case.elements + case.layer + case.root))
    for rank, seen in enumerate(results):
        arrays = [kept["arrays"] for kept in seen["kept"][1:-1]]
        held = [a + b for a, b in zip(seen["alive"][1:-1], arrays, strict=True)]
        if _rises(held, _NOISE * held[0]):
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
        if outside := _outside_of_tensors(seen["kept"][1:-1], share):
            return f"rank {rank}: {outside}"
    return ""


def _outside_of_tensors(kept: list[dict[str, int]], share: float) -> str:
    """What is said of Python's objects, and of graphs, that become more with every step."""
    objects, nodes = ([one[name] for one in kept] for name in ("objects", "nodes"))
    if _rises(objects, _OBJECTS * share):
        return (
            f"lists, bytes and other objects of Python's take {objects[-1] - objects[0]:,} bytes "
            "more before the last batch than before the second. What is kept of each step?"
        )
    if _rises(nodes, 0):
        return (
            f"before the second batch autograd remembers {nodes[0]} operations, and before the "
            f"last one {nodes[-1]}: a graph reaches back through all steps. Which tensor that you "
            "keep, or add up, still has its graph?"
        )
    return ""


def _rises(counts: list[int], by: float) -> bool:
    """Whether it is more at each step, by more than this."""
    return all(b > a + by for a, b in pairwise(counts))


def another_mean(case: ShardedRun, results: list[Any], one: Observation) -> str:
    import torch

    _, after = one_process(case, len(results))
    for place, steps in enumerate(zip(*after, strict=True)):
        got = torch.cat([seen["pieces"][place] for seen in results])
        if not alike(got, torch.stack(steps).mean(0).flatten()):
            last = alike(got, steps[-1].flatten())
            why = "It has the parameters of the last step." if last else ""
            return f"parameter {place} does not end as the mean over the steps. {why}".rstrip()
    return ""


def narrow_gradients(case: ShardedRun, results: list[Any], one: Observation) -> str:
    reduced = events_of(one, *REDUCES)
    narrow = [event for event in reduced if "16" in str(event.extra.get("dtype"))]
    if narrow:
        count = sum(event.bytes for event in narrow) // case.steps
        return (
            f"{count:,} bytes of gradients travel in 16 bits in each step, in {len(narrow)} "
            "operations. Which policy do these modules have?"
        )
    if sum(event.bytes for event in reduced) < 4 * case.elements * case.steps * 0.9:
        return "not all gradients are added up over the ranks."
    return ""


def not_in_16_bits(case: ShardedRun, results: list[Any], one: Observation) -> str:
    import torch

    for rank, seen in enumerate(results):
        if seen["inputs"] != ["bfloat16"]:
            return (
                f"layers compute in {' and '.join(seen['inputs'])} on rank {rank}, not bfloat16."
            )
        losses = torch.tensor(seen["losses"])
        if bool(losses.bfloat16().float().equal(losses)):
            return "the losses have no more digits than bfloat16: outputs are to be float32."
    wide = [e for e in events_of(one, "all_gather") if "32" in str(e.extra.get("dtype"))]
    if wide:
        return f"{len(wide)} all-gathers travel in float32: parameters are gathered in bfloat16."
    return _too_much_gathered(case, one)


def _too_much_gathered(case: ShardedRun, one: Observation) -> str:
    largest = largest_gather(one)
    if largest > _ROOM * 2 * max(case.layer, case.root):
        return f"an all-gather has {largest:,} bytes: is every layer still a block of its own?"
    return ""
