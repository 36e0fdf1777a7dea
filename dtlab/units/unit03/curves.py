"""The curve that is asked for, and what is wrong with another one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Curve", "wrong_decay", "wrong_end", "wrong_warmup"]

_EXACT = 1e-6


@dataclass(frozen=True)
class Curve:
    """What part of the base rate each optimizer step has, counted from 0.

        1     ┤      ╭──╮
              │    ╱     ╲        step 0 has `start`, step `warmup` is the first with all of it,
        start ┤  ╱         ╲      and from step `total` on it is zero
        0     ┤              ╲____
              └──┬────┬────────┬─
                 0  warmup   total
    """

    warmup: int
    total: int
    start: float

    def __str__(self) -> str:
        return f"{self.warmup} of {self.total} steps warm-up from {self.start:g}"

    def factor(self, step: float) -> float:
        """At a step, or between two."""
        if step < self.warmup:
            return self.start + (1 - self.start) * step / self.warmup
        if step >= self.total:
            return 0.0
        return _cosine((step - self.warmup) / (self.total - self.warmup))


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def _wrong_at(curve: Curve, seen: Sequence[float], steps: range) -> tuple[int, str] | None:
    """The first of these steps that has another factor, and that in words."""
    for step in steps:
        wanted = curve.factor(step)
        if not math.isclose(seen[step], wanted, rel_tol=_EXACT, abs_tol=_EXACT):
            return step, (
                f"step {step}: the rate is {seen[step]:.4g} times the base rate, where "
                f"{wanted:.4g} times is wanted."
            )
    return None


def _alike(seen: Sequence[float], wanted: Sequence[float]) -> bool:
    return len(seen) == len(wanted) and all(
        math.isclose(one, other, rel_tol=_EXACT, abs_tol=_EXACT)
        for one, other in zip(seen, wanted, strict=True)
    )


def wrong_warmup(curve: Curve, seen: Sequence[float]) -> str:
    """What is wrong before step `warmup`, and what to look at; empty if nothing is."""
    steps = range(curve.warmup)
    wrong = _wrong_at(curve, seen, steps)
    if wrong is None:
        return ""
    step, words = wrong
    own = seen[: curve.warmup]
    compounded = [math.prod(curve.factor(k) for k in range(step + 1)) for step in steps]
    if _alike(own, [curve.factor(step + 1) for step in steps]):
        advice = (
            "This comes one step too early: step 0 has start_factor, and step warmup_steps is "
            "the first at the full rate."
        )
    elif _alike(own, [curve.factor(2 * step) for step in steps]):
        advice = "It goes on two steps at a time: only scheduler.step() should move it."
    elif _alike(own, compounded):
        advice = (
            "This is the factor times the rate before, and not times the base rate, which "
            "self.base_lrs has."
        )
    elif step == 0:
        advice = "Already the first step has the rate times start_factor."
    else:
        advice = "It goes up in a straight line from start_factor to 1, where warmup_steps ends."
    return f"{words}\n{advice}"


def wrong_decay(curve: Curve, seen: Sequence[float]) -> str:
    """What is wrong from step `warmup` on, before step `total`; empty if nothing is."""
    steps = range(curve.warmup, curve.total)
    wrong = _wrong_at(curve, seen, steps)
    if wrong is None:
        return ""
    _, words = wrong
    own, left = seen[curve.warmup : curve.total], curve.total - curve.warmup
    if _alike(own, [_cosine(step / curve.total) for step in steps]):
        advice = "This cosine begins at step 0: let it begin where the warm-up ends."
    elif _alike(own, [_cosine(step / curve.total) for step in range(left)]):
        advice = (
            "This cosine is as long as total_steps: after the warm-up only total_steps - "
            "warmup_steps are left."
        )
    elif _alike(own, [_cosine(step / (left - 1)) for step in range(left)]):
        advice = "Zero comes one step too early: step total_steps is the first that has it."
    elif _alike(own, [_cosine((step + 1) / left) for step in range(left)]):
        advice = "This is one step too early: step warmup_steps still has the full rate."
    else:
        advice = "It is half a cosine, from the full rate to zero: (1 + cos(pi x progress)) / 2."
    return f"{words}\n{advice}"


def wrong_end(curve: Curve, seen: Sequence[float]) -> str:
    """What is wrong from step `total` on; empty if nothing is."""
    wrong = _wrong_at(curve, seen, range(curve.total, len(seen)))
    if wrong is None:
        return ""
    step, words = wrong
    advice = (
        "After total_steps it goes up again: what does your formula say of progress above 1?"
        if step > curve.total
        else "From step total_steps on the rate is zero."
    )
    return f"{words}\n{advice}"
