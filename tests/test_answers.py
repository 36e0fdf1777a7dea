"""Level I: values drawn from the learner's id, and answers read as people write them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dtlab
from dtlab.errors import DtlabError
from dtlab.grading import find_part, known_parts
from dtlab.grading.answers import Choice, Choices, Mistake, Number, Question, Questions
from dtlab.grading.learners import graded_student, normalised
from dtlab.grading.quantities import Unreadable, close, read

PARTS = [part for part in known_parts() if isinstance(part.check, Questions)]
LEARNERS = ["ada", "Bo", "42", "c@example.org", "é"]

# Numbers as people write them ------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [12.6, 12.6e6, "12.6", "12.6 MB", "12.6MB", " 12.6 mb ", "12.6e6", "12_600_000", "12600 kB",
     "63/5", "63/5 MB", "0.0126 GB", Fraction(63, 5), np.float32(12.6), torch.tensor(12.6),
     f"{12.6e6 / 2**20} MiB"],
)  # fmt: skip
def test_a_size_may_be_written_in_many_ways(value: Any) -> None:
    assert any(close(one, 12.6, 1e-6) for one in read(value, "MB"))


@pytest.mark.parametrize(
    ("value", "unit", "wanted"),
    [
        ("0.5 ms", "s", 0.0005),
        ("500 us", "ms", 0.5),
        ("2 h", "min", 120),
        ("400 Gb/s", "GB/s", 50),
        ("25 %", "%", 25),
        ("8 ranks", "ranks", 8),
        ("1 rank", "ranks", 1),
        ("-.5", "", -0.5),
        ([4, "10"], "", [4, 10]),
        (np.array([[1, 2], [3, 4]]), "", [[1, 2], [3, 4]]),
        ([[], None, (1, 2)], "", [[], [], [1, 2]]),
    ],
)
def test_units_are_converted_and_lists_read(value: Any, unit: str, wanted: Any) -> None:
    assert close(read(value, unit)[0], wanted, 1e-9)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        ("twelve", "MB", "cannot be read. Write a number, as 2.5, 2.5e6 or 3/4, or with its unit"),
        ("12,6", "MB", "Write a point for decimals, and no commas"),
        ("3 ms", "MB", "'ms' is no unit of what is asked for"),
        ("3 Mb", "MB", "'Mb' is no unit"),  # megabits
        ("3 MB", "", "'MB' is no unit"),
        (True, "", "True is no number"),
        (1j, "", "1j is no number"),
        (float("nan"), "", "nan is no finite number"),
        ("1/0", "", "divides by zero"),
        ({"a": 1}, "", "{'a': 1} is no number"),
        ([1, "x"], "", "'x' cannot be read"),
    ],
)
def test_what_cannot_be_read_is_told_how_to_write(value: Any, unit: str, words: str) -> None:
    with pytest.raises(Unreadable) as error:
        read(value, unit)
    assert words in str(error.value)


# Kinds of answers ------------------------------------------------------------------------------

RING = Number(
    lambda given: given["S"] * 1.5,
    (Mistake(lambda given: given["S"] * 3, "that is both ways."), Mistake(1, "that is one.")),
    "Count the rounds.",
    unit="MB",
)
S = {"S": 8}


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (12, "ok", "12 MB"),
        (12.1, "ok", "12.1 MB"),  # within 1 %
        (12.2, "lost", "12.2 is not it. Count the rounds."),
        ("12.2 MB", "lost", "12.2 MB is not it. Count the rounds."),
        (24e6, "lost", "24 MB: that is both ways."),
        (1, "lost", "1 MB: that is one."),
        (12e6 / 2**20, "lost", "this would be right in MiB"),
        ("12 Mb", "lost", "'Mb' is no unit"),
        ([], "blocked", "not answered yet"),
        ([12, 13], "lost", "[12, 13] is not it."),
    ],
)
def test_a_number_is_right_wrong_for_a_known_reason_or_told_where_to_look(
    answer: Any, status: str, words: str
) -> None:
    verdict = RING.judge(answer, S)
    assert (verdict.status, words in verdict.message) == (status, True), verdict


@pytest.mark.parametrize("answer", ["both", " BOTH ", "on all ranks", "'both'"])
def test_a_choice_is_its_name_or_its_text(answer: str) -> None:
    choice = Choice({"both": "on all ranks", "one": ""}, "both", (Mistake("one", "no."),), "Look.")
    assert choice.judge(answer, {}).status == "ok"
    assert choice.judge("one", {}).message == "one: no."
    assert choice.judge("neither", {}).message.endswith('Write one of: "both", "one".')


SETS = Choices(
    {"a": "", "b": "", "c": "", "d": ""},
    frozenset("ab"),
    (Mistake({"a"}, "only a."), Mistake("c", "not c."), Mistake("b", "b is missing.")),
    "Look.",
)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"a", "b"}, "{a, b}"),
        (["B", "a", "a"], "{a, b}"),
        ("a, b", "{a, b}"),
        ({"a"}, "{a}: only a."),
        ({"a", "b", "c"}, "{a, b, c}: not c."),
        ({"a", "d"}, "{a, d}: b is missing."),
        ({"a", "b", "d"}, "{a, b, d} is not it. Look."),
        ({"a", "z"}, "'z' is none of the options"),
        (3, "3 is no set"),
    ],
)
def test_a_set_is_right_as_a_whole(answer: Any, words: str) -> None:
    verdict = SETS.judge(answer, {})
    assert words in verdict.message
    assert (verdict.status == "ok") == (words == "{a, b}")


def test_values_are_drawn_until_mistakes_can_be_told_apart() -> None:
    square = Mistake(lambda given: given["n"] ** 2, "squared")
    number = Number(lambda given: given["n"] * 2, (square,), "")
    questions = Questions(
        lambda draw: {"n": draw.choice((0, 2, 3))},
        lambda given: [("n", str(given["n"]))],
        (Question("twice", 1, "2n", number),),
    )
    assert {questions.given("twice", str(name))["n"] for name in range(20)} == {3}


# Who answers -----------------------------------------------------------------------------------


def test_the_same_id_gets_the_same_values_everywhere() -> None:
    here = dict(dtlab.ask("01/bytes_sent", "Ada Lovelace"))
    assert here == dict(dtlab.ask("01/bytes_sent", " adalovelace "))
    code = "import dtlab; print(dict(dtlab.ask('01/bytes_sent', 'Ada Lovelace')))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert there.strip() == str(here)


def test_other_ids_get_other_values() -> None:
    for part in PARTS:
        drawn = {str(dict(dtlab.ask(part.name, f"student{number}"))) for number in range(50)}
        assert len(drawn) > 10, part.name


@pytest.mark.parametrize("learner", ["", "  ", None, "your id", "YOUR-ID", "your name", "..."])
def test_nobody_is_asked_kindly_for_an_id(learner: Any) -> None:
    with pytest.raises(DtlabError, match="say first who you are"):
        dtlab.ask("01/bytes_sent", learner)
    report = dtlab.check("01/bytes_sent", {"ring": 1}, learner=learner)
    assert report.score == 0
    assert "say first who you are" in report.criteria[0].message
    assert {one.status for one in report.criteria[1:]} == {"blocked"}


def test_what_draws_nothing_cannot_be_asked() -> None:
    with pytest.raises(DtlabError, match="not for values drawn from your id"):
        dtlab.ask("01/ring_all_reduce", "ada")


@pytest.fixture
def autograding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which nbgrader runs bob's notebook."""
    folder = tmp_path / "autograded" / "Bob" / "01_ranks_and_collectives"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return tmp_path


def test_autograde_knows_whose_work_it_is(autograding: Path) -> None:
    assert graded_student() is None  # a folder of that name is no course yet
    (autograding / "nbgrader_config.py").touch()
    assert graded_student() == "Bob"


def test_the_answers_of_somebody_else_earn_nothing(autograding: Path) -> None:
    (autograding / "gradebook.db").touch()
    for learner, passed in (("bob", True), (" BOB", True), ("ada", False)):
        report = dtlab.check("01/averages", right("01/averages", learner), learner=learner)
        assert report.passed == passed
    assert report.score == 0
    assert "these are the questions of 'ada', and 'Bob' handed them in" in str(report)


# What is given, and what is handed in ----------------------------------------------------------


def right(name: str, learner: str) -> dict[str, Any]:
    part = find_part(name)
    assert isinstance(part.check, Questions)
    given = part.check.given(part.symbol, learner)
    return {one.name: expected(one.answer, given) for one in part.check.questions}


def expected(kind: Any, given: Mapping[str, Any]) -> Any:
    return kind.expected(given) if callable(kind.expected) else kind.expected


def test_given_values_can_be_read_and_shown_but_not_changed() -> None:
    given = dtlab.ask("01/step", "<Ada>")
    assert set(given) == {"gradients", "weights", "rate", "who"}
    with pytest.raises(TypeError):
        given["rate"] = 1  # type: ignore[index]
    with pytest.raises(KeyError, match="is not given here. Given: gradients"):
        given["speed"]
    assert "learning rate" in repr(given)
    assert "&lt;Ada&gt;" in given._repr_html_()
    for text in (repr(given), given._repr_html_()):
        assert f"worker {given['who']}" in text


@pytest.mark.parametrize("name", [part.name for part in PARTS])
@pytest.mark.parametrize("learner", LEARNERS)
def test_the_right_answer_passes_and_nothing_else_does(name: str, learner: str) -> None:
    answers = right(name, learner)
    assert dtlab.check(name, answers, learner=learner).passed
    assert dtlab.check(name, list(answers.values()), learner=learner).passed
    for field in answers:
        report = dtlab.check(name, {**answers, field: None}, learner=learner)
        assert [one.name for one in report.criteria if one.status != "ok"] == [field]
        assert f"{field}: not answered yet" in str(report)
    for nothing in (None, {}, dict.fromkeys(answers)):
        assert dtlab.check(name, nothing, learner=learner).score == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"summ": [1, 2]}, "an entry 'summ', which nobody asked for. Did you mean 'sum'?"),
        (3, "averages is int here. Write a dict with an entry for each of: sum, average, divide."),
        ([1, 2], "averages is list here."),
    ],
)
def test_what_is_no_set_of_answers_is_told_what_to_write(answer: Any, words: str) -> None:
    report = dtlab.check("01/averages", answer, learner="ada")
    assert (report.score, words in report.criteria[0].message) == (0, True)


def test_ids_are_compared_without_case_and_blanks() -> None:
    assert normalised(" Ada  Lovelace\n") == normalised("adalovelace")
    assert normalised(17) == "17"
