"""00/five_scenarios: choose a strategy for five jobs that are drawn from the learner's id."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked
from dtlab.units.unit00.strategies import LEAVES, draw_job, questions_on, words


def _draw(draw: Random) -> Values:
    leaves = draw.sample(list(LEAVES), 5)
    return {name: draw_job(draw, leaf) for name, leaf in zip("abcde", leaves, strict=True)}


_FIVE = asked(
    _draw,
    lambda given: [(f"job {name}", words(job)) for name, job in given.items()],
    *(question for name in "abcde" for question in questions_on(name, f"job {name}")),
)

PART = Part("00/five_scenarios", 1, "Five more jobs", 10, 3, _FIVE)
