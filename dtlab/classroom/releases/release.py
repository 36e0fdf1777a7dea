"""The command `dtlab release UNIT`: checks all arguments, then writes the assignment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dtlab.checks.course import REPOSITORY, Course
from dtlab.classroom.late import due_date
from dtlab.classroom.releases.publish import publish
from dtlab.classroom.releases.wanted import wanted
from dtlab.classroom.settings import course_folder
from dtlab.errors import DtlabError

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
    """Creates an assignment in a course folder, and yields lines that report what it did.

    The arguments are those of `dtlab release`; `unit` may name several units: "01,02". If the
    command fails, raises `DtlabError` and changes nothing.
    """
    home = _home()
    units = sorted({home.unit(word.strip()) for word in unit.split(",")})
    if len(units) > 1 and not name:
        raise DtlabError("an assignment of several units needs a name: --name week-3.")
    asked = wanted([folder[:2] for folder in units], levels, parts, points)
    moment = due_date(due) if due else None
    name = _good_name(name or units[0])
    yield from publish(home, asked, _folder(home, course), name, moment, force=force)


def _home() -> Course:
    """Returns the repository with solutions/. Raises `DtlabError` if there is none."""
    for course in (Course.find(), Course(REPOSITORY)):
        if (course.root / "solutions").is_dir():
            return course
    raise DtlabError(
        "there is no folder solutions/, from which assignments are generated. It is part of the "
        "repository, not of the package. Clone the repository, and run this command in the "
        "environment that make lab creates there."
    )


def _good_name(name: str) -> str:
    """Returns the name if nbgrader can use it as a folder name; else raises `DtlabError`."""
    if re.fullmatch(r"\w(?:[\w .-]*\w)?", name):
        return name
    raise DtlabError(
        f"{name!r} cannot be the name of an assignment. Use letters, digits, - and _: week-3."
    )


def _folder(home: Course, named: Path | None) -> Path:
    """Returns the course folder; raises `DtlabError` for a folder of the repository."""
    folder = course_folder(named)
    root = home.root.resolve()
    if folder.resolve() == root or any(
        folder.resolve().is_relative_to(root / name)
        for name in ("solutions", "exercises", "notebooks", "dtlab")
    ):
        raise DtlabError(
            f"{folder} is in the repository, to which no assignments are written. "
            "Name a folder for your course: --course FOLDER. It is created if it does not exist. "
            "(To generate exercises/ from solutions/: dtlab release, without a unit.)"
        )
    return folder
