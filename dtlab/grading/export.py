"""Grades as the CSV files that learning platforms take: plug-ins for `nbgrader export`.

    nbgrader export --exporter dtlab.grading.export.Canvas --to canvas.csv
    nbgrader export --exporter dtlab.grading.export.Moodle --to moodle.csv
    nbgrader export --exporter dtlab.grading.export.Plain  --to grades.csv

with nbgrader's own `--assignment` and `--student`; what is special to one of them is a setting, as
`--Moodle.feedback=True`. The formats are those that the platforms' importers read:
`lib/gradebook_importer.rb` of instructure/canvas-lms, and `grade/import/csv/classes/load_data.php`
of moodle/moodle. The interface is `nbgrader.plugins.ExportPlugin`.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nbgrader.api import Assignment, Grade, Gradebook, MissingEntry, Student, SubmittedAssignment
from nbgrader.plugins import ExportPlugin
from traitlets import Bool, Enum, Unicode

from dtlab.errors import DtlabError
from dtlab.grading.classroom import verdicts

__all__ = ["Canvas", "Moodle", "Plain", "Row", "Table", "harmless", "number", "submission_of"]

_CALL = re.compile(r"""dtlab\.check\(\s*["']([^"']+)""")
# Canvas takes columns with these words for its own totals, and leaves them out.
_TOTALS = re.compile(r"(Current|Final) (Score|Points|Grade)|Override (Score|Grade|Status)")

# Tables of grades that are safe to open: what the exporters below are made of --------------------

Row = list[str]

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_FORMULA = re.compile(r"(^|;)(\s*)(?=[=+\-@＝＋－＠])")


def harmless(text: object) -> str:
    """A text as it may stand in a cell: of one line, and no formula in a spreadsheet.

    What would begin one gets an apostrophe, also behind a semicolon: where the comma is the
    decimal mark, spreadsheets part cells there. A number stays one. None is empty.
    """
    shown = "" if text is None else str(text)
    line = "".join(" " if unicodedata.category(one) == "Cc" else one for one in shown).strip()
    return line if _NUMBER.fullmatch(line) else _FORMULA.sub(r"\1\2'", line)


def number(points: float | None) -> str:
    """Points with at most two decimals: "7.5"; None is empty."""
    return "" if points is None else f"{points:.2f}".rstrip("0").rstrip(".")


def submission_of(
    gradebook: Gradebook, assignment: Assignment, student: Student
) -> SubmittedAssignment | None:
    """What the gradebook has of a student's submission, None where there is none."""
    try:
        return gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:
        return None


class Table(ExportPlugin):  # type: ignore[misc]
    """What the exporters share: what to export, the points, and how the file is written."""

    missing = Unicode("", help="what stands for a submission that is not there, as 0").tag(
        config=True
    )
    encoding = "utf-8"

    def export(self, gradebook: Gradebook) -> None:
        """Writes the file, in one step. Stops where an assignment or a student is not known."""
        try:
            students = _chosen("student", self.student, gradebook.students, "id")
            assignments = _chosen("assignment", self.assignment, gradebook.assignments, "name")
        except DtlabError as error:
            if self.parent is None:
                raise
            self.parent.fail(str(error))  # nbgrader's way to end a command
            return
        rows = list(self.rows(gradebook, assignments, students))
        target = Path(self.to or "grades.csv")
        half = target.with_name(f".{target.name}.new")
        with half.open("w", encoding=self.encoding, newline="") as file:
            csv.writer(file).writerows(rows)
        half.replace(target)
        self.log.info("Wrote %s", target)

    def rows(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], students: Sequence[Student]
    ) -> Iterator[Row]:
        """The rows of the file, the first one with the names of the columns."""
        raise NotImplementedError

    def points(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], student: Student
    ) -> Iterator[str]:
        """A student's points for each assignment, without what being late takes off."""
        for assignment in assignments:
            submission = submission_of(gradebook, assignment, student)
            if submission is None:
                yield self.missing
                continue
            if submission.needs_manual_grade:
                self.log.warning("%s of %s is not graded in full", assignment.name, student.id)
            yield number(max(0.0, submission.score - (submission.late_submission_penalty or 0)))

    def identifier(self, text: str | None) -> str:
        """What a platform knows a student by; says so where it cannot stand in a cell."""
        safe = harmless(text)
        if safe != (text or ""):
            self.log.warning(
                "%r could be a formula in a spreadsheet; it stands there as %r, which the "
                "platform will not know",
                text,
                safe,
            )
        return safe


def _chosen(what: str, names: Sequence[Any], known: Sequence[Any], key: str) -> list[Any]:
    """Those that are asked for, or all. Raises `DtlabError` for one that is not known."""
    if not names:
        return list(known)
    by_name = {getattr(one, key): one for one in known}
    for name in map(str, names):
        if name not in by_name:
            there = ", ".join(by_name) or "none"
            raise DtlabError(f"there is no {what} {name!r} in the gradebook. There: {there}.")
    return [one for name, one in by_name.items() if name in set(map(str, names))]


# The platforms ----------------------------------------------------------------------------------


class Canvas(Table):
    """For Canvas, Gradebook, Import. Assignments are found by their names, or made.

    Students are found by ID (`lms_user_id` in nbgrader) or by SIS Login ID (nbgrader's own id).
    """

    section = Unicode("", help="the section that all students are in").tag(config=True)

    def rows(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], students: Sequence[Student]
    ) -> Iterator[Row]:
        """A row of names, one of points that can be had, and one for each student."""
        for one in assignments:
            if _TOTALS.search(one.name):
                self.log.warning("Canvas leaves %s out: it takes that for a total", one.name)
        names = (harmless(one.name) for one in assignments)
        yield ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *names]
        yield ["    Points Possible", *[""] * 4, *(number(one.max_score) for one in assignments)]
        for student in students:
            full = ", ".join(filter(None, (student.last_name, student.first_name))) or student.id
            ids = [self.identifier(student.lms_user_id), "", self.identifier(student.id)]
            points = self.points(gradebook, assignments, student)
            yield [harmless(full), *ids, harmless(self.section), *points]


class Moodle(Table):
    """For Moodle, Grades, Import, CSV file: there, map the first column and each assignment.

    Students without an entry in the first column are left out, and named: Moodle takes a row
    without one for the student in the row above.
    """

    identify = Enum(
        ("auto", "email", "username", "idnumber"),
        "auto",
        help="what Moodle finds students by: their email address (auto, if all have one), user "
        "name (nbgrader's id) or ID number (nbgrader's lms_user_id)",
    ).tag(config=True)
    feedback = Bool(False, help="a column of feedback beside each assignment").tag(config=True)

    def rows(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], students: Sequence[Student]
    ) -> Iterator[Row]:
        """A row of names, and one for each student."""
        by, titles = self.identify, {"email": "Email address", "idnumber": "ID number"}
        if by == "auto":
            by = "email" if all(student.email for student in students) else "username"
        title = titles.get(by, "Username")
        self.log.info("In Moodle: identify users by the column %s, mapped to %s", title, by)
        columns = [harmless(name) for one in assignments for name in self._columns(one)]
        yield [title, "First name", "Last name", *columns]
        for student in students:
            known = {"email": student.email, "idnumber": student.lms_user_id}.get(by, student.id)
            if not known:
                self.log.warning("%s has no %s here and is left out", student.id, title)
                continue
            names = [harmless(student.first_name), harmless(student.last_name)]
            yield [self.identifier(known), *names, *self._cells(gradebook, assignments, student)]

    def _columns(self, assignment: Assignment) -> list[str]:
        return [assignment.name, f"{assignment.name} (feedback)"][: 1 + self.feedback]

    def _cells(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], student: Student
    ) -> Iterator[str]:
        points = self.points(gradebook, assignments, student)
        for assignment, earned in zip(assignments, points, strict=True):
            yield earned
            if self.feedback:
                submission = submission_of(gradebook, assignment, student)
                yield harmless(_in_words(submission)) if submission else ""


class Plain(Table):
    """For a spreadsheet or pandas: a row for each student and part.

    Each criterion that `dtlab grade` judged has a column, in points of the check: where an
    assignment gives a part another weight, they do not add up to its score.
    """

    encoding = "utf-8-sig"  # spreadsheets take UTF-8 for something else without its mark

    def rows(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], students: Sequence[Student]
    ) -> Iterator[Row]:
        """A row of names, and one for each student and part."""
        found: list[tuple[dict[str, str], dict[str, str]]] = []
        for assignment in assignments:
            for student in students:
                submission = submission_of(gradebook, assignment, student)
                found += self._parts(submission) if submission else ()
        criteria = list(dict.fromkeys(name for _, earned in found for name in earned))
        titles = list(found[0][0]) if found else ["assignment", "notebook", "part", "student_id"]
        yield [*titles, *(f"criterion: {harmless(name)}" for name in criteria)]
        for facts, earned in found:
            yield [*facts.values(), *(earned.get(name, "") for name in criteria)]

    def _parts(
        self, submission: SubmittedAssignment
    ) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
        """What is known of each part, and the points of its criteria."""
        folder = Path(self.parent.coursedir.root) if self.parent else Path.cwd()
        record = verdicts.read(folder, submission.name, submission.student.id)
        for notebook in submission.notebooks:
            judged = record.notebooks.get(notebook.name, ()) if record else ()
            criteria = {one.grade_id: one.criteria for one in judged}
            late = notebook.late_submission_penalty
            for grade in notebook.grades:
                facts = {"assignment": submission.name, "notebook": notebook.name}
                facts |= {"part": _part(grade)} | _person(submission.student)
                facts |= {"submitted": submission.timestamp} | _points(grade)
                facts |= {"late_penalty_of_notebook": number(late)}
                earned = {one.name: number(one.earned) for one in criteria.get(grade.name, ())}
                yield {title: harmless(fact) for title, fact in facts.items()}, earned


def _person(student: Student) -> dict[str, str]:
    names = {"last_name": student.last_name, "first_name": student.first_name}
    return {"student_id": student.id, **names, "email": student.email}


def _points(grade: Grade) -> dict[str, str]:
    names = ("score", "max_score", "auto_score", "manual_score", "extra_credit")
    points = {name: number(getattr(grade, name)) for name in names}
    return points | {"needs_manual_grade": "yes" if grade.needs_manual_grade else "no"}


def _part(grade: Grade) -> str:
    """The part that a graded cell asks for, by its call; else the name of the cell."""
    cells = {one.name: one for one in grade.notebook.notebook.source_cells}
    found = _CALL.search(cells[grade.name].source or "") if grade.name in cells else None
    return found[1] if found else str(grade.name)


def _in_words(submission: SubmittedAssignment) -> str:
    """Each part with its points and the grader's comment. Moodle shows this as HTML."""
    said = []
    for notebook in submission.notebooks:
        comments = {one.name: one.comment for one in notebook.comments}
        for grade in notebook.grades:
            name = grade.name.removesuffix("-check")
            comment = comments.get(name) or comments.get(grade.name) or ""
            points = f"{name}: {number(grade.score)} of {number(grade.max_score)} points."
            said.append(f"{points} {comment}".strip())
    return escape(" | ".join(said), quote=False)
