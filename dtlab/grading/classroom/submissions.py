"""What learners handed in for an assignment: its bytes, and sound notebooks made of them."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from glob import escape, glob
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import parse_utc

from dtlab.errors import DtlabError
from dtlab.grading.classroom.verdicts import digest
from dtlab.grading.judging.judge import part_of
from dtlab.grading.mending.mend import mend

__all__ = ["Assignment", "Files", "Handed", "Submission", "handed_in"]

MOST_BYTES = 200_000_001  # of one notebook: mending reads no more, and says so
STAMP = re.compile(rb'"dtlab"\s*+:\s*+\{\s*+"version"\s*+:\s*+"([\w.+!-]{1,40})"')


@dataclass(frozen=True)
class Assignment:
    """An assignment as learners got it: its notebooks by name, without the suffix."""

    name: str
    notebooks: dict[str, NotebookNode]

    @classmethod
    def of(cls, directory: CourseDirectory, name: str) -> Assignment:
        """Reads the released notebooks. Raises `DtlabError` where there are none."""
        folder = Path(directory.format_path(directory.release_directory, ".", name))
        paths = sorted(folder.glob("*.ipynb"))
        if not paths:
            near = sorted(path.name for path in folder.parent.glob("*/") if any(path.iterdir()))
            raise DtlabError(
                f"there is no assignment {name!r} in {folder.parent}. "
                + (f"There are: {', '.join(near)}." if near else "Make one with dtlab release.")
            )
        return cls(name, {path.stem: nbformat.read(path, as_version=4) for path in paths})

    @cached_property
    def key(self) -> str:
        """Stands for what was handed out; not for its prose, on which no point depends."""
        return digest(
            *(
                f"{name} {json.dumps(cell, sort_keys=True)}"
                for name, one in self.notebooks.items()
                for cell in one.cells
                if cell.cell_type == "code" or "nbgrader" in cell.metadata
            )
        )

    @cached_property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The names of the parts that each notebook asks for."""
        return {
            name: tuple(part.name for cell in one.cells if (part := part_of(cell)))
            for name, one in self.notebooks.items()
        }

    def part(self, name: str) -> str:
        """The full name of a part, which may lack its unit. Raises `DtlabError` for any other."""
        every = [part for parts in self.parts.values() for part in parts]
        for part in every:
            if name in (part, part.partition("/")[2]):
                return part
        raise DtlabError(f"{self.name} has no part {name!r}. Its parts: {', '.join(every)}.")


@dataclass(frozen=True)
class Files:
    """A submission as bytes, None for a notebook that is not there; `notes` say what is odd.

    `key` differs where any of it does. `handed_at` is in UTC, None where nobody has noted it.
    """

    key: str
    notebooks: Mapping[str, bytes | None]
    notes: Mapping[str, tuple[str, ...]]
    handed_at: datetime | None


@dataclass(frozen=True)
class Handed:
    """One notebook of a submission, mended; `notes` say what had to be."""

    name: str
    notebook: NotebookNode
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Submission:
    """What one student handed in."""

    student: str
    folder: Path

    def files(self, assignment: Assignment) -> Files:
        """Its bytes, one entry for each notebook of the assignment."""
        there = {path.stem: path for path in sorted(self.folder.glob("*.ipynb"))}
        strangers = [name for name in there if name not in assignment.notebooks]
        notebooks: dict[str, bytes | None] = {}
        notes: dict[str, tuple[str, ...]] = {}
        moment, trouble = _handed_at(self.folder / "timestamp.txt")
        for name in assignment.notebooks:
            taken = name if name in there else _meant(name, strangers)
            notebooks[name] = _bytes(there[taken]) if taken else None
            notes[name] = tuple(_oddities(name, taken, notebooks[name]))
        if trouble and notes:
            notes[next(iter(notes))] += (trouble,)
        said = [one for name, data in notebooks.items() for one in (name, data)]
        return Files(digest(*said, str(moment)), notebooks, notes, moment)

    def read(self, assignment: Assignment) -> tuple[str, list[Handed]]:
        """What stands for its bytes, and its notebooks, one for each of the assignment."""
        files = self.files(assignment)
        handed = []
        for name, released in assignment.notebooks.items():
            mended = mend(files.notebooks[name], released)
            handed.append(Handed(name, mended.notebook, files.notes[name] + mended.notes))
        return files.key, handed

    def beside(self, most: int) -> Iterator[Path]:
        """What was handed in beside the notebooks, as paths in the folder.

        No links: they may lead to what is not the learner's. Nothing of over `most` bytes.
        """
        for folder, inner, names in os.walk(self.folder):
            inner[:] = [name for name in inner if not name.startswith((".", "__pycache__"))]
            for name in names:
                path = Path(folder, name)
                facts = path.lstat()
                plain = stat.S_ISREG(facts.st_mode) and facts.st_size <= most
                if plain and not name.startswith(".") and path.suffix not in (".ipynb", ".pyc"):
                    yield path.relative_to(self.folder)


def handed_in(directory: CourseDirectory, assignment: str, students: str) -> list[Submission]:
    """The submissions of the students whose ids match a pattern, as "*" or "a*".

    Raises `DtlabError` where there are none.
    """
    step = directory.submitted_directory
    place = re.compile(directory.format_path(step, "(?P<id>[^/]+)", re.escape(assignment), True))
    around = os.path.join(escape(directory.root), directory.directory_structure).format(
        nbgrader_step=step, student_id="*", assignment_id=escape(assignment)
    )
    found = {
        match["id"]: Path(path)
        for path in sorted(glob(around))
        if (match := place.fullmatch(path)) and os.path.isdir(path)
    }
    for name in directory.student_id_exclude.split(","):
        found.pop(name, None)
    wanted = [name for name in found if name == students or fnmatchcase(name, students)]
    if not wanted:
        names = ", ".join([*found][:10]) + ", ..." * (len(found) > 10)
        raise DtlabError(
            f"nobody whose id matches {students!r} has handed in {assignment}. "
            + (f"There are: {names}." if names else f"Looked for {around}.")
        )
    return [Submission(name, found[name]) for name in wanted]


def _meant(name: str, strangers: Sequence[str]) -> str | None:
    """The file that somebody has renamed on the way, if there is just one such."""
    plain = name.casefold()
    near = [one for one in strangers if one.casefold().replace(" ", "-").startswith(plain)]
    return near[0] if len(near) == 1 else None


def _bytes(path: Path) -> bytes | None:
    """The file, None where it cannot be read. A link may lead anywhere, a pipe nowhere."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return None


def _oddities(name: str, taken: str | None, data: bytes | None) -> Iterator[str]:
    if taken and data is None:
        yield f"{taken}.ipynb is a link, or no file that can be read, and was left out."
    elif taken and taken != name:
        yield f"{taken}.ipynb was taken for {name}.ipynb, which is not there."
    if data is not None:
        yield from _other_versions(data)


def _other_versions(data: bytes) -> Iterator[str]:
    """Whether another dtlab than this one was at work on the notebook."""
    from importlib.metadata import version

    ours = version("dtlab")
    others = {found.decode() for found in STAMP.findall(data)} - {ours}
    if others:
        yield f"It was made with dtlab {', '.join(sorted(others))}, and graded with {ours}."


def _handed_at(path: Path) -> tuple[datetime | None, str]:
    """When it was handed in, as nbgrader noted it; what is wrong with the note."""
    data = _bytes(path)
    if data is None or not data.strip():
        return None, ""
    try:
        moment = parse_utc(data[:200].decode().strip())
        return moment.replace(tzinfo=UTC), ""
    except (ValueError, OverflowError, TypeError, AttributeError):
        return None, "timestamp.txt holds no time that can be read: it counts as not late."
