"""Reads what learners handed in for an assignment, and makes valid notebooks from it."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property, partial
from glob import escape, glob
from pathlib import Path, PurePosixPath

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
_MOST_MEMBERS = 1000  # of a zip archive
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
        """Its bytes, one entry for each notebook of the assignment.

        A notebook may also lie in a folder or in a zip archive, or have a similar name. Raises
        `DtlabError` where the submission is a link.
        """
        self._refuse_links()
        found = list(_found(self.folder))
        notebooks: dict[str, bytes | None] = {}
        notes: dict[str, tuple[str, ...]] = {}
        moment, trouble = _handed_at(self.folder / "timestamp.txt")
        for name in assignment.notebooks:
            taken = _meant(name, found, [*assignment.notebooks])
            notebooks[name] = taken.read() if taken else None
            notes[name] = tuple(_oddities(name, taken, notebooks[name]))
            if taken is None and found:
                notes[name] += (_not_taken(name, found),)
        if trouble and notes:
            notes[next(iter(notes))] += (trouble,)
        said = [one for name, data in notebooks.items() for one in (name, data)]
        return Files(digest(*said, str(moment)), notebooks, notes, moment)

    def _refuse_links(self) -> None:
        for path in (self.folder, self.folder.parent):
            if path.is_symlink():
                raise DtlabError(
                    f"{path} is a link to {os.readlink(path)}, so this may be another student's "
                    "work. Replace the link by the files that this student handed in."
                )

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


@dataclass(frozen=True)
class _File:
    """A notebook that was handed in: its path below the submission, and how to read it."""

    path: str
    read: Callable[[], bytes | None]

    @property
    def name(self) -> str:
        """The name without folders and suffix."""
        return PurePosixPath(self.path).stem


def _found(folder: Path) -> Iterator[_File]:
    """All notebooks: those in the folder itself, then those below it, then those in archives."""
    archives = []
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__")))
        for name in sorted(names):
            path = Path(place, name)
            if path.suffix == ".ipynb":
                yield _File(path.relative_to(folder).as_posix(), partial(_bytes, path))
            elif path.suffix == ".zip":
                archives.append(path)
    for path in archives:
        yield from _in_archive(path, path.relative_to(folder).as_posix())


def _in_archive(path: Path, name: str) -> Iterator[_File]:
    """The notebooks in a zip archive; none where it cannot be read."""
    data = _bytes(path)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data or b""))
    except (zipfile.BadZipFile, OSError, ValueError):
        return
    for member in archive.infolist()[:_MOST_MEMBERS]:
        hidden = any(part.startswith((".", "__")) for part in PurePosixPath(member.filename).parts)
        if member.filename.endswith(".ipynb") and not hidden:
            yield _File(f"{name}/{member.filename}", partial(_member, archive, member))


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes | None:
    try:
        with archive.open(member) as file:
            return file.read(MOST_BYTES)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError):
        return None  # damaged, or encrypted


def _meant(name: str, found: Sequence[_File], others: Sequence[str]) -> _File | None:
    """The file with this name; else the only one with a similar name; else None."""
    exact = [one for one in found if one.name == name]
    if exact:
        return exact[0]
    plain = _plain(name)
    strangers = [one for one in found if one.name not in others]
    for near in (
        [one for one in strangers if _plain(one.name) == plain],
        [one for one in strangers if _plain(one.name).startswith(plain)],
    ):
        if len(near) == 1:
            return near[0]
    return None


def _plain(name: str) -> str:
    """level-2 of "Level_2" and "level 2"."""
    return re.sub(r"[\W_]+", "-", name.casefold())


def _not_taken(name: str, found: Sequence[_File]) -> str:
    files = ", ".join(one.path for one in found[:5]) + ", ..." * (len(found) > 5)
    return (
        f"There is no {name}.ipynb among what was handed in: {files}. If one of these is meant, "
        "rename it, and grade again."
    )


def _bytes(path: Path) -> bytes | None:
    """The file, None where it cannot be read. A link may lead anywhere, a pipe nowhere."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return None


def _oddities(name: str, taken: _File | None, data: bytes | None) -> Iterator[str]:
    if taken and data is None:
        yield f"{taken.path} is a link, or no file that can be read, and was left out."
    elif taken and taken.path != f"{name}.ipynb":
        yield f"{taken.path} was taken for {name}.ipynb, which is not there."
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
