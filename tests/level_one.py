"""The questions of a Level I part to a learner, and the right answers of its check."""

from __future__ import annotations

from typing import Any

from dtlab.checks import find_part
from dtlab.checks.questions.answers import Questions

__all__ = ["drawn_for"]


def drawn_for(name: str, learner: str) -> tuple[Any, dict[str, Any]]:
    """What a learner is given in a part, and the right answers by the names of the questions."""
    part = find_part(name)
    assert isinstance(part.check, Questions)
    given = part.check.given(part.symbol, learner)
    named = part.check.named(given)
    right = {}
    for question in part.check.questions:
        answer: Any = question.answer
        expected = answer.expected if hasattr(answer, "expected") else answer.right
        right[question.name] = expected(named) if callable(expected) else expected
    return given, right
