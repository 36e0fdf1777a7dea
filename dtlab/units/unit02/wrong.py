"""Says what is wrong with a gradient, as far as the numbers themselves tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dtlab.grading.checking.gradients import close

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OWN_GRADIENT", "wrong_gradient"]

OWN_GRADIENT = "this is the rank's own gradient"


def wrong_gradient(
    got: Tensor | None, own: Mapping[int, Tensor | None], members: Sequence[int], rank: int
) -> str:
    """What is wrong with `got` of this rank, which should be the mean of what `members` have.

    `own` is every rank's own gradient, None where there is none. Empty if nothing is wrong.
    """
    theirs = [one for member, one in own.items() if member in members and one is not None]
    if not theirs:
        return "" if got is None else "had no gradient, and should have none afterwards."
    if got is None:
        return "has no gradient any more."
    total, count = sum(theirs[1:], theirs[0]), len(members)
    if got.shape != total.shape or got.dtype != total.dtype:
        return f"the gradient is {tuple(got.shape)} of {got.dtype} now."
    if close(got, total / count):
        return ""
    everyone = [one for one in own.values() if one is not None]
    for value, what in (
        (own[rank], f"{OWN_GRADIENT}: nobody else's is in it."),
        (total, "this is the sum over the ranks, not the mean."),
        (total / count**2, "this is divided twice by the number of ranks."),
        (theirs[0], f"this is rank {members[0]}'s own gradient, not the mean."),
        (sum(everyone[1:], everyone[0]) / len(everyone), "this is the mean over all ranks."),
    ):
        if value is not None and close(got, value):
            return what
    worst = float((got - total / count).abs().max())
    return f"this is off the mean over the ranks by up to {worst:.2g}."
