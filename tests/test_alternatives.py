"""Right answers that are written differently and handed in as notebooks: all get all points.

An assignment of each unit has those parts that ask for a function, and of which three right
answers are known; three students hand in one each, and `dtlab grade` judges them in the sandbox.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from dtlab.checks import known_parts
from dtlab.checks.functions.checks import Check
from dtlab.classroom.command import grade
from dtlab.classroom.releases.release import release_assignment
from dtlab.classroom.settings import course_directory
from tests.known_answers import Answers, answers_of

pytestmark = pytest.mark.proof
STUDENTS, NAME = ("ada", "bob", "cyd"), "week-1"


def alternatives(unit: str) -> list[Answers]:
    """The parts of a unit with three right answers that a cell can define."""
    found = [answers_of(part) for part in known_parts() if part.unit == unit]
    return [
        one
        for one in found
        if one is not None
        and type(one.part.check).run is Check.run
        and len(one.right) >= len(STUDENTS)
    ]


UNITS = sorted({part.unit for part in known_parts()})


def hand_in(folder: Path, number: int, parts: Sequence[Answers]) -> None:
    place = folder / "submitted" / STUDENTS[number] / NAME
    shutil.copytree(folder / "release" / NAME, place)
    for path in place.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        cells = {cell.id: cell for cell in notebook.cells}
        for one in parts:
            if one.part.answer_id in cells:
                cells[one.part.answer_id].source = one.cells[one.right[number].__name__]
        path.chmod(0o644)
        nbformat.write(notebook, path)


@pytest.mark.parametrize("unit", UNITS)
def test_three_right_answers_of_each_part_keep_all_points(unit: str, tmp_path: Path) -> None:
    parts = alternatives(unit)
    folder = tmp_path / "course"
    names = ",".join(one.part.name for one in parts)
    assert list(release_assignment(unit, parts=names, name=NAME, course=folder))
    for number in range(len(STUDENTS)):
        hand_in(folder, number, parts)
    assert grade(NAME, course=folder)
    directory = course_directory(folder)
    with Gradebook(directory.db_url, directory.course_id) as book:
        lost = {
            (student, cell.name, one.right[number].__name__): cell.auto_score
            for number, student in enumerate(STUDENTS)
            for notebook in book.find_submission(NAME, student).notebooks
            for cell in notebook.grades
            for one in parts
            if one.part.grade_id == cell.name and cell.auto_score != one.part.points
        }
    assert lost == {}


def test_they_are_of_twenty_parts_or_more() -> None:
    assert sum(len(alternatives(unit)) for unit in UNITS) >= 20
