"""Writes results into nbgrader's gradebook, as autograde does, without running the cells.

    judged notebooks ──► nbgrader's steps, in memory ──► autograded/<student>/<assignment>/
                                                    └──► gradebook.db

No other files are written, so that a run that is killed leaves none behind.
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

from dtlab.classroom.judging.judge import part_of
from dtlab.classroom.late import Lateness, LateRules, Rules, lateness
from dtlab.classroom.settings import CONFIG
from dtlab.classroom.submissions import Assignment, Submission
from dtlab.classroom.verdicts import Record
from dtlab.errors import DtlabError

__all__ = ["Books"]

_TIME = "timestamp.txt"  # nbgrader's file with the time of a submission


class Books:
    """The gradebook, and the folder autograded/, of one assignment."""

    def __init__(self, directory: CourseDirectory, assignment: Assignment) -> None:
        """Raises `DtlabError` if the gradebook cannot be used or the late rules are invalid."""
        self.directory, self.assignment = directory, assignment
        self._rules = _rules(directory, assignment.name)
        try:
            self._gradebook = Gradebook(directory.db_url, directory.course_id)
            self._gradebook.find_assignment(assignment.name)
        except MissingEntry as error:
            raise DtlabError(
                f"the gradebook ({directory.db_url}) has no assignment {assignment.name}. Add it: "
                f"nbgrader generate_assignment {assignment.name} --force"
            ) from error
        except SQLAlchemyError as error:
            raise DtlabError(
                f"the gradebook ({directory.db_url}) cannot be used: {error}\nIf nbgrader was "
                "updated, copy the gradebook, and run: nbgrader db upgrade"
            ) from error
        self._clerk = _Clerk(coursedir=directory, config=directory.config)

    def close(self) -> None:
        """Closes the gradebook."""
        self._gradebook.close()

    def book(
        self,
        submission: Submission,
        handed_at: datetime | None,
        judged: Mapping[str, NotebookNode],
        keep: Sequence[str] = (),
    ) -> None:
        """Books the judged notebooks with their outputs; other notebooks stay unchanged.

        The graded cells of the parts in `keep` get back their previous outputs. Raises
        `DtlabError` with nbgrader's message if nbgrader fails.
        """
        for name, notebook in judged.items():
            if keep:
                _keep_outputs(notebook, self._autograded(submission.student, name), keep)
        self._clerk.prepare(self.assignment, submission, handed_at, judged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # nbgrader causes this harmless warning
            result = capture_log(self._clerk)
        if not result["success"]:
            log = result.get("log") or result.get("error", "")
            raise DtlabError(f"nbgrader could not book the submission:\n{str(log).strip()}")

    def has(self, record: Record) -> bool:
        """Whether the gradebook and the folder still have the scores of a record."""
        submission = self._submission(record.student)
        if submission is None:
            return False
        grades = {
            (notebook.name, grade.name): grade
            for notebook in submission.notebooks
            for grade in notebook.grades
        }
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
        """Returns the parts to which a grader has given points by hand."""
        submission = self._submission(student)
        return [
            grade.name.removesuffix("-check")
            for notebook in (submission.notebooks if submission else ())
            for grade in notebook.grades
            if grade.manual_score is not None
        ]

    def waiting(self, student: str) -> tuple[tuple[str, float], ...]:
        """Returns the parts that a person must still grade, with the points of each.

        nbgrader already gives 0 points to a cell that the learner has not changed.
        """
        submission = self._submission(student)
        return tuple(
            (grade.name, float(grade.max_score))
            for notebook in (submission.notebooks if submission else ())
            for grade in notebook.grades
            if grade.manual_score is None and grade.auto_score is None
        )

    def settle_late(self, student: str) -> tuple[Lateness, float] | None:
        """Books the late penalty of a student again; returns the lateness and the penalty.

        This accounts for extensions and points by hand that were entered after the last run.
        """
        submission = self._submission(student)
        if submission is None:
            return None
        late = lateness(submission, self._rules or Rules())
        if self._rules is not None:
            for notebook in submission.notebooks:
                points = late.points(notebook.score) if late and late.percent else None
                if notebook.late_submission_penalty != points:
                    notebook.late_submission_penalty = points
            self._gradebook.db.commit()
        return (late, float(submission.late_submission_penalty or 0.0)) if late else None

    def _submission(self, student: str) -> SubmittedAssignment | None:
        self._gradebook.db.remove()  # drops cached rows, since other processes write too
        try:
            return self._gradebook.find_submission(self.assignment.name, student)
        except MissingEntry:
            return None

    def _autograded(self, student: str, notebook: str) -> Path:
        step, name = self.directory.autograded_directory, self.assignment.name
        return Path(self.directory.format_path(step, student, name), f"{notebook}.ipynb")


class _Clerk(Autograde):  # type: ignore[misc]
    """nbgrader's autograde, for executed notebooks in memory."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.force = True
        steps = dict.fromkeys([*self.sanitize_preprocessors, *self.autograde_preprocessors])
        skipped = (ClearOutput, Execute)
        self.preprocessors = [step for step in steps if not issubclass(step, skipped)]

    def prepare(
        self,
        assignment: Assignment,
        submission: Submission,
        handed_at: datetime | None,
        judged: Mapping[str, NotebookNode],
    ) -> None:
        """Sets the submission and the notebooks for the next `start`."""
        self._submission, self._handed_at, self._judged = submission, handed_at, judged
        self._assignment = assignment
        self._whole = judged.keys() == assignment.notebooks.keys()

    def init_notebooks(self) -> None:
        """Selects the judged notebooks, and not the files that match a pattern."""
        source = self._format_source(self._assignment.name, self._submission.student)
        self.assignments = {source: [f"{source}/{name}.ipynb" for name in self._judged]}

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        """Removes old files, except notebooks that are not booked again."""
        folder = Path(self._format_dest(assignment_id, student_id))
        if self._whole and folder.exists():
            shutil.rmtree(folder)
        for name in self._judged:
            (folder / f"{name}.ipynb").unlink(missing_ok=True)
        return True

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        """Adds student and submission to the gradebook; copies the files next to the notebooks."""
        stored = (self._submission.folder / _TIME).is_file()
        naive = self._handed_at.replace(tzinfo=None) if self._handed_at else None
        # An unreadable time replaces that of an earlier submission, so that nothing is deducted.
        when = {"timestamp": naive} if stored or naive else {}
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook:
            if self.create_student:
                gradebook.update_or_create_student(student_id)
            gradebook.update_or_create_submission(assignment_id, student_id, **when)
        folder = Path(self._format_dest(assignment_id, student_id))
        folder.mkdir(parents=True, exist_ok=True)
        for path in self._submission.beside(self.coursedir.max_file_size * 1000):
            _copy(self._submission.folder / path, folder / path)
        if stored:  # in nbgrader's form, since its own commands read other forms wrongly
            (folder / _TIME).unlink(missing_ok=True)
            (folder / _TIME).write_text(f"{naive:%Y-%m-%d %H:%M:%S.%f} UTC" if naive else "")
        source = self.coursedir.format_path(self.coursedir.source_directory, ".", assignment_id)
        learners = self.exclude_overwriting.get(assignment_id, [])
        excluded = {os.path.join(source, name) for name in learners}
        for file in find_all_files(source, [*self.coursedir.ignore, "*.ipynb"]):
            if file not in excluded:
                _copy(Path(file), folder / os.path.relpath(file, source))

    def convert_single_notebook(self, notebook_filename: str) -> None:
        """Runs all preprocessors in one pass, since the notebook is in memory."""
        resources = self.init_single_notebook_resources(notebook_filename)
        notebook = self._judged[resources["nbgrader"]["notebook"]]
        output, resources = self.exporter.from_notebook_node(notebook, resources)
        self.write_single_notebook(output, resources)


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.unlink(missing_ok=True)  # nbgrader makes the files there read-only
    shutil.copy(file, to)


def _keep_outputs(notebook: NotebookNode, old: Path, parts: Sequence[str]) -> None:
    """Restores the outputs of the graded cells of some parts, if the old notebook is readable."""
    try:
        cells = {cell.get("id"): cell for cell in nbformat.read(old, as_version=4).cells}
    except (OSError, ValueError, AttributeError):
        return
    for cell in notebook.cells:
        part = part_of(cell)
        if part and part.name in parts and cells.get(cell.id, {}).get("outputs"):
            cell.outputs = deepcopy(cells[cell.id].outputs)
            cell.execution_count = cells[cell.id].execution_count


def _rules(directory: CourseDirectory, assignment: str) -> Rules | None:
    """Returns dtlab's rules for late work; None if the course uses a different plug-in."""
    try:
        plugin = AssignLatePenalties(config=directory.config).plugin_class(config=directory.config)
    except TraitError as error:
        raise DtlabError(f"{CONFIG} has invalid settings for late work: {error}") from error
    ours = isinstance(plugin, LateRules) and plugin.penalty_method == "none"
    return plugin.rules(assignment) if ours else None
