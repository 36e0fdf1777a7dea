"""What can be changed in all programs of unit 05's Level III without a difference."""

from __future__ import annotations

__all__ = ["changes_alike"]

_CLEARED, _NOTED = "optimizer.zero_grad()", "losses.append(loss.item())"


def changes_alike(model: str) -> dict[str, str]:
    """Of the loop over batches, by their change; `model` is what the program calls its module."""
    loss = f"loss = F.cross_entropy({model}(images), labels)"
    return {
        f"{_CLEARED}; {loss} -> {loss}; {_CLEARED}": "neither needs the other",
        f"{_CLEARED} -> {_CLEARED}; {_CLEARED}": "what is cleared twice is clear",
        f"optimizer.step(); {_NOTED} -> {_NOTED}; optimizer.step()": "the loss is known before",
    }
