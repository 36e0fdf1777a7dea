"""Tables of grades that are safe to open: what the exporters in `export.py` are made of."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nbgrader.api import Assignment, Gradebook, MissingEntry, Student, SubmittedAssignment
from nbgrader.plugins import ExportPlugin
from traitlets import Unicode

from dtlab.errors import DtlabError

__all__ = ["Row", "Table", "harmless", "number", "submission_of"]

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
