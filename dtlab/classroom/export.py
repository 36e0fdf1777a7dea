"""Plug-ins for `nbgrader export` that write grades as CSV files for learning platforms.

    nbgrader export --exporter dtlab.classroom.export.Canvas --to canvas.csv
    nbgrader export --exporter dtlab.classroom.export.Moodle --to moodle.csv
    nbgrader export --exporter dtlab.classroom.export.Plain  --to grades.csv

nbgrader's options `--assignment` and `--student` apply; each exporter may have further settings,
such as `--Moodle.feedback=True`. The formats are those that the platforms' importers read:
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

from dtlab.classroom import verdicts
from dtlab.errors import DtlabError

__all__ = ["Canvas", "Moodle", "Plain", "Row", "Table", "number", "safe_text", "submission_of"]

_CALL = re.compile(r"""dtlab\.check\(\s*["']([^"']+)""")
# Canvas treats columns with these words as its own totals, and ignores them.
_TOTALS = re.compile(r"(Current|Final) (Score|Points|Grade)|Override (Score|Grade|Status)")

# Base class of the exporters: tables of grades that are safe to open in a spreadsheet ------------

Row = list[str]

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_FORMULA = re.compile(r"(^|;)(\s*)(?=[=+\-@＝＋－＠])")


def safe_text(text: object) -> str:
    """Makes a text safe for a cell: one line, and not a formula in a spreadsheet.

    Puts an apostrophe before text that would begin a formula, even after a semicolon, where
    spreadsheets split cells if the comma is the decimal mark. Keeps numbers. None becomes "".
    """
    shown = "" if text is None else str(text)
    line = "".join(" " if unicodedata.category(char) == "Cc" else char for char in shown).strip()
    return line if _NUMBER.fullmatch(line) else _FORMULA.sub(r"\1\2'", line)


def number(points: float | None) -> str:
    """Formats points with at most two decimals: "7.5"; None becomes ""."""
    return "" if points is None else f"{points:.2f}".rstrip("0").rstrip(".")


def submission_of(
    gradebook: Gradebook, assignment: Assignment, student: Student
) -> SubmittedAssignment | None:
    """Returns a student's submission from the gradebook, None if there is none."""
    try:
        return gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:
        return None


class Table(ExportPlugin):  # type: ignore[misc]
    """The base class of the exporters: selects the rows, computes points, writes the file."""

    missing = Unicode("", help="the entry for a missing submission, such as 0").tag(config=True)
    encoding = "utf-8"

    def export(self, gradebook: Gradebook) -> None:
        """Writes the file atomically. Fails for an unknown assignment or student."""
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
        """Yields the rows of the file, the first with the names of the columns."""
        raise NotImplementedError

    def points(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], student: Student
    ) -> Iterator[str]:
        """Yields a student's points for each assignment, after late penalties."""
        for assignment in assignments:
            submission = submission_of(gradebook, assignment, student)
            if submission is None:
                yield self.missing
                continue
            if submission.needs_manual_grade:
                self.log.warning("%s of %s is not graded in full", assignment.name, student.id)
            yield number(max(0.0, submission.score - (submission.late_submission_penalty or 0)))

    def identifier(self, text: str | None) -> str:
        """Returns a student's identifier for a platform; warns if it was changed."""
        safe = safe_text(text)
        if safe != (text or ""):
            self.log.warning(
                "%r could be a formula in a spreadsheet; it was written as %r, which the "
                "platform will not recognize",
                text,
                safe,
            )
        return safe


def _chosen(noun: str, names: Sequence[Any], known: Sequence[Any], key: str) -> list[Any]:
    """Returns the rows with these names, or all. Raises `DtlabError` for an unknown name."""
    if not names:
        return list(known)
    by_name = {getattr(row, key): row for row in known}
    for name in map(str, names):
        if name not in by_name:
            existing = ", ".join(by_name) or "none"
            raise DtlabError(f"there is no {noun} {name!r} in the gradebook. It has: {existing}.")
    return [row for name, row in by_name.items() if name in set(map(str, names))]


# The platforms ----------------------------------------------------------------------------------


class Canvas(Table):
    """An exporter for Canvas (Gradebook, Import), which finds or creates assignments by name.

    Canvas finds students by ID (nbgrader's `lms_user_id`) or by SIS Login ID (nbgrader's id).
    """

    section = Unicode("", help="the section that all students are in").tag(config=True)

    def rows(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], students: Sequence[Student]
    ) -> Iterator[Row]:
        """Yields a row of names, one of maximum points, and one for each student."""
        for assignment in assignments:
            if _TOTALS.search(assignment.name):
                self.log.warning(
                    "Canvas ignores %s, since it treats it as a total", assignment.name
                )
        names = (safe_text(assignment.name) for assignment in assignments)
        yield ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *names]
        yield [
            "    Points Possible",
            *[""] * 4,
            *(number(assignment.max_score) for assignment in assignments),
        ]
        for student in students:
            full = ", ".join(filter(None, (student.last_name, student.first_name))) or student.id
            ids = [self.identifier(student.lms_user_id), "", self.identifier(student.id)]
            points = self.points(gradebook, assignments, student)
            yield [safe_text(full), *ids, safe_text(self.section), *points]


class Moodle(Table):
    """An exporter for Moodle (Grades, Import, CSV file: map the first column and assignments).

    Leaves out students without an entry in the first column, with a warning, since Moodle would
    assign such a row to the student in the row above.
    """

    identify = Enum(
        ("auto", "email", "username", "idnumber"),
        "auto",
        help="how Moodle identifies students: by email address (auto, if all have one), user "
        "name (nbgrader's id) or ID number (nbgrader's lms_user_id)",
    ).tag(config=True)
    feedback = Bool(False, help="a column of feedback beside each assignment").tag(config=True)

    def rows(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], students: Sequence[Student]
    ) -> Iterator[Row]:
        """Yields the header row, then one row for each student who has the identifier."""
        by, titles = self.identify, {"email": "Email address", "idnumber": "ID number"}
        if by == "auto":
            by = "email" if all(student.email for student in students) else "username"
        title = titles.get(by, "Username")
        self.log.info("In Moodle: identify users by the column %s, mapped to %s", title, by)
        columns = [
            safe_text(name) for assignment in assignments for name in self._columns(assignment)
        ]
        yield [title, "First name", "Last name", *columns]
        for student in students:
            known = {"email": student.email, "idnumber": student.lms_user_id}.get(by, student.id)
            if not known:
                self.log.warning("%s has no %s here and is left out", student.id, title)
                continue
            names = [safe_text(student.first_name), safe_text(student.last_name)]
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
                yield safe_text(_in_words(submission)) if submission else ""


class Plain(Table):
    """An exporter for a spreadsheet or pandas: a row for each student and part.

    Each criterion that `dtlab grade` judged has a column, in points of the check. If an assignment
    gives a part other points, the columns do not add up to the part's score.
    """

    encoding = "utf-8-sig"  # with a byte order mark, without which spreadsheets misread UTF-8

    def rows(
        self, gradebook: Gradebook, assignments: Sequence[Assignment], students: Sequence[Student]
    ) -> Iterator[Row]:
        """Yields a row of names, and one for each student and part."""
        parts: list[tuple[dict[str, str], dict[str, str]]] = []
        for assignment in assignments:
            for student in students:
                submission = submission_of(gradebook, assignment, student)
                parts += self._parts(submission) if submission else ()
        criteria = list(dict.fromkeys(name for _, earned in parts for name in earned))
        titles = list(parts[0][0]) if parts else ["assignment", "notebook", "part", "student_id"]
        yield [*titles, *(f"criterion: {safe_text(name)}" for name in criteria)]
        for facts, earned in parts:
            yield [*facts.values(), *(earned.get(name, "") for name in criteria)]

    def _parts(
        self, submission: SubmittedAssignment
    ) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
        """Yields the facts about each part, and the points of its criteria."""
        folder = Path(self.parent.coursedir.root) if self.parent else Path.cwd()
        record = verdicts.read(folder, submission.name, submission.student.id)
        for notebook in submission.notebooks:
            judged = record.notebooks.get(notebook.name, ()) if record else ()
            criteria = {entry.grade_id: entry.criteria for entry in judged}
            late = notebook.late_submission_penalty
            for grade in notebook.grades:
                facts = {"assignment": submission.name, "notebook": notebook.name}
                facts |= {"part": _part(grade)} | _person(submission.student)
                facts |= {"submitted": submission.timestamp} | _points(grade)
                facts |= {"late_penalty_of_notebook": number(late)}
                earned = {
                    entry.name: number(entry.earned) for entry in criteria.get(grade.name, ())
                }
                yield {title: safe_text(fact) for title, fact in facts.items()}, earned


def _person(student: Student) -> dict[str, str]:
    names = {"last_name": student.last_name, "first_name": student.first_name}
    return {"student_id": student.id, **names, "email": student.email}


def _points(grade: Grade) -> dict[str, str]:
    names = ("score", "max_score", "auto_score", "manual_score", "extra_credit")
    points = {name: number(getattr(grade, name)) for name in names}
    return points | {"needs_manual_grade": "yes" if grade.needs_manual_grade else "no"}


def _part(grade: Grade) -> str:
    """Returns the part that a graded cell checks, or else the name of the cell."""
    cells = {cell.name: cell for cell in grade.notebook.notebook.source_cells}
    call = _CALL.search(cells[grade.name].source or "") if grade.name in cells else None
    return call[1] if call else str(grade.name)


def _in_words(submission: SubmittedAssignment) -> str:
    """Lists each part with its points and the grader's comment, escaped for Moodle's HTML."""
    sentences = []
    for notebook in submission.notebooks:
        comments = {row.name: row.comment for row in notebook.comments}
        for grade in notebook.grades:
            name = grade.name.removesuffix("-check")
            comment = comments.get(name) or comments.get(grade.name) or ""
            points = f"{name}: {number(grade.score)} of {number(grade.max_score)} points."
            sentences.append(f"{points} {comment}".strip())
    return escape(" | ".join(sentences), quote=False)
