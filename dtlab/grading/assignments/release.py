"""`dtlab release UNIT`: checks all arguments first, then writes the assignment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dtlab.errors import DtlabError
from dtlab.grading.assignments.publish import publish
from dtlab.grading.assignments.wanted import wanted
from dtlab.grading.course import REPOSITORY, Course
from dtlab.grading.late import due_date
from dtlab.grading.settings import course_folder

__all__ = ["release_assignment"]


def release_assignment(
    unit: str,
    *,
    levels: str | None = None,
    parts: str | None = None,
    points: str | None = None,
    due: str | None = None,
    name: str | None = None,
    course: Path | None = None,
    force: bool = False,
) -> Iterator[str]:
    """Makes an assignment in a course folder, and says what it did, line by line.

    The arguments are those of `dtlab release`; `unit` may name several, "01,02". Raises
    `DtlabError` where it cannot be done; then everything is as it was.
    """

    home = _home()
    units = sorted({home.unit(one.strip()) for one in unit.split(",")})
    if len(units) > 1 and not name:
        raise DtlabError("an assignment of several units needs a name of its own: --name week-3.")
    asked = wanted([one[:2] for one in units], levels, parts, points)
    moment = due_date(due) if due else None
    name = _good_name(name or units[0])
    yield from publish(home, asked, _folder(home, course), name, moment, force=force)


def _home() -> Course:
    """The repository, whose solutions/ are copied from."""
    for course in (Course.find(), Course(REPOSITORY)):
        if (course.root / "solutions").is_dir():
            return course
    raise DtlabError(
        "there are no solutions/ to make an assignment of: they come with the repository, not "
        "with the installed package. Clone it, and run this in the environment of its make lab."
    )


def _good_name(name: str) -> str:
    """The name, if nbgrader can make folders of it and find them again."""
    if re.fullmatch(r"\w(?:[\w .-]*\w)?", name):
        return name
    raise DtlabError(
        f"{name!r} cannot be the name of an assignment. Use letters, digits, - and _, as week-3."
    )


def _folder(home: Course, named: Path | None) -> Path:
    """Where the assignment goes; never into the repository's own."""
    folder = course_folder(named)
    own = home.root.resolve()
    if folder.resolve() == own or any(
        folder.resolve().is_relative_to(own / kept)
        for kept in ("solutions", "exercises", "notebooks", "dtlab")
    ):
        raise DtlabError(
            f"{folder} is the repository, whose solutions/ are copied from and never written to. "
            "Name a folder for your course: --course FOLDER. It is made if it is not there. "
            "(To generate exercises/ from solutions/: dtlab release, without a unit.)"
        )
    return folder
