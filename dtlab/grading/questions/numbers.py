"""A question that asks for a number: what is right, and what people write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtlab.grading.questions.answers import Mistake, Number, Question, Values

__all__ = ["Value", "number"]

Value = Callable[[Values], Any]


def number(
    name: str,
    prompt: str,
    right: Value,
    hint: str,
    *mistakes: tuple[Value, str],
    points: float = 1,
    unit: str = "",
    exact: bool = False,
) -> Question:
    """A question. Each mistake is the value that it leads to, and what is said of it.

    Numbers count to 1 %; where `exact`, none but the very same does.
    """
    known = tuple(Mistake(wrong, why) for wrong, why in mistakes)
    tolerance = 0 if exact else 0.01
    return Question(
        name, points, prompt, Number(right, known, hint, unit=unit, tolerance=tolerance)
    )
