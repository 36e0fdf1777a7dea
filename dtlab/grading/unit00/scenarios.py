"""The values of 00/scenarios and 00/five_scenarios: which strategy, and which fact drove it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from dtlab.grading.questions.answers import Questions, Values
from dtlab.grading.unit00.strategies import LEAVES, draw_job, is_clear, questions_on, words

__all__ = ["FIVE_SCENARIOS", "SCENARIOS"]

_CARD, _LARGE_CARD = 80, 141  # GB

# Three jobs -------------------------------------------------------------------------------------


def _draw(draw: Random) -> Values:
    """The three that everybody has, on other GPUs and with other deadlines."""
    week = {"deadline": draw.choice((12, 24, 36, 48)), "gpus": draw.choice((4, 8, 16))}
    large = {"gpus": draw.choice((8, 16, 32, 64)), "activations": draw.choice((2, 5, 9))}
    large["card"] = draw.choice((_CARD, _LARGE_CARD))
    small = {"gpus": draw.choice((4, 8)), "activations": draw.choice((2, 4, 6))}
    jobs: dict[str, dict[str, Any]] = {
        "resnet": {"billions": 0.025, "activations": 11.6, "hours": 168, "card": _CARD} | week,
        "transformer": {"billions": 40, "hours": 20_000, "deadline": 720} | large,
        "small": {"billions": 0.2, "hours": 2, "deadline": 24, "card": _CARD} | small,
    }
    return jobs if all(map(is_clear, jobs.values())) else _draw(draw)


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        (
            "resnet",
            f"a ResNet that takes 12 GB in all: {words(given['resnet'])}",
        ),
        ("transformer", f"a transformer: {words(given['transformer'])}"),
        ("small", f"a small model: {words(given['small'])}"),
    ]


def _job(name: str) -> Callable[[Values], Values]:
    return lambda given: given[name]


SCENARIOS = Questions(
    _draw,
    _rows,
    (
        *questions_on("resnet", "the ResNet", _job("resnet")),
        *questions_on("transformer", "the transformer", _job("transformer")),
        *questions_on("small", "the small model", _job("small")),
    ),
)

# Five more --------------------------------------------------------------------------------------


def _draw_five(draw: Random) -> Values:
    leaves = draw.sample(list(LEAVES), 5)
    return {name: draw_job(draw, leaf) for name, leaf in zip("abcde", leaves, strict=True)}


def _five_rows(given: Values) -> list[tuple[str, str]]:
    return [(f"job {name}", words(job)) for name, job in given.items()]


def _five() -> Any:
    return tuple(one for name in "abcde" for one in questions_on(name, f"job {name}", _job(name)))


FIVE_SCENARIOS = Questions(_draw_five, _five_rows, _five())
