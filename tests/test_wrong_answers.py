"""Every check takes exactly the points it should from the answers that people give.

`make test` judges a sample: for each criterion a wrong answer that loses it alone, for each part
a right answer. `make proof` judges all known answers on fresh ranks; see tests/mutants/.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dtlab.checks import Criterion, Part, Report, known_parts
from dtlab.checks.questions.answers import Questions
from tests.known_answers import FOLDER, Answers, answers_of, known_answers
from tests.marks import slow
from tests.staying import BENCH

GOAL = 6  # seconds that a check may take
GUARD = 10  # times that, beside other tests and on a slow machine
FEWEST_WRONG, FEWEST_RIGHT = 10, 2  # of a part in which something is written

PARTS = [part for part in known_parts() if not part.by_hand]
KNOWN = known_answers()
VALUES = [known for known in KNOWN if isinstance(known.part.check, Questions)]
FUNCTIONS = [(known, answer) for known in KNOWN if known not in VALUES for answer in known.sample]


def name_of(case: Any) -> str:
    """How pytest names a case."""
    if isinstance(case, Answers):
        return case.part.name
    return case.name if isinstance(case, Part) else getattr(case, "__name__", str(case))


@pytest.mark.slow
@pytest.mark.parametrize(("known", "answer"), FUNCTIONS, ids=name_of)
def test_an_answer_loses_what_it_should(known: Answers, answer: Callable[..., Any]) -> None:
    started = time.monotonic()
    report = known.check(answer, bench=BENCH)
    assert not known.objections(answer, report), report
    assert time.monotonic() - started < GUARD * GOAL


@pytest.mark.parametrize(
    "known", [slow(known) if known.part.level > 1 else known for known in VALUES], ids=name_of
)
def test_values_lose_what_they_should(known: Answers) -> None:
    for answer in known.sample:
        report = known.check(answer, bench=BENCH)
        assert not known.objections(answer, report), f"{answer.__name__}\n{report}"


@pytest.mark.parametrize("part", PARTS, ids=name_of)
def test_every_part_has_its_answers(part: Part) -> None:
    assert answers_of(part) is not None, "write tests/known_answers/NN_name/<symbol>.answers"


@pytest.mark.parametrize("known", KNOWN, ids=name_of)
def test_every_criterion_is_the_sole_loss_of_some_wrong_answer(known: Answers) -> None:
    sole = {next(iter(losses)) for losses in known.wrong.values() if len(losses) == 1}
    assert sole == known.criteria, f"no wrong answer loses only {known.criteria - sole or sole}"


@pytest.mark.parametrize("known", KNOWN, ids=name_of)
def test_there_are_answers_enough(known: Answers) -> None:
    if known.part.level > 1:
        assert len(known.wrong) >= FEWEST_WRONG
        assert len(known.right) >= FEWEST_RIGHT
    assert known.right
    assert all(known.wrong.values()), "a wrong answer loses something"


def test_every_file_of_answers_belongs_to_a_part() -> None:
    paths = FOLDER.glob("[0-9]*/*.answers")
    files = sorted(f"{path.parent.name[:2]}/{path.stem}" for path in paths)
    assert files == sorted(f"{known.part.unit}/{known.part.symbol}" for known in KNOWN)


# What is said about a report that differs ------------------------------------------------------


def handed_in() -> None:
    """Stands for an answer."""


@pytest.mark.parametrize(
    ("expected", "objections"),
    [
        ({"bytes": "too many"}, []),
        ({"bytes": "too few"}, ["bytes: 'too few' is not in 'too many of them'"]),
        ({}, ["bytes is lost: too many of them"]),
        ({"bytes": "too many", "result": ""}, ["result should be lost and is not"]),
        ({"bytes": "too many", "rounds": ""}, ["rounds should be lost and is not"]),
    ],
)
def test_a_report_that_differs_is_objected_to(
    expected: dict[str, str], objections: list[str]
) -> None:
    report = Report(
        "part",
        (
            Criterion("result", 1, 1, "ok", "right"),
            Criterion("bytes", 1, 0, "lost", "too many of them"),
            Criterion("rounds", 1, 0, "blocked", "judged later"),
        ),
    )
    known = Answers(PARTS[0], {handed_in: expected}, [], {})
    assert known.objections(handed_in, report) == objections
