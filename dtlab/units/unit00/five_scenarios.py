"""00/five_scenarios: which strategy, for five jobs of the learner's own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions, Values
from dtlab.units.unit00.strategies import LEAVES, draw_job, questions_on, words

__all__ = ["PART"]


def _job(name: str) -> Callable[[Values], Values]:
    return lambda given: given[name]


def _draw_five(draw: Random) -> Values:
    leaves = draw.sample(list(LEAVES), 5)
    return {name: draw_job(draw, leaf) for name, leaf in zip("abcde", leaves, strict=True)}


def _five_rows(given: Values) -> list[tuple[str, str]]:
    return [(f"job {name}", words(job)) for name, job in given.items()]


def _five() -> Any:
    return tuple(one for name in "abcde" for one in questions_on(name, f"job {name}", _job(name)))


FIVE_SCENARIOS = Questions(_draw_five, _five_rows, _five())

PART = Part("00/five_scenarios", 1, "Five jobs of your own", 10, 3, FIVE_SCENARIOS)
