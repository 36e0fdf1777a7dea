"""00/scenarios: choose a strategy for three jobs, and name the fact that decides each choice."""

from __future__ import annotations

from random import Random
from typing import Any

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked
from dtlab.units.unit00.strategies import is_clear, questions_on, words

_CARD, _LARGE_CARD = 80, 141  # GB


def _draw(draw: Random) -> Values:
    """Draw GPUs, activations and deadlines for three models of fixed size.

    No model has the same strategy for all learners.
    """
    week = {"deadline": draw.choice((12, 24, 36, 48, 200)), "gpus": draw.choice((4, 8, 16))}
    large = {"gpus": draw.choice((8, 16, 32, 64)), "activations": draw.choice((2, 9, 60))}
    large["card"] = draw.choice((_CARD, _LARGE_CARD))
    small = {"gpus": draw.choice((4, 8)), "activations": draw.choice((2, 4, 6, 120))}
    small["hours"] = draw.choice((2, 100))
    jobs: dict[str, dict[str, Any]] = {
        "resnet": {"billions": 0.025, "activations": 11.6, "hours": 168, "card": _CARD} | week,
        "transformer": {"billions": 40, "hours": 20_000, "deadline": 720} | large,
        "small": {"billions": 0.2, "deadline": 24, "card": _CARD} | small,
    }
    return jobs if all(map(is_clear, jobs.values())) else _draw(draw)


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("resnet", f"a ResNet that takes 12 GB in all: {words(given['resnet'])}"),
        ("transformer", f"a transformer: {words(given['transformer'])}"),
        ("small", f"a small model: {words(given['small'])}"),
    ]


_THREE = asked(
    _draw,
    _rows,
    *questions_on("resnet", "the ResNet"),
    *questions_on("transformer", "the transformer"),
    *questions_on("small", "the small model"),
)

PART = Part("00/scenarios", 1, "Three jobs", 5, 1, _THREE)
