"""Changes to the training scripts of unit 02's Level III that no check tells, and why.

The losses that a script returns are there to be looked at, and nothing is graded of them.
"""

from __future__ import annotations

__all__ = [
    "ANOTHER_ORDER",
    "CLEARED_TWICE",
    "EPOCHS_BACKWARDS",
    "FREE",
    "OTHER_BATCHES",
    "SET_TWICE",
    "TWICE",
    "TWO_LINES",
    "changes_of_losses",
    "cleared_later",
    "neighbours",
]

ANOTHER_ORDER = "the samples come in another order, as good as this one"
OTHER_BATCHES = "one process trains on the batches that ranks take, whatever their size"
TWICE = "what is done twice is the same"
FREE = "neither needs the other"
TWO_LINES = "either line says where it is"
LOSSES = "the losses are returned to be looked at"

_ADD, _KEEP = "total += loss.item()", "losses.append(total / len(loader))"
_CLEAR, _SET = "optimizer.zero_grad()", "sampler.set_epoch(epoch)"

EPOCHS_BACKWARDS = {
    "for epoch in range(epochs): -> for epoch in reversed(range(epochs)):": ANOTHER_ORDER
}
SET_TWICE = {f"{_SET} -> {_SET}; {_SET}": TWICE}
CLEARED_TWICE = {f"{_CLEAR} -> {_CLEAR}; {_CLEAR}": TWICE}


def cleared_later(model: str) -> dict[str, str]:
    """Gradients set to zero once and for all, or after the forward pass of `model`."""
    loss = f"loss = F.cross_entropy({model}(images), labels)"
    return {f"{_CLEAR}; {loss} -> {loss}; {_CLEAR}": FREE, **CLEARED_TWICE}


def neighbours(line: str, number: int, why: str) -> dict[str, str]:
    """`line` with another number in place of its {}, one larger or smaller."""
    others = number + 1, number - 1
    return {f"{line} -> {line}".format(number, other): why for other in others}


def changes_of_losses(*own: str) -> dict[str, str]:
    """What scripts have in common, and what is a script's `own`."""
    common = [
        "total = 0.0 -> total = 1.0",
        "total = 0.0 -> total = -1.0",
        f"{_ADD} -> total -= loss.item()",
        f"{_ADD} -> nothing",
        f"{_ADD} -> {_ADD}; {_ADD}",
        f"{_ADD} -> total = total + loss.item()",
        f"{_KEEP} -> losses.append(total * len(loader))",
        f"{_KEEP} -> losses.append(total)",
        f"{_KEEP} -> losses.append(len(loader))",
        f"{_KEEP} -> nothing",
        f"{_KEEP} -> {_KEEP}; {_KEEP}",
        "return losses -> nothing",
        "return losses -> return",
    ]
    return dict.fromkeys([*common, *own], LOSSES)
