"""Reads the submissions of an assignment, and makes valid notebooks from them."""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property
from glob import escape, glob
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory

from dtlab.classroom.judging.judge import part_of
from dtlab.classroom.received.files import chosen, found, plain_bytes
from dtlab.classroom.received.times import moment
from dtlab.classroom.repair.repaired import repair
from dtlab.classroom.verdicts import digest
from dtlab.errors import DtlabError

__all__ = ["Assignment", "Files", "Handed", "Submission", "handed_in"]

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as some consoles store text
STAMP = re.compile(rb'"dtlab"\s*+:\s*+\{\s*+"version"\s*+:\s*+"([\w.+!-]{1,40})"')


@dataclass(frozen=True)
class Assignment:
    """A released assignment: its notebooks by file name without the suffix."""

    name: str
    notebooks: dict[str, NotebookNode]

    @classmethod
    def of(cls, directory: CourseDirectory, name: str) -> Assignment:
        """Reads the released notebooks. Raises `DtlabError` if there are none."""
        folder = Path(directory.format_path(directory.release_directory, ".", name))
        paths = sorted(folder.glob("*.ipynb"))
        if not paths:
            existing = sorted(
                path.name for path in folder.parent.glob("*/") if any(path.iterdir())
            )
            raise DtlabError(
                f"there is no assignment {name!r} in {folder.parent}. "
                + (
                    f"There are: {', '.join(existing)}."
                    if existing
                    else "Make one with dtlab release."
                )
            )
        return cls(name, {path.stem: nbformat.read(path, as_version=4) for path in paths})

    @cached_property
    def key(self) -> str:
        """A digest of the released cells, without text cells on which no points depend."""
        return digest(
            *(
                f"{name} {json.dumps(cell, sort_keys=True)}"
                for name, notebook in self.notebooks.items()
                for cell in notebook.cells
                if cell.cell_type == "code" or "nbgrader" in cell.metadata
            )
        )

    @cached_property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The names of the parts in each notebook."""
        return {
            name: tuple(part.name for cell in notebook.cells if (part := part_of(cell)))
            for name, notebook in self.notebooks.items()
        }

    def part(self, name: str) -> str:
        """Returns the full name of a part, given with or without its unit.

        Raises `DtlabError` for an unknown name.
        """
        every = [part for parts in self.parts.values() for part in parts]
        for part in every:
            if name in (part, part.partition("/")[2]):
                return part
        raise DtlabError(f"{self.name} has no part {name!r}. Its parts: {', '.join(every)}.")


@dataclass(frozen=True)
class Files:
    """The files of a submission: bytes, or None for a missing notebook; `notes` for the grader.

    `key` is a digest of the notebooks and the time. `handed_at` is the time of submission in UTC,
    None if unknown.
    """

    key: str
    notebooks: Mapping[str, bytes | None]
    notes: Mapping[str, tuple[str, ...]]
    handed_at: datetime | None


@dataclass(frozen=True)
class Handed:
    """One notebook of a submission after repairs; `notes` list the repairs."""

    name: str
    notebook: NotebookNode
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Submission:
    """The submission of one student."""

    student: str
    folder: Path

    def files(self, assignment: Assignment) -> Files:
        """Reads the bytes of each notebook of the assignment.

        A notebook may also be in a subfolder or an archive, or have another name. Raises
        `DtlabError` if the submission is a symbolic link.
        """
        self._refuse_links()
        notebooks: dict[str, bytes | None] = {}
        notes: dict[str, tuple[str, ...]] = {}
        handed_at, trouble = _handed_at(self.folder / "timestamp.txt")
        for name, (file, remarks) in chosen(found(self.folder), assignment.notebooks).items():
            data = notebooks[name] = file.read() if file else None
            if file and data is None:
                remarks = (f"{file.path} is a link or cannot be read, and was left out.",)
            notes[name] = (*remarks, *_other_versions(data or b""))
        if trouble and notes:
            notes[next(iter(notes))] += (trouble,)
        pieces = [piece for name, data in notebooks.items() for piece in (name, data)]
        return Files(digest(*pieces, str(handed_at)), notebooks, notes, handed_at)

    def _refuse_links(self) -> None:
        for path in (self.folder, self.folder.parent):
            if path.is_symlink():
                raise DtlabError(
                    f"{path} is a link to {os.readlink(path)}, so this may be another student's "
                    "work. Replace the link by the files that this student handed in."
                )

    def read(self, assignment: Assignment) -> tuple[str, list[Handed]]:
        """Returns the key of the submission, and its repaired notebooks."""
        files = self.files(assignment)
        handed = []
        for name, released in assignment.notebooks.items():
            repaired = repair(files.notebooks[name], released)
            handed.append(Handed(name, repaired.notebook, files.notes[name] + repaired.notes))
        return files.key, handed

    def beside(self, most: int) -> Iterator[Path]:
        """Yields the other files of the submission, as paths relative to the folder.

        Omits links, which may lead to files of others, and files of more than `most` bytes.
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
    """Returns the submissions of the students whose ids match a pattern, such as "*" or "a*".

    Raises `DtlabError` if there are none.
    """
    step = directory.submitted_directory
    place = re.compile(directory.format_path(step, "(?P<id>[^/]+)", re.escape(assignment), True))
    glob_pattern = os.path.join(escape(directory.root), directory.directory_structure).format(
        nbgrader_step=step, student_id="*", assignment_id=escape(assignment)
    )
    folders = {
        match["id"]: Path(path)
        for path in sorted(glob(glob_pattern))
        if (match := place.fullmatch(path)) and os.path.isdir(path)
    }
    for name in directory.student_id_exclude.split(","):
        folders.pop(name, None)
    wanted = [name for name in folders if name == students or fnmatchcase(name, students)]
    if not wanted:
        names = ", ".join([*folders][:10]) + ", ..." * (len(folders) > 10)
        raise DtlabError(
            f"no student whose id matches {students!r} has handed in {assignment}. "
            + (f"There are: {names}." if names else f"Looked for {glob_pattern}.")
        )
    return [Submission(name, folders[name]) for name in wanted]


def _other_versions(data: bytes) -> Iterator[str]:
    """Yields a note if the notebook was made with a different version of dtlab."""
    from importlib.metadata import version

    ours = version("dtlab")
    others = {stamp.decode() for stamp in STAMP.findall(data)} - {ours}
    if others:
        made = f"made with dtlab {', '.join(sorted(others))}"
        yield f"The notebook was {made}, and graded with {ours}."


def _handed_at(path: Path) -> tuple[datetime | None, str]:
    """Reads the time of submission that nbgrader stored; returns it, and what is wrong with it."""
    data = plain_bytes(path)
    if data is None or not data.strip():
        return None, ""
    try:
        text = data[:1000].decode("utf-16" if data[:2] in UTF_16 else "utf-8-sig")
        return moment(text), ""
    except (ValueError, OverflowError) as error:
        reason = "" if isinstance(error, UnicodeError | OverflowError) else f": {error}"
    return None, (
        f"timestamp.txt has no readable time{reason}. So the submission counts as not late. If "
        'you know the time, write it there as "2027-02-01 18:30:00 +0100", and grade again.'
    )
