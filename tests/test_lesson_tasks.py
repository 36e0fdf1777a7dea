"""The tasks of the lessons: a right answer passes, and an untouched blank is open.

`lesson_answers/NN.py` has a right answer to each task of lesson NN: the functions of its blank
cell, below a line with the id of the cell. The rest of the cell stays as the lesson has it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

import dtlab
from dtlab.checks.course import Course
from dtlab.checks.report import Report
from tests.test_busy_machine import cells_for

ROOT = Path(__file__).parent.parent
ANSWERS = sorted((Path(__file__).parent / "lesson_answers").glob("*.py"))


def cells_of(unit: str) -> list[NotebookNode]:
    course = Course(ROOT)
    return list(nbformat.read(ROOT / course.lesson(unit), as_version=4).cells)


def answers_of(unit: str) -> dict[str, str]:
    """The right functions, by the id of the blank cell."""
    text = (Path(__file__).parent / "lesson_answers" / f"{unit}.py").read_text(encoding="utf-8")
    parts = re.split(r"^# %% (\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def checks_of(unit: str) -> list[str]:
    """The ids of the cells that check a task."""
    return [c.id for c in cells_of(unit) if c.cell_type == "code" and "practice(" in c.source]


def filled(blank: str, answer: str) -> str:
    """The blank cell with the functions, or the class, of the answer in it."""
    given = {getattr(node, "name", "") for node in ast.parse(answer).body}
    body = ast.parse(blank).body
    kept = [ast.unparse(node) for node in body if getattr(node, "name", None) not in given]
    return "\n\n".join([answer, *kept])


def reports(unit: str, check: str, answers: dict[str, str]) -> Iterator[Report]:
    """The reports of a check cell, after the cells that it needs."""
    cells = cells_of(unit)
    for cell in cells:
        if cell.id in answers:
            cell.source = filled(cell.source, answers[cell.id])
    names: dict[str, Any] = {"dtlab": dtlab}
    *before, last = cells_for(cells, check)
    try:
        for cell in before:
            exec(compile(cell.source, cell.id, "exec"), names)
        for statement in ast.parse(last.source).body:
            if isinstance(statement, ast.Expr) and "practice(" in ast.unparse(statement):
                yield eval(compile(ast.Expression(statement.value), last.id, "eval"), names)
            else:
                exec(compile(ast.Module([statement], []), last.id, "exec"), names)
    finally:
        names.clear()  # functions refer to it, so a temporary folder in it would stay


TASKS = [
    pytest.param(path.stem, check, id=f"{path.stem}-{check}")
    for path in ANSWERS
    for check in checks_of(path.stem)
]


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("unit", "check"), TASKS)
def test_a_right_answer_passes(unit: str, check: str) -> None:
    for report in reports(unit, check, answers_of(unit)):
        assert report.passed, str(report)


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("unit", "check"), TASKS)
def test_an_untouched_blank_is_open(unit: str, check: str) -> None:
    for report in reports(unit, check, {}):
        assert {criterion.status for criterion in report.criteria} == {"open"}, str(report)


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_every_task_has_an_answer(path: Path) -> None:
    blanks = [cell.id for cell in cells_of(path.stem) if "YOUR CODE HERE" in cell.source]
    assert [*answers_of(path.stem)] == blanks
