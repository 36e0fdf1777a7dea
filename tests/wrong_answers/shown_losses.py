"""Changes to a training script that no check tells, since only the losses that it returns differ.

They are there to be looked at, and nothing is graded of them.
"""

from __future__ import annotations

__all__ = ["changes_of_losses"]

_BECAUSE = "the losses are returned to be looked at"
_ADD, _KEEP = "total += loss.item()", "losses.append(total / len(loader))"


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
    return dict.fromkeys([*common, *own], _BECAUSE)
