"""Grades as CSV: the columns that platforms read, and names that are not what one expects."""

from __future__ import annotations

import csv
import io
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nbgrader.api import Gradebook
from traitlets.config import Config
from traitlets.log import get_logger

from dtlab.checks.report import Criterion
from dtlab.classroom import verdicts
from dtlab.classroom.export import Canvas, Moodle, Plain, Table, number, safe_text
from dtlab.classroom.judging.judge import PartVerdict
from dtlab.classroom.settings import begin_course, course_directory
from dtlab.errors import DtlabError

pytestmark = pytest.mark.slow  # a gradebook for each

RING = "ring_all_reduce-check"
CALL = 'dtlab.check("01/ring_all_reduce", ring_all_reduce)'
PEOPLE = {
    "ada": {"last_name": "Lovelace", "first_name": "Ada", "email": "ada@example.org"},
    "b.ö": {"last_name": 'O"Brien, Jr.', "first_name": "Björk ✓", "email": "b@example.org"},
    "=1+1": {"last_name": "@SUM(1;2)", "first_name": "-\t+cmd|' /C calc'!A0"},
    "nobody": {"lms_user_id": "4711", "email": "n@example.org"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two assignments; ada and b.ö handed in the first, and b.ö was late."""
    folder = tmp_path_factory.mktemp("made") / "course"
    begin_course(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.environ["PATH"])  # the settings change it
        fill(folder)
        yield folder


@pytest.fixture
def course(tmp_path: Path, made: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "course"))


def fill(folder: Path) -> None:
    with book(folder) as gradebook:
        for name in ("week-3", "week-4"):
            gradebook.add_assignment(name, duedate="2026-12-01 18:00")
            gradebook.add_notebook("level-2", name)
            add = {"max_score": 20, "cell_type": "code"}
            gradebook.add_grade_cell(RING, "level-2", name, **add)
            gradebook.add_solution_cell("ring_all_reduce", "level-2", name)
            gradebook.add_source_cell(RING, "level-2", name, cell_type="code", source=CALL)
        for student, facts in PEOPLE.items():
            gradebook.add_student(student, **facts)
        for student, points in {"ada": 15.0, "b.ö": 20 / 3}.items():
            submission = gradebook.add_submission("week-3", student, timestamp="2026-11-30 12:00")
            grade = gradebook.find_grade(RING, "level-2", "week-3", student)
            grade.auto_score, grade.needs_manual_grade = points, False
        submission.notebooks[0].late_submission_penalty = 2
        submission.timestamp += timedelta(days=2)
        comment = gradebook.find_comment("ring_all_reduce", "level-2", "week-3", "ada")
        comment.manual_comment = "=Neat,\nbut <slow>"
        gradebook.db.commit()


def book(folder: Path) -> Gradebook:
    directory = course_directory(folder)
    return Gradebook(directory.db_url, directory.course_id)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What exporters say while they write."""
    handler = logging.StreamHandler(io.StringIO())
    get_logger().addHandler(handler)
    yield handler.stream
    get_logger().removeHandler(handler)


def table(course: Path, kind: type[Table], **settings: Any) -> list[list[str]]:
    """The rows of the file that the exporter writes."""
    exporter = kind(config=Config({kind.__name__: settings}))
    exporter.to = str(course / "out.csv")
    with book(course) as gradebook:
        exporter.export(gradebook)
    return rows(course / "out.csv")


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.proof
def test_canvas(course: Path) -> None:
    assert table(course, Canvas, section="Monday") == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "week-3", "week-4"],
        ["    Points Possible", "", "", "", "", "20", "20"],
        ["nobody", "4711", "", "nobody", "Monday", "", ""],
        ["'@SUM(1;2), - +cmd|' /C calc'!A0", "", "", "'=1+1", "Monday", "", ""],
        ["Lovelace, Ada", "", "", "ada", "Monday", "15", ""],
        ['O"Brien, Jr., Björk ✓', "", "", "b.ö", "Monday", "4.67", ""],
    ]


@pytest.mark.proof
def test_moodle_finds_students_by_one_column_that_is_never_empty(
    course: Path, logged: io.StringIO
) -> None:
    by_name = table(course, Moodle)
    assert by_name[0] == ["Username", "First name", "Last name", "week-3", "week-4"]
    assert [row[0] for row in by_name[1:]] == ["nobody", "'=1+1", "ada", "b.ö"]
    assert by_name[3] == ["ada", "Ada", "Lovelace", "15", ""]
    by_mail = table(course, Moodle, identify="email")
    assert [row[0] for row in by_mail] == [
        "Email address",
        "n@example.org",
        "ada@example.org",
        "b@example.org",
    ]
    assert "=1+1 has no Email address here and is left out" in logged.getvalue()
    assert [row[0] for row in table(course, Moodle, identify="idnumber")] == ["ID number", "4711"]


def test_moodle_takes_addresses_where_all_have_one(course: Path) -> None:
    with book(course) as gradebook:
        gradebook.update_or_create_student("=1+1", email="x@example.org")
    assert table(course, Moodle)[0][0] == "Email address"


def test_moodle_with_feedback(course: Path) -> None:
    head, _, _, ada, _ = table(course, Moodle, feedback=True)
    assert head[3:] == ["week-3", "week-3 (feedback)", "week-4", "week-4 (feedback)"]
    assert ada[3:] == [
        "15",
        "ring_all_reduce: 15 of 20 points. =Neat, but &lt;slow&gt;",
        "",
        "",
    ]


def test_plain_has_a_row_for_each_student_and_part(course: Path) -> None:
    head, *found = table(course, Plain)
    facts = [dict(zip(head, row, strict=True)) for row in found]
    assert [(one["student_id"], one["assignment"], one["part"]) for one in facts] == [
        ("ada", "week-3", "01/ring_all_reduce"),
        ("b.ö", "week-3", "01/ring_all_reduce"),
    ]
    assert facts[1]["last_name"] == 'O"Brien, Jr.'
    assert facts[1]["score"] == "6.67"
    assert facts[1]["late_penalty_of_notebook"] == "2"
    assert facts[1]["submitted"] == "2026-12-02 12:00:00"
    assert facts[0]["needs_manual_grade"] == "no"
    assert not [name for name in head if name.startswith("criterion")]


def test_plain_has_the_criteria_that_were_judged(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    criteria = (
        Criterion("result", 3, 3, "ok", "right"),
        Criterion("=bytes", 2.5, 0, "lost", "too many"),
    )
    part = PartVerdict("01/ring_all_reduce", RING, 15, 20, 7, criteria)
    record = verdicts.Record(
        assignment="week-3",
        student="ada",
        key="key",
        seed=7,
        version="0.1.0",
        seconds=1.0,
        cell_seconds=0.5,
        notebooks={"level-2": (part,)},
    )
    verdicts.write(course, record)
    exporter = Plain()
    exporter.to = "out.csv"
    monkeypatch.chdir(course)
    with book(course) as gradebook:
        exporter.export(gradebook)
    head, ada, other = rows(course / "out.csv")
    assert head[-2:] == ["criterion: result", "criterion: '=bytes"]
    assert (ada[-2:], other[-2:]) == (["3", "0"], ["", ""])


def test_plain_is_read_as_utf_8_by_spreadsheets(course: Path) -> None:
    table(course, Plain)
    assert (course / "out.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    table(course, Canvas)
    assert (course / "out.csv").read_bytes().startswith(b"Student,")


@pytest.mark.parametrize("kind", [Canvas, Moodle, Plain])
def test_no_cell_begins_a_formula(course: Path, kind: type[Table]) -> None:
    with book(course) as gradebook:
        gradebook.add_submission("week-3", "=1+1")
        gradebook.add_assignment("-2+3", duedate="2026-12-02 18:00")
        gradebook.find_student("ada").first_name = "Ada;=cmd"
        gradebook.db.commit()
    for row in table(course, kind, **({"feedback": True} if kind is Moodle else {})):
        for cell in row:
            for piece in cell.split(";"):
                assert not piece.lstrip().startswith(("=", "+", "-", "@")), row


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Ada", "Ada"),
        (None, ""),
        ("=1+1", "'=1+1"),
        ("  @SUM(A1)", "'@SUM(A1)"),
        ("\t\r\n=1", "'=1"),
        ("\x00-1+2", "'-1+2"),
        ("＝1+1", "'＝1+1"),
        ("a;=1", "a;'=1"),
        ("two\nlines", "two lines"),
        ("-1.5", "-1.5"),
        ("-1.5-2", "'-1.5-2"),
        ("Müller-Lüdenscheidt", "Müller-Lüdenscheidt"),
        ("李", "李"),
    ],
)
def test_a_text_becomes_no_formula(text: str | None, shown: str) -> None:
    assert safe_text(text) == shown


@pytest.mark.parametrize(
    ("points", "shown"),
    [(None, ""), (0.0, "0"), (20.0, "20"), (7.5, "7.5"), (20 / 3, "6.67"), (100.0, "100")],
)
def test_points_are_short(points: float | None, shown: str) -> None:
    assert number(points) == shown


def test_a_missing_grade_may_be_exported_as_0(course: Path) -> None:
    assert [row[-1] for row in table(course, Canvas, missing="0")[2:]] == ["0"] * 4


def test_one_assignment_and_some_students(course: Path) -> None:
    exporter = Canvas()
    exporter.to, exporter.assignment = str(course / "out.csv"), ["week-4"]
    exporter.student = ["ada"]
    with book(course) as gradebook:
        exporter.export(gradebook)
        head, _, *students = rows(course / "out.csv")
        assert head[5:] == ["week-4"]
        assert [row[3] for row in students] == ["ada"]
        exporter.assignment = ["week-5"]
        with pytest.raises(DtlabError, match="no assignment 'week-5'.*week-3, week-4"):
            exporter.export(gradebook)


def test_the_export_warns_of_what_the_platform_ignores(course: Path, logged: io.StringIO) -> None:
    with book(course) as gradebook:
        gradebook.add_assignment("Final Grade", duedate="2026-12-02 18:00")
        grade = gradebook.find_grade(RING, "level-2", "week-3", "ada")
        grade.needs_manual_grade = True
        gradebook.db.commit()
    table(course, Canvas)
    assert "Canvas ignores Final Grade" in logged.getvalue()
    assert "week-3 of ada is not graded in full" in logged.getvalue()
    assert "'=1+1' could be a formula" in logged.getvalue()


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.parametrize("wrong", [False, True])
def test_nbgraders_command_takes_them(course: Path, wrong: bool) -> None:
    command = [sys.executable, "-m", "nbgrader", "export"]
    command += ["--exporter", "dtlab.classroom.export.Moodle", "--to", "moodle.csv"]
    command += ["--Moodle.feedback=True", "--assignment", "week-5" if wrong else "week-3"]
    done = subprocess.run(command, cwd=course, capture_output=True, text=True, check=False)
    assert done.returncode == wrong, done.stderr
    if wrong:
        assert "no assignment 'week-5' in the gradebook. It has: week-3, week-4." in done.stderr
        assert "Traceback" not in done.stderr
        assert not (course / "moodle.csv").exists()
    else:
        assert rows(course / "moodle.csv")[0][3:] == ["week-3", "week-3 (feedback)"]
