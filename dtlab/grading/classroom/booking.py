"""Writes results into nbgrader's gradebook, as autograde does, without running the cells.

    judged notebooks ──► nbgrader's steps, in memory ──► autograded/<student>/<assignment>/
                                                    └──► gradebook.db

Nothing is written elsewhere on the way, so that nothing is left where a run is killed.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties, ClearOutput, Execute
from nbgrader.utils import capture_log, find_all_files
from sqlalchemy.exc import SAWarning, SQLAlchemyError
from traitlets import TraitError

from dtlab.errors import DtlabError
from dtlab.grading.classroom.submissions import Assignment, Submission
from dtlab.grading.classroom.verdicts import Record
from dtlab.grading.judging.judge import part_of
from dtlab.grading.late import Lateness, LateRules, Rules, lateness
from dtlab.grading.settings import CONFIG

__all__ = ["Books"]


class Books:
    """The gradebook, and the folder autograded/, of one assignment."""

    def __init__(self, directory: CourseDirectory, assignment: Assignment) -> None:
        """Raises `DtlabError` where the gradebook cannot be used, or late rules make no sense."""
        self.directory, self.assignment = directory, assignment
        self._rules = _rules(directory, assignment.name)
        try:
            self._gradebook = Gradebook(directory.db_url, directory.course_id)
            self._gradebook.find_assignment(assignment.name)
        except MissingEntry as error:
            raise DtlabError(
                f"the gradebook ({directory.db_url}) does not know {assignment.name}. Make it "
                f"known: nbgrader generate_assignment {assignment.name} --force"
            ) from error
        except SQLAlchemyError as error:
            raise DtlabError(
                f"the gradebook ({directory.db_url}) cannot be used: {error}\nIf nbgrader was "
                "renewed, make a copy of it, and run: nbgrader db upgrade"
            ) from error
        self._clerk = _Clerk(coursedir=directory, config=directory.config)

    def close(self) -> None:
        """Close the gradebook."""
        self._gradebook.close()

    def book(
        self,
        submission: Submission,
        handed_at: datetime | None,
        judged: Mapping[str, NotebookNode],
        keep: Sequence[str] = (),
    ) -> None:
        """Books notebooks whose outputs are those of the judge; other notebooks stay.

        Below the graded cells of the parts in `keep`, what was there before stays. Raises
        `DtlabError` with nbgrader's own words where it fails.
        """
        for name, notebook in judged.items():
            if keep:
                _keep_outputs(notebook, self._autograded(submission.student, name), keep)
        self._clerk.prepare(self.assignment, submission, handed_at, judged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # of nbgrader's own, and harmless
            done = capture_log(self._clerk)
        if not done["success"]:
            told = done.get("log") or done.get("error", "")
            raise DtlabError(f"nbgrader could not book it:\n{str(told).strip()}")

    def has(self, record: Record) -> bool:
        """Whether what the record says is booked still."""
        found = self._submission(record.student)
        if found is None:
            return False
        grades = {(one.name, grade.name): grade for one in found.notebooks for grade in one.grades}
        for name, parts in record.notebooks.items():
            if not self._autograded(record.student, name).is_file():
                return False
            for part in parts:
                grade = grades.get((name, part.grade_id))
                score = None if grade is None else grade.auto_score
                if score is None or abs(score - part.score) > 1e-5:
                    return False
        return True

    def by_hand(self, student: str) -> list[str]:
        """The parts to which somebody has given points by hand."""
        found = self._submission(student)
        return [
            grade.name.removesuffix("-check")
            for notebook in (found.notebooks if found else ())
            for grade in notebook.grades
            if grade.manual_score is not None
        ]

    def waiting(self, student: str) -> tuple[tuple[str, float], ...]:
        """The parts that only a person can grade, and nobody has yet; the points of each.

        One that is as it was handed out has no points already, by nbgrader's own rule.
        """
        found = self._submission(student)
        return tuple(
            (grade.name, float(grade.max_score))
            for notebook in (found.notebooks if found else ())
            for grade in notebook.grades
            if grade.manual_score is None and grade.auto_score is None
        )

    def settle_late(self, student: str) -> tuple[Lateness, float] | None:
        """How late the work of a student came, and the points that this takes off, booked anew.

        An extension that was given since, and points given by hand, count that way.
        """
        found = self._submission(student)
        if found is None:
            return None
        late = lateness(found, self._rules or Rules())
        if self._rules is not None:
            for notebook in found.notebooks:
                points = late.points(notebook.score) if late and late.percent else None
                if notebook.late_submission_penalty != points:
                    notebook.late_submission_penalty = points
            self._gradebook.db.commit()
        return (late, float(found.late_submission_penalty or 0.0)) if late else None

    def _submission(self, student: str) -> SubmittedAssignment | None:
        self._gradebook.db.remove()  # others write too: nothing that was read before holds
        try:
            return self._gradebook.find_submission(self.assignment.name, student)
        except MissingEntry:
            return None

    def _autograded(self, student: str, notebook: str) -> Path:
        step, name = self.directory.autograded_directory, self.assignment.name
        return Path(self.directory.format_path(step, student, name), f"{notebook}.ipynb")


class _Clerk(Autograde):  # type: ignore[misc]
    """nbgrader's autograde, for notebooks in memory that have been run."""

    def __init__(self, **words: Any) -> None:
        super().__init__(**words)
        self.force = True
        steps = dict.fromkeys([*self.sanitize_preprocessors, *self.autograde_preprocessors])
        done = (ClearOutput, Execute)
        self.preprocessors = [one for one in steps if not issubclass(one, done)]

    def prepare(
        self,
        assignment: Assignment,
        submission: Submission,
        handed_at: datetime | None,
        judged: Mapping[str, NotebookNode],
    ) -> None:
        """What the next `start` is about."""
        self._submission, self._handed_at, self._judged = submission, handed_at, judged
        self._assignment = assignment
        self._whole = judged.keys() == assignment.notebooks.keys()

    def init_notebooks(self) -> None:
        """Instead of what matches a pattern: what was judged."""
        source = self._format_source(self._assignment.name, self._submission.student)
        self.assignments = {source: [f"{source}/{name}.ipynb" for name in self._judged]}

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        """Takes away what was there, save for notebooks that are not booked anew."""
        folder = Path(self._format_dest(assignment_id, student_id))
        if self._whole and folder.exists():
            shutil.rmtree(folder)
        for name in self._judged:
            (folder / f"{name}.ipynb").unlink(missing_ok=True)
        return True

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        """Student and submission in the gradebook; what goes along with the notebooks."""
        when = {"timestamp": self._handed_at.replace(tzinfo=None)} if self._handed_at else {}
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook:
            if self.create_student:
                gradebook.update_or_create_student(student_id)
            gradebook.update_or_create_submission(assignment_id, student_id, **when)
        folder = Path(self._format_dest(assignment_id, student_id))
        folder.mkdir(parents=True, exist_ok=True)
        for path in self._submission.beside(self.coursedir.max_file_size * 1000):
            _copy(self._submission.folder / path, folder / path)
        source = self.coursedir.format_path(self.coursedir.source_directory, ".", assignment_id)
        learners = self.exclude_overwriting.get(assignment_id, [])
        own = {os.path.join(source, name) for name in learners}
        for file in find_all_files(source, [*self.coursedir.ignore, "*.ipynb"]):
            if file not in own:
                _copy(Path(file), folder / os.path.relpath(file, source))

    def convert_single_notebook(self, notebook_filename: str) -> None:
        """All steps at once: what they read is in memory."""
        resources = self.init_single_notebook_resources(notebook_filename)
        notebook = self._judged[resources["nbgrader"]["notebook"]]
        output, resources = self.exporter.from_notebook_node(notebook, resources)
        self.write_single_notebook(output, resources)


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.unlink(missing_ok=True)  # what nbgrader has written there is for reading only
    shutil.copy(file, to)


def _keep_outputs(notebook: NotebookNode, old: Path, parts: Sequence[str]) -> None:
    """Puts back what stood below the graded cells of some parts, if it can be read."""
    try:
        there = {cell.get("id"): cell for cell in nbformat.read(old, as_version=4).cells}
    except (OSError, ValueError, AttributeError):
        return
    for cell in notebook.cells:
        part = part_of(cell)
        if part and part.name in parts and there.get(cell.id, {}).get("outputs"):
            cell.outputs = deepcopy(there[cell.id].outputs)
            cell.execution_count = there[cell.id].execution_count


def _rules(directory: CourseDirectory, assignment: str) -> Rules | None:
    """dtlab's rules for late work, None where the course has others."""
    try:
        plugin = AssignLatePenalties(config=directory.config).plugin_class(config=directory.config)
    except TraitError as error:
        raise DtlabError(f"late work, in the course's {CONFIG}: {error}") from error
    ours = isinstance(plugin, LateRules) and plugin.penalty_method == "none"
    return plugin.rules(assignment) if ours else None
