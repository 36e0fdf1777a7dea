"""A written defence: from the part to nbgrader's manual grading, and back without a loss."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.apps import NbGraderAPI

import dtlab
from dtlab.checks import find_part, known_parts
from dtlab.checks.course import REPOSITORY, Course
from dtlab.checks.functions.defences import Defence
from dtlab.checks.parts import Part
from dtlab.checks.progress import Lesson, Progress, Row, Unit
from dtlab.classroom import grade
from dtlab.classroom.grade import Outcome
from dtlab.classroom.lines import line, summary
from dtlab.classroom.notebooks import normalise
from dtlab.classroom.plugins import released_source
from dtlab.classroom.releases.cutting import cut
from dtlab.classroom.releases.release import release_assignment
from dtlab.classroom.verdicts import Record
from dtlab.errors import DtlabError
from tests.a_class import NAME, Class, Kept, keep_path

RUBRIC = ((2, "the number that decided"), (1.5, "what if"))
PART = Part("05/why", 3, "Why", 15, 2, Defence(RUBRIC))
FORM = "**Decided by:**\n\n### BEGIN SOLUTION\n93.6 GB.\n### END SOLUTION\n\n**Else:**"
REAL = "05/defence"


# The part ---------------------------------------------------------------------------------------


def test_a_defence_is_graded_in_the_cell_that_is_filled_in() -> None:
    assert PART.by_hand
    assert (PART.points, PART.answer_id, PART.grade_id, PART.call) == (3.5, "why", "why", "")
    assert isinstance(PART.check, Defence)
    assert PART.check.rows == ["| 2 | the number that decided |", "| 1.5 | what if |"]
    assert not find_part("01/step").by_hand


def test_the_rubric_to_click_on_counts_what_the_cell_counts() -> None:
    assert isinstance(PART.check, Defence)
    form = PART.check.form(7)
    assert re.findall('data-points="(.+?)"> (.+?): <span>(.+?)<', form) == [
        ("4", "4", "the number that decided"),
        ("3", "3", "what if"),
    ]
    assert "&lt;b&gt;" in Defence(((1, "<b>"),)).form(1)


def test_check_says_that_a_defence_is_graded_by_hand() -> None:
    with pytest.raises(DtlabError, match="defence is graded by hand, so there is nothing to"):
        dtlab.check(REAL, "because")
    with pytest.raises(DtlabError, match="not for values drawn from your id"):
        dtlab.ask(REAL, "ada")


def test_progress_says_by_hand_and_is_not_held_up() -> None:
    parts = [part for part in known_parts() if part.unit == "05"]
    rows = [Row(part, None if part.by_hand else 1.0) for part in parts]
    shown = Progress([Unit(Lesson("05", "05 ZeRO and FSDP"), rows)], only="05")
    assert f"  by hand  {REAL}  " in str(shown)
    required = [part for part in parts if not part.by_hand and not part.stretch]
    points = sum(part.points for part in required)
    assert f"05 ZeRO and FSDP  ██████████ {points:g} of {points:g} points" in str(shown)
    assert shown.next is None
    assert str(shown).endswith("Every exercise in unit 05 is passed.")


# Notebooks --------------------------------------------------------------------------------------


def asking() -> NotebookNode:
    return new_notebook(
        cells=[
            new_markdown_cell("# Title", id="title"),
            new_markdown_cell(
                "## Part 1\n\n*3.5 points · 15 minutes · difficulty ●●○*\n\n"
                "| points | |\n|---|---|\n| 2 | the number that decided |",
                id="why-text",
            ),
            new_markdown_cell(FORM, id="why"),
        ]
    )


def test_nbgraders_metadata_are_those_of_a_manually_graded_answer() -> None:
    notebook = asking()
    normalise(notebook, [PART])
    assert notebook.cells[2].metadata.nbgrader == {
        "grade": True, "grade_id": "why", "locked": False, "points": 3.5,
        "schema_version": 3, "solution": True, "task": False,
    }  # fmt: skip
    assert "nbgrader" not in notebook.cells[1].metadata


def test_what_is_handed_out_has_room_to_write_and_no_answer() -> None:
    assert released_source(FORM) == "**Decided by:**\n\n\n**Else:**"


def test_a_defence_in_a_code_cell_or_without_a_form_is_refused() -> None:
    notebook = asking()
    notebook.cells[2] = new_code_cell(FORM, id="why")
    with pytest.raises(DtlabError, match="'why' is graded by hand, so it must be Markdown"):
        normalise(notebook, [PART], name="x")
    notebook = asking()
    notebook.cells[2].source = "93.6 GB decided."
    with pytest.raises(DtlabError, match="'why' has no ### BEGIN SOLUTION"):
        normalise(notebook, [PART], name="x")
    notebook.cells.pop()
    with pytest.raises(DtlabError, match="has no cell that is filled in; its id would be 'why'"):
        normalise(notebook, [PART], name="x")


def test_an_assignment_may_give_it_another_weight() -> None:
    notebook = asking()
    normalise(notebook, [PART])
    text, answer = cut(notebook, [PART], {"05/why": 7}, {}).cells[1:]
    assert "*7 points · 15 minutes" in text.source
    assert "The table counts 3.5 points; they give 7 points in this assignment" in text.source
    assert (answer.metadata.nbgrader.points, answer.source) == (7, FORM)


# What `dtlab grade` says ------------------------------------------------------------------------


def record(student: str) -> Record:
    return Record(NAME, student, "", 1, "1", 2.0, 1.0, {"level-3": ()})


def test_points_graded_by_hand_are_named_and_are_not_lost() -> None:
    waiting = (("defence", 5.0),)
    class_ = [
        Outcome("ada", record("ada"), waiting=waiting),
        Outcome("bob", record("bob"), record("bob"), skipped=True, waiting=waiting),
        Outcome("cyd", record("cyd")),
    ]
    assert line(class_[0], None).endswith("5 to be given by hand")
    assert "by hand" not in line(class_[2], None)
    told = list(summary(class_, "verdicts", None))
    place = told.index("To be graded by hand, in formgrader (no points are lost by it):")
    assert told[place + 1] == "  defence, 5 points: ada, bob"


# A class ----------------------------------------------------------------------------------------


class Defenders(Class):
    """A class that is asked for the defence of unit 05."""

    def __init__(self, folder: Path) -> None:
        if not folder.exists():
            list(release_assignment("05", parts=REAL, name=NAME, course=folder))
        super().__init__(folder)

    def says(self, student: str, text: str) -> None:
        """Hands in a defence; an empty text leaves the cell as released."""
        notebook = self.assignment.notebooks["05_level_3"]
        answer = next(one for one in notebook.cells if one.id == "defence")
        answer.source += text
        folder = self.folder / "submitted" / student / NAME
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / "05_level_3.ipynb")

    def give(self, student: str, points: float) -> None:
        """Give points as an instructor does in formgrader."""
        with self.book() as book:
            row = book.find_grade("defence", "05_level_3", NAME, student)
            row.manual_score, row.needs_manual_grade = points, False
            book.db.commit()

    def total(self, student: str) -> float:
        with self.book() as book:
            return float(book.find_submission(NAME, student).score)


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    one = Kept(1)
    yield one
    one.engine.close()


@pytest.fixture
def group(tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Iterator[Defenders]:
    keep_path(monkeypatch)
    monkeypatch.setattr(grade, "engine_named", kept)
    made = Defenders(tmp_path / "course")
    made.says("ada", "\n\nStage 1 keeps 93.6 GB whole.")
    made.says("bob", "")
    monkeypatch.chdir(made.folder)
    yield made


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_instructors_points_stay_and_untouched_ones_are_none(group: Defenders) -> None:
    points = find_part(REAL).points
    first = group.grade()
    assert first["ada"].waiting == (("defence", points),)
    assert first["bob"].waiting == ()
    row = group.grades("ada")["defence"]
    assert (row["auto_score"], row["needs_manual_grade"], row["max_score"]) == (None, True, points)
    assert group.grades("bob")["defence"]["auto_score"] == 0  # nbgrader's own rule

    group.give("ada", 4)
    assert group.total("ada") == 4
    again = group.grade(again=True)["ada"]
    assert (again.waiting, again.by_hand) == ((), ("defence",))
    assert group.total("ada") == 4
    skipped = group.grade()
    assert all(one.skipped for one in skipped.values())

    group.says("ada", "\n\nStage 1 keeps 93.6 GB whole, stage 2 46.8.")
    assert group.grade()["ada"].by_hand == ("defence",)
    assert group.total("ada") == 4
    assert group.grades("ada")["defence"]["needs_manual_grade"]  # an instructor should look again


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nbgraders_own_autograde_leaves_it_for_the_instructor(group: Defenders) -> None:
    nbgrader = NbGraderAPI(coursedir=group.directory, config=group.directory.config)
    for force in (False, True):
        done = nbgrader.autograde(NAME, "ada", force=force)
        assert done["success"], done
        row = group.grades("ada")["defence"]
        assert (row["auto_score"], row["needs_manual_grade"]) == (None, True)
        assert group.total("ada") == (4 if force else 0)
        group.give("ada", 4)
    notebook = nbformat.read(group.autograded("ada", "05_level_3"), as_version=4)
    answer = next(one for one in notebook.cells if one.id == "defence")
    assert "93.6 GB" in answer.source


@pytest.mark.proof
@pytest.mark.slow
def test_the_release_has_only_the_defence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_path(monkeypatch)
    made = Defenders(tmp_path / "course")
    notebook = made.assignment.notebooks["05_level_3"]
    graded = [one for one in notebook.cells if one.metadata.get("nbgrader", {}).get("grade")]
    assert [one.id for one in graded] == ["defence"]
    assert graded[0].metadata.nbgrader.cell_type == "markdown"
    assert graded[0].metadata.get("editable", True)
    assert Course(REPOSITORY).level(find_part(REAL)).name == "level-3.ipynb"
