"""Archives of learning platforms, for `nbgrader zip_collect`.

    downloaded/week-1/archive/all.zip ──nbgrader zip_collect week-1──> submitted/ada/week-1/

Moodle's archive has a folder for each student, named after the student and the participant number.
Canvas encodes everything in the file name, including its user number:

    Ada Lovelace_7142_assignsubmission_file/01_level_2.ipynb
    lovelaceada_LATE_4711_90210_01_level_2-1.ipynb

The gradebook identifies the student, by first and last name or by `lms_user_id`. A student who is
not in the gradebook is collected under the platform's name, with a warning.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.plugins import FileNameCollectorPlugin

__all__ = ["PlatformNames"]

_MOODLE = re.compile(r"(?P<name>[^_]+)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext)_?")
_CANVAS = re.compile(
    r"(?P<name>[^_]+)_(?:LATE_)?(?P<user>\d+)_(?P<number>\d+)_(?P<file>.+?)"
    r"(?P<ending>(?:\.ipynb)?\.\w{1,5})"
)
# Endings that browsers put on notebooks, and archives; `dtlab grade` looks for notebooks in them.
_ALSO = (".json", ".txt", ".zip", ".tar", ".gz", ".tgz")
_RENAMED = re.compile(r"(level[-_]\d)-\d+")  # Canvas numbers repeated submissions


class PlatformNames(FileNameCollectorPlugin):  # type: ignore[misc]
    """Finds student and notebook in the file names of Moodle and Canvas.

    A `named_regexp` in the course's settings takes precedence.
    """

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        """Returns the student and the notebook of a file; None if it cannot be a notebook."""
        path = Path(submitted_file)
        known = self.valid_ext if self.named_regexp else (*self.valid_ext, *_ALSO)
        if path.suffix.lower() not in known:
            return None
        if self.named_regexp:
            result: dict[str, str] | None = super().collect(submitted_file)
            return result
        for folder in path.parents:
            if moodle := _MOODLE.fullmatch(folder.name):
                student = self._by_name(moodle["name"])
                return {"student_id": student, "file_id": path.name}
        if canvas := _CANVAS.fullmatch(path.name):
            student = self._by_number(canvas["user"], canvas["name"])
            name = _RENAMED.sub(r"\1", canvas["file"])
            return {"student_id": student, "file_id": f"{name}{canvas['ending']}"}
        self.log.warning(
            "%s is named neither as Moodle nor as Canvas name files; set "
            "c.FileNameCollectorPlugin.named_regexp for another platform", path.name,
        )  # fmt: skip
        return None

    @cached_property
    def _roster(self) -> list[tuple[str, str, str]]:
        """The id, full name and platform number of each student in the gradebook."""
        course = self.parent.coursedir
        with Gradebook(course.db_url, course.course_id) as gradebook:
            return [
                (student.id, _plain(f"{student.first_name or ''} {student.last_name or ''}"),
                 str(student.lms_user_id or ""))
                for student in gradebook.students
            ]  # fmt: skip

    def _by_name(self, name: str) -> str:
        ids = [student for student, full, _ in self._roster if full == _plain(name)]
        return ids[0] if len(ids) == 1 else self._unknown(name, "name")

    def _by_number(self, number: str, name: str) -> str:
        ids = [student for student, _, user in self._roster if user == number]
        return ids[0] if len(ids) == 1 else self._unknown(name, f"lms_user_id {number}")

    def _unknown(self, name: str, by: str) -> str:
        self.log.warning(
            "%s (%s) does not match exactly one student in the gradebook, so the file is "
            "collected under that name. Add "
            "the student: nbgrader db student add ID --first-name ... --last-name ... "
            "--lms-user-id ...", name, by,
        )  # fmt: skip
        return name


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())
