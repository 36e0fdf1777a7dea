"""The loader of known answers: changes of a solution, and errors that name the file and line."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from dtlab.checks import Criterion, Report
from tests.known_answers import FOLDER, Answers, AnswersError, changes
from tests.known_answers.__main__ import line_for, main
from tests.known_answers.changes import KnownAnswer, read

SOLUTION = """\
def halves(numbers):
    found = []
    for number in numbers:
        found.append(number / 2)
    found.sort()
    found.sort()
    return found
"""
CRITERIA = "values", "order"


def the_answer(folder: Path, text: str) -> KnownAnswer:
    (answer,) = read(written(folder, text), CRITERIA).answers
    return answer


def written(folder: Path, text: str) -> Path:
    path = folder / "halves.answers"
    path.write_text("Known answers to 99/halves.\n" + dedent(text))
    return path


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        (["~ / 2 => // 2"], SOLUTION.replace("/ 2", "// 2")),
        (["- for number in numbers:", "+ for number in reversed(numbers):"],
         SOLUTION.replace("in numbers", "in reversed(numbers)")),
        (["= for number in numbers:", "+     if number < 0:", "+         continue"],
         SOLUTION.replace("rs:\n", "rs:\n        if number < 0:\n            continue\n")),
        (["-1 found.sort()"], SOLUTION.replace("    found.sort()\n", "", 1)),
        (["~2 sort => reverse"], "reverse".join(SOLUTION.rsplit("sort", 1))),
        (["+ import math", "+"], f"import math\n\n{SOLUTION}"),
        (["| def halves(numbers):", "|     return []"], "def halves(numbers):\n    return []"),
    ],
)  # fmt: skip
def test_a_change_makes_the_cell_that_is_handed_in(
    tmp_path: Path, changes: list[str], cell: str
) -> None:
    answer = the_answer(tmp_path, "\n".join(["changed  values:", *changes]))
    assert answer.source(SOLUTION) == cell.rstrip("\n")


def test_an_answer_says_what_it_loses(tmp_path: Path) -> None:
    known = read(
        written(
            tmp_path,
            """
            # A comment.
            whole_numbers   values: is off by 0.5   order:
            ~ / 2 => // 2
            unsorted        right
            -1 found.sort()

            equivalent      sorted twice is sorted
            found.sort(); found.sort() -> found.sort()
            """,
        ),
        CRITERIA,
    )
    wrong, right = known.answers
    assert wrong.name == "whole_numbers"
    assert wrong.losses == {"values": "is off by 0.5", "order": ""}
    assert (right.name, right.losses) == ("unsorted", {})
    assert known.equivalent == {
        "found.sort(); found.sort() -> found.sort()": "sorted twice is sorted"
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a  bytes: many", "line 2: there is no criterion bytes; there are order, values"),
        ("a  nothing", "line 2: a is neither right nor loses a criterion: 'nothing'"),
        ("a  values:", "line 2: a has no change"),
        ("a  right\na  right", "line 3: a is there twice"),
        ("values are wrong", "line 2: 'values are wrong' is neither a change of the solution"),
        ("- found.sort()", "line 2: '- found.sort()' is neither a change of the solution"),
        ("undecided\n- found = []", "line 2: undecided does not say what it loses; python -m"),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(AnswersError) as caught:
        read(written(tmp_path, text), CRITERIA)
    assert f"halves.answers, {says}" in str(caught.value)


def test_criteria_may_be_on_lines_of_their_own(tmp_path: Path) -> None:
    answer = the_answer(tmp_path, "sorted_twice  values: one\n  order: another\n- found = []")
    assert answer.losses == {"values": "one", "order": "another"}
    (change,) = answer.changes
    assert change.place.endswith("halves.answers, line 4")


TWINS = "one  values: off\n- found = []\n\n{comment}two  values: off\n~ return found => return []"


def test_an_answer_that_proves_nothing_new_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AnswersError, match="line 5: two loses what one does, with the same mess"):
        read(written(tmp_path, TWINS.format(comment="")), CRITERIA)


def test_an_answer_may_lose_the_same_by_another_way(tmp_path: Path) -> None:
    text = TWINS.format(comment="# By another way: an empty list.\n")
    assert len(read(written(tmp_path, text), CRITERIA).answers) == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ("- found = [0]", "line 3: 'found = [0]' is in no line of the solution"),
        ("- found.sort()", "line 3: 'found.sort()' is in 2 lines of the solution"),
        ("-3 found.sort()", "line 3: 'found.sort()' is in 2 lines of the solution"),
        ("~ numbers = numbers", "line 3: write ~ old => new"),
        ("~ found => kept", "line 3: 'found' is in 5 lines of the solution"),
        ("| pass\n- found = []", "line 4: a whole cell (|) has no changes beside it"),
        ("~ found = [] => found = [ ]", "line 2: changed changes nothing of the solution"),
        ("~ / 2) => / 2", "line 2: changed is no Python in its line 4: '(' was never closed"),
    ],
)
def test_a_change_that_does_not_fit_is_an_error(tmp_path: Path, changes: str, says: str) -> None:
    answer = the_answer(tmp_path, f"changed  values:\n{changes}")
    with pytest.raises(AnswersError) as caught:
        answer.value(SOLUTION, eval)
    assert f"halves.answers, {says}" in str(caught.value)


def test_an_error_of_syntax_shows_the_cell(tmp_path: Path) -> None:
    answer = the_answer(tmp_path, "changed  values:\n~ / 2) => / 2")
    with pytest.raises(AnswersError, match="   4         found.append.number / 2\n"):
        answer.value(SOLUTION, eval)


def test_lines_of_a_file_are_at_most_120_long() -> None:
    for path in FOLDER.rglob("*.answers"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 120 or " -> " in line, f"{path.name}, line {number}"


# python -m tests.known_answers -------------------------------------------------------------------


@pytest.mark.slow
def test_an_answer_is_shown_with_its_change_and_its_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["05/gather", "copies"]) == 0
    shown = capsys.readouterr().out
    assert "+        parameter.data = flat[start:end].view(parameter.shape).clone()\n" in shown
    assert "layers.0.weight is not a view of flat" in shown
    assert "\nas the file says\n" in shown
    assert "\ncopies                    views: " in shown
    assert shown.endswith("\n1 of 1 answers are judged as the file says\n")


def test_the_line_for_the_file_has_a_piece_of_each_message_without_numbers() -> None:
    report = Report(
        "part",
        (
            Criterion("sum", 4, 0, "lost", f"with 2 ranks the sum is {'very ' * 20}wrong\nmore"),
            Criterion("size", 1, 0, "lost", "scale(16, 4) gives 8: it has to be doubled."),
            Criterion("bytes", 3, 0, "blocked", "judged later"),
            Criterion("peers", 1, 1, "ok", "only neighbours"),
        ),
    )
    first, second = line_for("halves" * 5, report).splitlines()
    assert first == f"{'halves' * 5}  sum: ranks the sum is{' very' * 8}"
    assert second == "  size: it has to be doubled"
    assert line_for("whole", Report("part", report.criteria[3:])).split() == ["whole", "right"]


@pytest.mark.slow
def test_an_answer_may_leave_open_what_it_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "00_one_gpu_is_not_enough"
    folder.mkdir()
    text = "Known answers.\n\nin_percent\n~ speedup / ranks => 100 * speedup / ranks\n"
    (folder / "scaling_report.answers").write_text(text)
    monkeypatch.setattr(changes, "FOLDER", tmp_path)
    assert main(["00/scaling_report", "in_percent"]) == 1
    shown = capsys.readouterr().out
    assert "the file does not say yet what it loses\n" in shown
    line = next(line for line in shown.splitlines() if line.startswith("in_percent "))
    assert "numbers: " in line
    assert "The file is not complete yet: 00_one_gpu_is_not_enough/scaling_report.answers" in shown
    (folder / "scaling_report.answers").write_text(text.replace("in_percent", line))
    assert main(["00/scaling_report", "in_percent"]) == 0


def test_a_report_that_differs_from_the_file_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other_points(self: Answers, answer: object, report: Report) -> list[str]:
        return ["total should be lost and is not"] * (answer is self.right[0])

    monkeypatch.setattr(Answers, "objections", other_points)
    assert main(["05/states"]) == 1
    shown = capsys.readouterr().out
    assert "05/states, solution\n" in shown
    assert "total should be lost and is not\n" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["05/gathr"], "'05/gathr' is no part with known answers. Near: 05/gather"),
        (["05/gather", "copeis"], "05/gather has no answer 'copeis'. Near: copies"),
        (["05/defence"], "'05/defence' is no part with known answers."),
    ],
)
def test_an_unknown_name_is_an_error(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err
