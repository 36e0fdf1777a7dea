"""Every check takes exactly the points it should from the answers that people give.

Answers that run on ranks take a second each, so `make test` has a sample of them: of every part,
an answer for each criterion that loses it alone, and two right ones.
The rest are marked `proof`; `make mutants` goes through all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dtlab.grading import Criterion, Part, Report, known_parts
from tests.wrong_answers import FOLDER, Answers, answers_of, known_answers

GOAL_RIGHT, GOAL_HANGING = 3, 6  # seconds that a check may take
GUARD = 5  # times that, beside other tests
FEWEST_WRONG, FEWEST_RIGHT = 10, 2  # of a part in which something is written
SEEDS = (1, 2)  # wrong answers have 0

PARTS = [part for part in known_parts() if not part.by_hand]
KNOWN = known_answers()


def name_of(case: Any) -> str:
    """How pytest names a case."""
    if isinstance(case, Answers):
        return case.part.name
    return case.name if isinstance(case, Part) else getattr(case, "__name__", str(case))


def wrong_answers() -> Iterator[Any]:
    """Each part with each of its wrong answers."""
    for known in KNOWN:
        alone: set[str] = set()
        for answer, losses in known.wrong.items():
            first_alone = len(losses) == 1 and not alone.issuperset(losses)
            alone |= losses.keys() if first_alone else set()
            sampled = known.part.level == 1 or first_alone
            yield pytest.param(known, answer, marks=() if sampled else pytest.mark.proof)


def right_answers() -> Iterator[Any]:
    """Each part with each of its right answers, and seeds."""
    for known in KNOWN:
        for number, answer in enumerate(known.right):
            for seed in SEEDS:
                sampled = known.part.level == 1 or (number < 2 and seed == SEEDS[number])
                marks = () if sampled else pytest.mark.proof
                yield pytest.param(known, answer, seed, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("known", "answer", "seed"), list(right_answers()), ids=name_of)
def test_a_right_answer_earns_everything(
    known: Answers, answer: Callable[..., Any], seed: int, warm: None
) -> None:
    started = time.monotonic()
    report = known.check(answer, seed)
    assert report.passed, report
    assert time.monotonic() - started < GUARD * GOAL_RIGHT


@pytest.mark.slow
@pytest.mark.parametrize(("known", "answer"), list(wrong_answers()), ids=name_of)
def test_a_wrong_answer_loses_what_it_should(
    known: Answers, answer: Callable[..., Any], warm: None
) -> None:
    started = time.monotonic()
    report = known.check(answer)
    assert not known.objections(answer, report), report
    assert time.monotonic() - started < GUARD * GOAL_HANGING


@pytest.mark.parametrize("part", PARTS, ids=name_of)
def test_every_part_has_its_answers(part: Part) -> None:
    assert answers_of(part) is not None, "write tests/wrong_answers/NN_name/<symbol>.py"


@pytest.mark.parametrize("known", KNOWN, ids=name_of)
def test_every_criterion_is_the_sole_loss_of_some_wrong_answer(known: Answers) -> None:
    sole = {next(iter(losses)) for losses in known.wrong.values() if len(losses) == 1}
    assert sole == known.criteria


@pytest.mark.parametrize("known", KNOWN, ids=name_of)
def test_there_are_answers_enough(known: Answers) -> None:
    if known.part.level > 1:
        assert len(known.wrong) >= FEWEST_WRONG
        assert len(known.right) >= FEWEST_RIGHT
    assert known.right
    assert all(known.wrong.values()), "a wrong answer loses something"


def test_every_file_of_answers_belongs_to_a_part() -> None:
    files = {f"{path.parent.name[:2]}/{path.stem}" for path in FOLDER.glob("[0-9]*/*.py")}
    assert files == {f"{known.part.unit}/{known.part.symbol}" for known in KNOWN}


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
