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
from dtlab.checks import find_part, known_parts
from dtlab.checks.learners import graded_student, normalised
from dtlab.checks.questions.answers import (
    Choice,
    Choices,
    Given,
    Mistake,
    Number,
    Question,
    Questions,
)
from dtlab.checks.questions.quantities import Unreadable, close, entries, read, whole
from dtlab.errors import DtlabError

PARTS = [  # those whose answers are compared with a right one, not run
    part
    for part in known_parts()
    if isinstance(part.check, Questions)
    and all(hasattr(each.answer, "expected") for each in part.check.questions)
]
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
        ("16x", "times", 16),
        ("16 times", "times", 16),
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
        ("3 ms", "MB", "'ms' is no unit for this question"),
        ("3 Mb", "MB", "'Mb' is no unit"),  # megabits
        ("3e-4*4", "", "'3e-4*4': a calculation is written without quotes"),
        ("(1 + 2) / 3", "MB", "a calculation is written without quotes"),
        ("3e-4 MB/2", "MB", "'MB/2' is no unit"),
        ("3 MB", "", "'MB' is no unit"),
        (True, "", "True is no number. Write a number, as 2.5"),
        (np.bool_(True), "", "True is no number"),
        (1j, "", "1j is no number"),
        (float("nan"), "", "nan is no finite number. Write a number, as 2.5"),
        (torch.tensor(float("inf")), "", "inf is no finite number. Write a number"),
        (10**400, "", "is no finite number"),
        ("1_", "", "cannot be read"),
        (b"12", "", "b'12' is no number"),
        ("1/0", "", "divides by zero. Write a number"),
        ({"a": 1}, "", "{'a': 1} is no number"),
        ([1, "x"], "", "'x' cannot be read"),
    ],
)
def test_the_error_on_an_unreadable_value_says_how_to_write_it(
    value: Any, unit: str, words: str
) -> None:
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
        (12_000, "lost", "12000 is not it. It is right in kB, but the question asks for MB."),
        ("12 B", "lost", "Count the rounds."),
        ("12 Mb", "lost", "'Mb' is no unit"),
        ([], "open", "not answered yet"),
    ],
)
def test_a_number_is_right_or_gets_its_known_reason_or_a_hint(
    answer: Any, status: str, words: str
) -> None:
    verdict = RING.judge(answer, S)
    assert (verdict.status, words in verdict.message) == (status, True), verdict


@pytest.mark.parametrize(("answer", "words"), [(-0.37, "-0.37 is rounded too far: 0.5 %"),
                                                (-0.3, "is not it"), (0, "is not it")])
def test_a_right_number_with_too_few_decimals_is_called_so(answer: float, words: str) -> None:
    number = Number(lambda given: -0.3742, (), "Look.", tolerance=0.005)
    assert number.judge(-0.374, {}).status == "ok"
    assert words in number.judge(answer, {}).message


ABOUT_B = (Mistake("b", "`b` waits."),)
ONE = Choice(dict.fromkeys("abc", ""), "a", ABOUT_B, "Look.")
SOME = Choices(dict.fromkeys("abc", ""), frozenset("a"), ABOUT_B, "Look.")


@pytest.mark.parametrize(
    ("kind", "answer", "mistake"),
    [
        (RING, 24e6, "that is both ways."),  # as 24 MB
        (RING, "0.024 GB", "that is both ways."),
        (RING, 12e6 / 2**20, "this would be right in MiB (powers of 1024); MB are powers of "
                             "1000."),
        (RING, 12, ""),
        (RING, 12.2, ""),  # a hint is for no known mistake
        (RING, "twelve", ""),
        (RING, [336], ""),
        (RING, [], ""),
        (ONE, "B", "`b` waits."),
        (ONE, "c", ""),
        (ONE, "z", ""),
        (SOME, {"a", "b"}, "`b` waits."),
        (SOME, {"c"}, ""),
        (SOME, {"z"}, ""),
    ],
)  # fmt: skip
def test_a_criterion_keeps_the_known_mistake_without_the_learners_numbers(
    kind: Any, answer: Any, mistake: str
) -> None:
    criterion = Question("size", 1, "", kind).settle(answer, S)
    assert criterion.mistake == mistake
    assert criterion.message.endswith(mistake)


# Shapes: the message on them comes before any hint ---------------------------------------------

PAIR = Number(
    lambda given: [8, 16],
    (
        Mistake(12, "this is one number for both."),
        Mistake([16, 8], "the other way round."),
        Mistake([8, 16, 16, 8], "this puts them one after another."),
    ),
    "HINT",
)
TABLE = Number(
    lambda given: [[5, 7, 9]] * 3,
    (Mistake([[5], [7], [9]], "that is a reduce-scatter."), Mistake([[1, 2, 3]] * 3, "KNOWN")),
    "HINT",
)
A_NUMBER, A_PAIR = "write a number, as in", "write a list of 2 numbers, as in"
A_TABLE = "write one list for each rank, 3 in all, as in [[4], [5, 6], []], not"
FEW = Number(lambda given: [list(range(one)) for one in range(5)], (), "HINT", each="worker")


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        (RING, [336], f"[336]: {A_NUMBER} 336, not a list."),
        (RING, [12], f"[12]: {A_NUMBER} 12, not a list."),  # not even where it is right
        (RING, ("336 MB",), f"('336 MB',): {A_NUMBER} 336, not a list."),
        (RING, [[0.5]], f"[[0.5]]: {A_NUMBER} 0.5, not a list."),
        (RING, [12, 13], f"[12, 13]: {A_NUMBER} 2.5, not a list."),
        (RING, torch.tensor([336.0]), f"[336.0]: {A_NUMBER} 336, not a list."),
        (RING, {336}, "{336} is no number. Write a number, as 2.5"),
        (RING, {"ring": 336}, "{'ring': 336} is no number. Write a number"),
        (RING, "8,16", "'8,16' cannot be read. Write a point for decimals, and no commas."),
        (PAIR, "8,16", f"'8,16': {A_PAIR} [8, 16], not text."),
        (PAIR, "eight", f"'eight': {A_PAIR} [2.5, 1], not text."),
        (PAIR, "8", f"'8': {A_PAIR} [2.5, 1], not text."),
        (PAIR, 8, f"8: {A_PAIR} [2.5, 1], not a number."),
        (PAIR, np.float32(8), f"8.0: {A_PAIR} [2.5, 1], not a number."),
        (PAIR, True, f"True: {A_PAIR} [2.5, 1], not True."),
        (PAIR, float("nan"), f"nan: {A_PAIR} [2.5, 1], not a number."),
        (PAIR, {8}, f"{{8}}: {A_PAIR} [2.5, 1], not a set."),
        (PAIR, {"a": 8}, f"{{'a': 8}}: {A_PAIR} [2.5, 1], not a dict."),
        (PAIR, max, "not a function."),
        (PAIR, 1j, f"1j: {A_PAIR} [2.5, 1], not a complex."),
        (PAIR, [8], f"[8]: {A_PAIR} [2.5, 1], not a list of 1 number."),
        (PAIR, [8, 16, 24], f"{A_PAIR} [2.5, 1], not a list of 3 numbers."),
        (PAIR, [[8], [16]], f"{A_PAIR} [8, 16], not a list with lists in it."),
        (PAIR, np.array([[8, 16]]), f"[[8, 16]]: {A_PAIR} [8, 16], not a list with lists in it."),
        (PAIR, [None, 16], f"[None, 16]: {A_PAIR} [2.5, 1], not a list with None in it."),
        (PAIR, [True, 16], f"True is no number. W{A_PAIR[1:]} [2.5, 1]."),
        (PAIR, [8, float("nan")], f"nan is no finite number. W{A_PAIR[1:]} [2.5, 1]."),
        (PAIR, ["8,16"], f"'8,16' cannot be read. Write a point for decimals, and no commas. W"
                         f"{A_PAIR[1:]} [8, 16]."),
        (TABLE, [5, 7, 9], f"[5, 7, 9]: {A_TABLE} a list of 3 numbers."),  # no reduce-scatter
        (TABLE, [4], f"[4]: {A_TABLE} a list of 1 number."),
        (TABLE, 5, f"5: {A_TABLE} a number."),
        (TABLE, "everyone has it", f"'everyone has it': {A_TABLE} text."),
        (TABLE, [[5, 7, 9]] * 2, f"{A_TABLE} a list of 2 lists."),
        (TABLE, [[[5, 7, 9]], [], []], f"{A_TABLE} lists with lists in them."),
        (TABLE, ["5, 7, 9"] * 3, "'5, 7, 9' cannot be read. Write a point for decimals, and no "
                                 "commas. Write one list for each rank, 3 in all, as in"),
        (TABLE, ["three of them", [], []], "'three of them' cannot be read. Write one list for"),
        (FEW, 3, "write one list for each worker, 5 in all, as in [[4], [5, 6], [], ...], not"),
    ],
)  # fmt: skip
def test_the_message_on_another_shape_says_how_to_write_the_answer(
    kind: Number, answer: Any, words: str
) -> None:
    verdict = kind.judge(answer, S)
    assert verdict.status == "lost"
    assert words in verdict.message
    for content in (kind.hint, "reduce-scatter"):
        assert content not in verdict.message


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        (PAIR, 12, "12: this is one number for both."),  # known in that very shape
        (PAIR, [16, 8, 8, 16], "not a list of 4 numbers."),
        (PAIR, [8, 16, 16, 8], "[8, 16, 16, 8]: this puts them one after another."),
        (PAIR, torch.tensor([16, 8]), "[16, 8]: the other way round."),
        (PAIR, [8, 8], "[8, 8] is not it. HINT Look at the second entry."),
        (TABLE, [[5], 7, 9], "that is a reduce-scatter."),  # a number for a list of one
        (TABLE, [[1, 2, 3]] * 3, "KNOWN"),
        (TABLE, [[5, 7, 9], [], None], "[[5, 7, 9], [], []] is not it. HINT"),
        (TABLE, [[1], [], [2, 3]], "is not it. HINT"),  # how much each holds is no shape
        (RING, torch.tensor(13.0), "13 is not it. Count the rounds."),
    ],
)
def test_an_answer_of_the_right_shape_is_judged_by_what_is_in_it(
    kind: Number, answer: Any, words: str
) -> None:
    verdict = kind.judge(answer, S)
    assert verdict.status == "lost"
    assert words in verdict.message


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (RING, torch.tensor(12)),
        (RING, np.int64(12)),
        (RING, np.array(12.0)),
        (PAIR, (np.int64(8), torch.tensor(16.0))),
        (PAIR, np.array([8, 16])),
        (TABLE, torch.tensor([[5, 7, 9]] * 3)),
        (Number(lambda given: [[5], [7]], (), ""), [5, 7]),
    ],
)
def test_tensors_and_arrays_are_numbers_and_lists(kind: Number, answer: Any) -> None:
    assert kind.judge(answer, S).status == "ok"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(4, 4), (4.0, 4), ("4", 4), (torch.tensor(4), 4), (np.int64(4), 4), (4.5, None), (True, None),
     (None, None), ([4], None), ("four", None), (float("nan"), None)],
)  # fmt: skip
def test_a_whole_number_is_read_as_any_other_or_none(value: Any, wanted: int | None) -> None:
    assert whole(value) == wanted


@pytest.mark.parametrize("answer", ["both", " BOTH ", "on all ranks", "'both'"])
def test_a_choice_is_its_name_or_its_text(answer: str) -> None:
    choice = Choice({"both": "on all ranks", "one": ""}, "both", (Mistake("one", "no."),), "Look.")
    assert choice.judge(answer, {}).status == "ok"
    assert choice.judge("one", {}).message == "one: no."
    assert choice.judge("neither", {}).message.endswith('Write one of: "both", "one".')


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (["both"], "['both'] is a list; one name is asked for."),
        ({"both"}, "{'both'} is a set; one name is asked for."),
        ({"both": 1}, "{'both': 1} is a dict; one name is asked for."),
        (True, "True is none of the options."),
        (float("nan"), "nan is none of the options."),
        (print, "is a function; one name is asked for."),
    ],
)
def test_the_message_on_an_unknown_choice_lists_the_names(answer: Any, words: str) -> None:
    choice = Choice({"both": "on all ranks", "one": ""}, "both", (Mistake("one", "no."),), "Look.")
    verdict = choice.judge(answer, {})
    assert verdict.status == "lost"
    assert verdict.message.endswith(f'{words} Write one of: "both", "one".')


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
        ("ab", "'ab' is none of the options. Write the names in braces, as in "),
        (np.array(["a", "b"]), "{a, b}"),
        (3, '3 is not a set. Write the names in braces, as in {"one", "other"}. The options: "a"'),
        ({"a": True}, "{'a': True} is not a set."),
        (True, "True is not a set."),
        ([["a"], "b"], "['a'] is a list; one name is asked for."),
    ],
)
def test_a_set_is_right_as_a_whole(answer: Any, words: str) -> None:
    verdict = SETS.judge(answer, {})
    assert words in verdict.message
    assert (verdict.status == "ok") == (words == "{a, b}")


def test_values_are_drawn_until_mistakes_differ() -> None:
    square = Mistake(lambda given: given["n"] ** 2, "squared")
    number = Number(lambda given: given["n"] * 2, (square,), "")
    questions = Questions(
        lambda draw: {"n": draw.choice((0, 2, 3))},
        lambda given: [("n", str(given["n"]))],
        (Question("twice", 1, "2n", number),),
    )
    assert {questions.given("twice", str(name))["n"] for name in range(20)} == {3}


# The learner's id ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_id_gets_the_same_values_everywhere() -> None:
    here = dict(dtlab.ask("01/bytes_sent", "Ada Lovelace"))
    assert here == dict(dtlab.ask("01/bytes_sent", " adalovelace "))
    code = "import dtlab; print(dict(dtlab.ask('01/bytes_sent', 'Ada Lovelace')))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert there.strip() == str(here)


@pytest.mark.proof
@pytest.mark.slow
def test_other_ids_get_other_values() -> None:
    for part in PARTS:
        drawn = {str(dict(dtlab.ask(part.name, f"student{number}"))) for number in range(15)}
        assert len(drawn) > 5, part.name


@pytest.mark.parametrize("learner", ["", "  ", None, "your id", "YOUR-ID", "your name", "..."])
def test_a_missing_id_is_named(learner: Any) -> None:
    with pytest.raises(DtlabError, match="your id is missing"):
        dtlab.ask("01/bytes_sent", learner)
    report = dtlab.check("01/bytes_sent", {"ring": 1}, learner=learner)
    assert report.score == 0
    assert "your id is missing" in report.criteria[0].message
    assert {one.status for one in report.criteria} == {"open"}


def test_ask_refuses_a_part_without_drawn_values() -> None:
    with pytest.raises(DtlabError, match="not for values drawn from your id"):
        dtlab.ask("01/ring_all_reduce", "ada")


@pytest.fixture
def autograding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which nbgrader runs bob's notebook."""
    folder = tmp_path / "autograded" / "Bob" / "01_ranks_and_collectives"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return tmp_path


def test_autograde_finds_the_students_id(autograding: Path) -> None:
    assert graded_student() is None  # a folder of that name is no course yet
    (autograding / "nbgrader_config.py").touch()
    assert graded_student() == "Bob"


def test_another_learners_answers_earn_nothing(autograding: Path) -> None:
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
    given = part.check.named(part.check.given(part.symbol, learner))
    return {one.name: expected(one.answer, given) for one in part.check.questions}


def expected(kind: Any, given: Mapping[str, Any]) -> Any:
    return kind.expected(given) if callable(kind.expected) else kind.expected


def test_given_values_can_be_read_and_shown_but_not_changed() -> None:
    given = dtlab.ask("01/step", "<Ada>")
    assert set(given) == {"gradients", "weights", "rate", "who"}
    with pytest.raises(TypeError):
        given["rate"] = 1  # type: ignore[index]
    with pytest.raises(KeyError, match="is not given here. Given: gradients") as raised:
        given["speed"]
    assert "numbers of step. If you work on another part, run the cell" in str(raised.value)
    assert "learning rate" in repr(given)
    assert "&lt;Ada&gt;" in given._repr_html_()
    for text in (repr(given), given._repr_html_()):
        assert f"worker {given['who']}" in text


@pytest.mark.covering(1)
@pytest.mark.slow
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
        (3, "averages is a number here. Write a dict with an entry for each question: "
            'averages = {"sum": ..., "average": ..., "divide": ...}.'),
        ([1, 2], "averages is a list here."),
        ("both", "averages is text here."),
        (print, "averages is a function here."),
    ],
)  # fmt: skip
def test_a_value_that_is_no_dict_of_answers_is_explained(answer: Any, words: str) -> None:
    report = dtlab.check("01/averages", answer, learner="ada")
    assert (report.score, words in report.criteria[0].message) == (0, True)


def statuses(answer: Any, name: str = "01/averages") -> dict[str, str]:
    report = dtlab.check(name, answer, learner="ada")
    return {one.name: one.status for one in report.criteria}


def test_a_misspelt_name_is_reported_at_its_question_and_loses_no_other() -> None:
    answers = right("01/averages", "ada")
    misspelt = {("Avrage" if name == "average" else name): one for name, one in answers.items()}
    report = dtlab.check("01/averages", misspelt, learner="ada")
    assert (report.score, report.passed) == (2, False)
    assert [one.status for one in report.criteria] == ["ok", "lost", "ok"]
    words = "unknown answer 'Avrage': did you mean 'average'?"
    assert report.criteria[1].message == f"average: {words}"
    for handed_out in (None, ...):  # the blank is still in the dict
        assert words in str(dtlab.check("01/averages", {**misspelt, "average": handed_out},
                                        learner="ada"))  # fmt: skip


def test_an_unknown_name_gives_a_remark() -> None:
    answers = right("01/averages", "ada")
    for other in ({"speed": 3}, {"sums": 3}, {7: 3}):  # 'sum' is answered
        report = dtlab.check("01/averages", {**answers, **other}, learner="ada")
        assert (report.score, report.max_score, report.passed) == (4, 4, True)
        (remark,) = report.criteria[3:]
        assert (remark.points, remark.status) == (0, "blocked")
        assert remark.message == (
            f"unknown answer {next(iter(other))!r}. The questions are: sum, average, divide."
        )
    both = dtlab.check("01/averages", {**answers, "sums": 3, "speed": 3}, learner="ada")
    assert str(both).count("unknown answers 'sums', 'speed'. The") == 1
    assert len(both.criteria) == 4


def test_each_unknown_name_is_named_once() -> None:
    report = dtlab.check("01/averages", {"summ": 1, "suum": 2, "speed": 3}, learner="ada")
    assert [str(report).count(name) for name in ("'summ'", "'suum'", "'speed'")] == [1, 1, 1]
    assert statuses({"summ": 1}) == {"sum": "lost", "average": "open", "divide": "open"}
    assert "did you mean 'sum'?" in report.criteria[0].message
    assert report.criteria[3].message.startswith("unknown answers 'suum', 'speed'. The")


def test_an_ellipsis_is_no_answer_yet() -> None:
    assert set(statuses(dict.fromkeys(("sum", "average", "divide"), ...)).values()) == {"open"}


NUMBERS = [336, torch.tensor(98_765), np.float32(98_765)]  # not right for any question
ODD = [
    [336], "8,16", [[1], [2]], [1, None], True, float("nan"), 10**400, {3}, {"a": 1}, b"1", print,
    1j, torch.ones(2, 2), torch.tensor(True), object(),
]  # fmt: skip


@pytest.mark.proof
@pytest.mark.covering(1)
@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
@pytest.mark.parametrize(
    "strange", [*NUMBERS, *ODD], ids=lambda one: repr(one).partition(" at 0x")[0]
)
def test_an_answer_of_any_shape_loses_only_its_own_points(part: Any, strange: Any) -> None:
    """Each question gets the value in turn, while all others are right. No hint has content."""
    answers = right(part.name, "ada")
    given = part.check.named(part.check.given(part.symbol, "ada"))
    for question in part.check.questions:
        report = dtlab.check(part.name, {**answers, question.name: strange}, learner="ada")
        assert [one.name for one in report.criteria if one.status != "ok"] == [question.name]
        if isinstance(question.answer, Number):
            a_list_is_asked = isinstance(question.answer.expected(given), list)
            if a_list_is_asked or not any(strange is one for one in NUMBERS):
                assert question.answer.hint not in str(report)


def test_code_in_values_and_questions_is_shown_as_code() -> None:
    given = Given("part", {}, [("`S`", "8 < 9")], ["ring: what `send` < `recv` sends (1 point)"])
    assert "ring: what send < recv sends (1 point)" in repr(given)
    html = given._repr_html_()
    assert "`" not in html
    assert ">send</code> &lt; <code" in html


def test_ids_are_compared_without_case_and_blanks() -> None:
    assert normalised(" Ada  Lovelace\n") == normalised("adalovelace")
    assert normalised(17) == "17"


def test_the_entries_of_a_dict_are_numbers_and_short_texts() -> None:
    found = {"a": torch.tensor(2), "b": "text", "c": None, "d": [1] * 99, "more": 1}
    assert entries(found, ("a", "b", "c", "d")) == {
        "a": 2, "b": "text", "c": "None", "d": str([1] * 99)[:40],
    }  # fmt: skip
    assert entries([1], ("a",)) == {"odd": "a list"}
    assert entries({"a": 1}, ("a", "data")) == {"odd": "a dict without 'data'"}
