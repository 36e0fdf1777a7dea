"""What a mended program of Level III of unit 06 has to do on ranks, and what is said of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.trials import Observation
from dtlab.grading.checking.unseen import unseen_collectives
from dtlab.units.unit06.runs_cases import SharedRun, cut_dim, events_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "copies_differ", "not_shared", "other_bytes", "other_start", "other_training",
]  # fmt: skip

_NEAR, _APART = 1e-4, 1e-6  # of a loss or parameter; of copies, which get the same bits
_MORE, _LESS = 1.05, 0.95
_PASSES = {"all_reduce": 2.0, "broadcast": 2.0}  # times its bytes on a ring, where it is not once
_FORM = "what the ranks return, or leave in the model, is not what is asked for."

_TOO_MANY = "Which of them does the next product need?"
_TOO_FEW = (
    "Nothing is too many here, and something is missing: what does a rank have a part of a sum "
    "of, in forward or in backward, where the whole is needed?"
)

# What a mended run has to do --------------------------------------------------------------------


def other_start(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """The first loss is not that of one process."""
    wanted = case.one_process[0][0]
    for rank, seen in enumerate(results):
        got = seen["losses"][0]
        if not abs(got - wanted) <= _NEAR * wanted:
            return (
                f"the first loss of rank {rank} is {got:.5f}, and in one process {wanted:.5f}. No "
                "step was made yet: what do the ranks add up that is there once?"
            )
    return ""


def copies_differ(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """Ranks do not have the same of what all of them have whole."""
    begin = results[0]["after"]
    for name, tensor in begin.items():
        for rank, seen in enumerate(results):
            if cut_dim(name) is None and not _alike(seen["after"][name], tensor, _APART):
                far = float((seen["after"][name] - tensor).abs().max())
                return (
                    f"rank 0 and rank {rank} do not have the same {name} in the end: they are "
                    f"{far:.2g} apart. Which part of its gradient does each of them find?"
                )
    return ""


def not_shared(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """A rank has more of a layer than its part."""
    for name, start in case.state.items():
        dim = cut_dim(name)
        parts = start.tensor_split(len(results), dim) if dim is not None else ()
        for rank, part in enumerate(parts):
            shape = tuple(results[rank]["after"][name].shape)
            if shape != tuple(part.shape):
                return (
                    f"{name} has shape {shape} on rank {rank}; its part is {tuple(part.shape)}. "
                    "The ranks go on sharing the layers, as share_out cuts them."
                )
    return ""


def other_bytes(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """Ranks send each other more than two all-reduces for each layer and step, or less."""
    ranks, steps = len(results), case.steps
    goal = 2 * 2 * case.depth * case.activation * steps
    for rank in range(ranks):
        events = events_of(one, rank=rank)
        sent = sum(_PASSES.get(event.name, 1.0) * event.bytes for event in events)
        if not goal * _LESS <= sent <= goal * _MORE:
            return (
                f"what rank {rank} calls in a step takes {sent / goal:.2f} times what two "
                f"all-reduces of {case.activation:,} bytes for each layer take: "
                f"{_called(events, steps)}. {_TOO_FEW if sent < goal else _TOO_MANY}"
            )
    return unseen_collectives(one)


def _called(events: Sequence[Any], steps: int) -> str:
    counts: dict[str, int] = {}
    for event in events:
        counts[event.name] = counts.get(event.name, 0) + event.bytes
    said = (f"{count // steps:,} bytes in {name}" for name, count in counts.items())
    return " and ".join(said) or "nothing is sent"


def other_training(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """Losses, or parameters in the end, are not those of one process."""
    losses, after = case.one_process
    for rank, seen in enumerate(results):
        if len(seen["losses"]) != len(losses):
            return f"rank {rank} returns {len(seen['losses'])} losses; there are {len(losses)}."
        for step, (got, wanted) in enumerate(zip(seen["losses"], losses, strict=True)):
            if not abs(got - wanted) <= _NEAR * wanted:
                return (
                    f"rank {rank}, step {step}: the loss is {got:.5f}, and in one process "
                    f"{wanted:.5f}. Only what is broken has to change."
                )
        for name, whole in after.items():
            dim = cut_dim(name)
            part = whole if dim is None else whole.tensor_split(len(results), dim)[rank]
            if not _alike(seen["after"][name], part, _NEAR):
                return (
                    f"{name} of rank {rank} is not what one process ends with. Its gradient is "
                    "not the whole one, or is there more than once."
                )
    return ""


def _alike(one: Tensor, other: Tensor, near: float) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one - other).abs().max() <= near * other.abs().max().clamp(min=1e-2)).item())
