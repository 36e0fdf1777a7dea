"""A class in a temporary folder: an assignment, its submissions, and the results of grading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Grade, Gradebook

from dtlab.classroom import verdicts
from dtlab.classroom.grade import Grading, Outcome
from dtlab.classroom.releases.release import release_assignment
from dtlab.classroom.settings import course_directory
from dtlab.classroom.submissions import Assignment, handed_in
from dtlab.classroom.verdicts import Record
from dtlab.classroom.workers.engines import LocalEngine
from dtlab.classroom.workers.tasks import Done, Task

ROOT = Path(__file__).parent.parent
SOLUTIONS = ROOT / "solutions" / "01_ranks_and_collectives"
NAME = "week-1"
QUICK = "01/step,01/averages"  # of Level I, which is judged quickly


class Class:
    """A course folder with one assignment."""

    def __init__(self, folder: Path, parts: str = QUICK, due: str | None = None) -> None:
        self.folder = folder
        if not folder.exists():
            list(release_assignment("01", parts=parts, name=NAME, due=due, course=folder))
        self.directory = course_directory(folder)
        self._processes: list[subprocess.Popen[str]] = []

    @property
    def assignment(self) -> Assignment:
        return Assignment.of(self.directory, NAME)

    def solved(self, student: str, level: str = "01_level_1", *but: str) -> NotebookNode:
        """The instructor's answers, save for some parts, and the student's id."""
        notebook = self.assignment.notebooks[level]
        solution = nbformat.read(SOLUTIONS / f"level-{level[-1]}.ipynb", as_version=4)
        answers = {cell.id: cell.source for cell in solution.cells}
        for cell in notebook.cells:
            if cell.metadata.get("nbgrader", {}).get("solution") and cell.id not in but:
                cell.source = answers[cell.id]
            if cell.id == "learner":
                cell.source += f"\nlearner = {student!r}"
        return notebook

    def hand_in(self, student: str, *but: str, when: str = "") -> Path:
        """Hands in all notebooks, solved except for some parts; returns the folder."""
        folder = self.folder / "submitted" / student / NAME
        folder.mkdir(parents=True, exist_ok=True)
        for level in self.assignment.notebooks:
            nbformat.write(self.solved(student, level, *but), folder / f"{level}.ipynb")
        if when:
            (folder / "timestamp.txt").write_text(when)
        return folder

    def grade(self, students: str = "*", **words: Any) -> dict[str, Outcome]:
        """Grades in this process."""
        grading = Grading(self.directory, self.assignment, **words)
        done = grading.run(handed_in(self.directory, NAME, students))
        return {outcome.student: outcome for outcome in done}

    def command(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Starts `dtlab grade` as a separate process."""
        told: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(
            [sys.executable, "-m", "dtlab", "grade", NAME, *words], cwd=self.folder,
            start_new_session=True, **(told | options),
        )  # fmt: skip
        self._processes.append(process)
        return process

    def end_processes(self) -> None:
        """Ends the processes that a failed test has left."""
        for process in self._processes:
            with process:
                process.kill()

    def book(self) -> Gradebook:
        return Gradebook(self.directory.db_url, self.directory.course_id)

    def grades(self, student: str) -> dict[str, Grade]:
        """The rows of a student's grades in the gradebook, by graded cell."""
        with self.book() as book:
            found = book.find_submission(NAME, student)
            return {
                grade.name.removesuffix("-check"): grade.to_dict()
                | {"auto_score": grade.auto_score, "manual_score": grade.manual_score}
                for notebook in found.notebooks
                for grade in notebook.grades
            }

    def points(self, student: str) -> dict[str, float]:
        return {name: grade["auto_score"] for name, grade in self.grades(student).items()}

    def record(self, student: str) -> Record:
        found = verdicts.read(self.folder, NAME, student)
        assert found is not None
        return found

    def autograded(self, student: str, level: str = "01_level_1") -> Path:
        return self.folder / "autograded" / student / NAME / f"{level}.ipynb"

    def outputs(self, student: str, part: str, level: str = "01_level_1") -> str:
        """The outputs of a graded cell, as they are in the file."""
        notebook = json.loads(self.autograded(student, level).read_text())
        cells = {cell["id"]: cell for cell in notebook["cells"]}
        return json.dumps(cells[f"{part}-check"]["outputs"])


class Kept:
    """An engine that stays open between runs, so that tests wait for a server only once."""

    def __init__(self, jobs: int = 2) -> None:
        self.engine = LocalEngine(jobs, lambda *_: None)
        self.capacity = jobs
        self.tasks: list[Task] = []

    def __call__(self, *_: object) -> Kept:
        return self

    def submit(self, task: Task) -> Future[Done]:
        self.tasks.append(task)
        return self.engine.submit(task)

    def close(self) -> None:
        """Does nothing, because the engine stays open."""


def judged(tasks: Sequence[Task]) -> list[str]:
    """The students whose work was judged, in order of names."""
    return sorted(task.student for task in tasks)


def without_seconds(record: Record) -> list[tuple[Any, ...]]:
    """The fields of a verdict that must be equal when judging is repeated."""
    return [
        (name, part.part, part.grade_id, part.score, part.max_score, part.seed, part.criteria)
        for name, parts in record.notebooks.items()
        for part in parts
    ]


def keep_path(patch: Any) -> None:
    """The settings of a course change PATH; a test puts it back."""
    patch.setenv("PATH", os.environ["PATH"])
