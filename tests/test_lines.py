"""What `dtlab grade` says reads well in a terminal of 80 columns, and in a file."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from dtlab.checks.report import Criterion
from dtlab.classroom.grade import Outcome
from dtlab.classroom.judging.judge import PartVerdict
from dtlab.classroom.late import Lateness
from dtlab.classroom.lines import fitted, line, summary
from dtlab.classroom.verdicts import Record

LATE = Lateness(datetime(2026, 12, 1, 17, tzinfo=UTC), 97_200.0, 20.0, False)


def record(
    score: float = 26, notes: tuple[str, ...] = (), missing: tuple[str, ...] = ()
) -> Record:
    part = PartVerdict("01/step", "step-check", score, 26, 7, (Criterion("a", 1, 1, "ok", "a"),))
    return Record(
        "week-1", "ada", "key", 7, "0.1.0", 9.25, 1.5, {"level-1": (part,)}, {"level-1": notes},
        missing,
    )  # fmt: skip


def test_a_line_has_points_seconds_and_remarks() -> None:
    outcome = Outcome("ada", record(20.8, ("a", "b")), record(13), late=(LATE, 4.16))
    told = f"{'ada':<24}    20.8 of 26      9.2 s  was 13, late: -4.16, 2 notes"
    assert line(outcome, None) == told
    assert line(Outcome("ada", record(), record(), skipped=True), 80).endswith(
        "26 of 26  as before"
    )


def test_a_line_says_the_last_of_what_went_wrong() -> None:
    outcome = Outcome("ada", None, trouble="Traceback\n  File ...\nRuntimeError: no room left\n")
    assert line(outcome, 80) == f"{'ada':<24}  not graded: RuntimeError: no room left"
    assert len(line(Outcome("ada", None, trouble="x" * 300), 80)) == 79
    assert line(Outcome("ada", record(), trouble="level-2: no"), 80).endswith("in part: see below")


@pytest.mark.parametrize(
    "name", ["ada", "n" * 90, "林" * 40, "e\u0301" * 40, "a\nb\x1b[31m\u202e", "Grace Hopper"]
)
def test_any_name_fits_a_terminal_and_steers_none(name: str) -> None:
    outcome = Outcome(name, record(20.8, ("a",)), record(13), late=(LATE, 4.16))
    shown = line(outcome, 80)
    assert columns(shown) < 80
    assert re.search(r"    20\.8 of 26      9\.2 s  was 13, late: -4\.16, 1 note$", shown)
    assert columns(shown[: shown.index("20.8")]) == 28
    assert not set(shown) & set("\n\x1b\u202e")
    if name.isprintable():
        assert name in line(outcome, None)


def columns(text: str) -> int:
    return sum(2 if one == "林" else 0 if one == "\u0301" else 1 for one in text)


def test_text_is_cut_at_columns() -> None:
    assert fitted("abc", 5) == "abc  "
    assert fitted("abcde", 5) == "abcde"
    assert fitted("abcdef", 5) == "abcd…"
    assert fitted("林林林", 5) == "林林…"
    assert fitted("林林林", 6) == "林林林"
    assert fitted("abcdef", None) == "abcdef"


def test_the_summary_tells_each_thing_once() -> None:
    kind = "another user (only root can become one)"
    moved = "The cell 'step-check' stood above the answer, and was moved below it."
    class_ = [
        Outcome(f"s{n}", record(notes=(moved,), missing=(kind, f"files ({n})")), record())
        for n in range(7)
    ]
    class_ += [
        Outcome("bob", record(20), record(13), late=(LATE, 4.16), by_hand=("step",)),
        Outcome("cyd", record(), record(), skipped=True),
        Outcome("dan", None, trouble="nbgrader could not book the submission:\n[ERROR] locked"),
    ]
    told = list(summary(class_, "course/verdicts/week-1", None))
    assert told[1] == "1 as before, 8 graded, 1 not graded."
    assert told.count(f"  s0, s1, s2, 4 others, level-1: {moved}") == 1
    assert "  bob  01/step  13 -> 20" in told
    assert "  bob: step" in told
    assert "  another user (only root can become one)" in told
    assert sum(line.startswith("  files (") for line in told) == 1
    assert told[told.index("Not graded:") + 1 :][:2] == [
        "  dan: nbgrader could not book the submission:", "  [ERROR] locked",
    ]  # fmt: skip
    assert told[-1] == "The reasons for all points are in course/verdicts/week-1."
    assert max(map(len, told)) > 80


def test_the_summary_fits_a_terminal() -> None:
    trouble = "Traceback (most recent call last):\n    deep " + "down " * 30 + "x" * 200
    class_ = [
        Outcome("n" * 100, record(notes=("word " * 40,)), record(3), late=(LATE, 4.16)),
        Outcome("dan", None, trouble=trouble),
    ]
    told = list(summary(class_, "verdicts", 80))
    assert max(map(len, told)) < 80
    assert "    deep down" in "\n".join(told)


def test_a_summary_without_remarks_has_two_lines() -> None:
    told = list(summary([Outcome("ada", record(), record(), skipped=True)], "verdicts", 80))
    assert told == ["", "1 as before."]
