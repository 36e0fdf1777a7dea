"""What questions with drawn values have in common, for many learners.

`tests/known_answers/formulas.py` computes their wrong answers; the solutions answer them rightly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dtlab.checks import Part, known_parts
from dtlab.checks.questions.answers import Choice, Question, Questions, Values
from dtlab.checks.questions.kinds import _value
from tests.known_answers import answers_of
from tests.known_answers.formulas import wrong_values

PARTS = [part for part in known_parts() if isinstance(part.check, Questions)]
OWN_KIND = {"05/plans", "06/shard_plan", "09/three_times_job"}  # judged by a plan or by runs
LEARNERS = [f"learner{number}" for number in range(12)]
MANY = 100  # learners
each_drawn = pytest.mark.parametrize(
    "part", [part for part in PARTS if part.name not in OWN_KIND], ids=lambda part: part.name
)


def check_of(part: Part) -> Questions:
    assert isinstance(part.check, Questions)
    return part.check


def asked(part: Part, learners: list[str]) -> Iterator[tuple[Question, Values, Any]]:
    """Each question with the values of each learner, and what the solution answers."""
    known = answers_of(part)
    assert known is not None
    for learner in learners:
        given = check_of(part).given(part.symbol, learner)
        answers = known.right[0](given)
        for question in check_of(part).questions:
            yield question, check_of(part).named(given), answers[question.name]


@each_drawn
def test_a_wrong_answer_gets_its_message_and_the_solution_its_points(part: Part) -> None:
    for question, values, right in asked(part, LEARNERS):
        assert question.settle(right, values).status == "ok"
        for name, value, piece in wrong_values(question, values):
            found = question.settle(value, values)
            assert found.status == "lost", (name, value, found)
            assert piece in found.message, (name, value, found)


@each_drawn
def test_no_message_contains_the_right_number(part: Part) -> None:
    """What is said after the learner's own answer; one number may be in a message by chance."""
    given_away: dict[tuple[str, str], set[float]] = {}
    for question, values, right in asked(part, LEARNERS[:5]):
        for name, value, _ in wrong_values(question, values):
            said = question.settle(value, values).message.partition(": ")[2].partition(" ")[2]
            words = said.replace(",", " ").replace(".", " ").split()
            if isinstance(right, int | float) and f"{right:g}" in words:
                given_away.setdefault((question.name, name), set()).add(right)
    assert all(len(numbers) < 2 for numbers in given_away.values()), given_away


@each_drawn
def test_somebody_makes_each_mistake(part: Part) -> None:
    """An option is a mistake with some learners' values, and may be right with those of others."""
    questions = check_of(part).questions
    left = {(asked.name, one.why) for asked in questions for one in asked.answer.mistakes}
    for question, values, _ in asked(part, [f"learner{number}" for number in range(MANY)]):
        left -= {(question.name, why) for _, _, why in wrong_values(question, values)}
        if isinstance(question.answer, Choice):
            right = _value(question.answer.expected, values)
            mistakes = question.answer.mistakes
            no_mistakes = [one for one in mistakes if _value(one.value, values) in ("", right)]
            left -= {(question.name, one.why) for one in no_mistakes}
        if not left:
            return
    assert not left


@pytest.mark.parametrize("part", [p for p in PARTS if p.level == 1], ids=lambda part: part.name)
def test_learners_get_different_questions(part: Part) -> None:
    learners = (f"somebody {number}" for number in range(MANY))
    drawn = Counter(repr(dict(check_of(part).given(part.symbol, one))) for one in learners)
    assert len(drawn) > 20
    assert max(drawn.values()) < 12
