"""The instructor's own answers keep all points in a class that is graded four at a time.

Graded ranks are in a sandbox, without the judges, beside those of other submissions: what passes
in a notebook may fail there. `make proof` grades every unit so.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest

from dtlab.grading.assignments.release import release_assignment
from dtlab.grading.classroom.grade import Grading
from dtlab.grading.classroom.submissions import Assignment, handed_in
from dtlab.grading.settings import course_directory
from tests.a_class import NAME, ROOT, keep_path

SOLUTIONS = ROOT / "solutions"
UNITS = sorted(path.name[:2] for path in SOLUTIONS.iterdir() if re.match(r"\d\d_", path.name))
CLASS, JOBS = 4, 4


def hand_in_solutions(course: Path, unit: str) -> Assignment:
    """Releases a whole unit, and hands in its solutions for each of the class."""
    list(release_assignment(unit, name=NAME, course=course))
    assignment = Assignment.of(course_directory(course), NAME)
    for level, notebook in assignment.notebooks.items():
        (path,) = SOLUTIONS.glob(f"{unit}_*/level-{level[-1]}.ipynb")
        answers = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
        for number in range(CLASS):
            folder = course / "submitted" / f"s{number}" / NAME
            folder.mkdir(parents=True, exist_ok=True)
            filled = deepcopy(notebook)
            for cell in filled.cells:
                if cell.metadata.get("nbgrader", {}).get("solution"):
                    cell.source = answers.get(cell.id, cell.source)
                if cell.id == "learner":
                    cell.source += f"\nlearner = 's{number}'"
            nbformat.write(filled, folder / f"{level}.ipynb")
    return assignment


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("unit", UNITS)
def test_the_solutions_keep_all_points(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_path(monkeypatch)
    course = tmp_path / "course"
    assignment = hand_in_solutions(course, unit)
    directory = course_directory(course)
    lost, graded = [], 0
    grading = Grading(directory, assignment, jobs=JOBS)
    for outcome in grading.run(handed_in(directory, NAME, "*")):
        assert outcome.record is not None, outcome
        verdicts = outcome.record.parts.values()
        graded += len(verdicts) > 0
        lost += [
            (outcome.student, verdict.part, criterion.name, criterion.message)
            for verdict in verdicts
            for criterion in verdict.criteria
            if criterion.status != "ok"
        ]
    assert lost == []
    assert graded == CLASS
