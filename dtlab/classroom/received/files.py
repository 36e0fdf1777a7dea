"""Finds the notebooks of an assignment among the files that a learner has handed in.

    submitted/ada/week-1/   ABC 01_level_2.ipynb   work.zip   notes.json
           └── found ──► files, also those in archives ── chosen ──► one file for each notebook

A file is chosen by its name; else by its cells, whatever its name. A file with the name of one
notebook and the cells of another counts as the other.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath

import nbformat
from nbformat import NotebookNode

from dtlab.classroom.verdicts import digest

__all__ = ["MOST_BYTES", "File", "chosen", "found", "plain_bytes"]

MOST_BYTES = 200_000_001  # of one notebook: the repair reports a longer notebook as too large
_MOST_MEMBERS = 1000  # of an archive
_MOST_NESTED = 2  # archives within archives
_MOST_SEARCHED = 400_000_000  # bytes of a submission that are searched for cells
_MOST_DECODED = 50_000_000  # bytes of a file that is not UTF-8
_MOST_MARKS = 20_000  # of a file
_UNIT = re.compile(r"^\d\d-(?=level-)")  # in a normalized name
_ENDINGS = (".ipynb", ".json", ".txt")  # that systems put below a notebook's name, or instead
_CLOSED = (".rar", ".7z", ".xz", ".bz2", ".zst")  # archives that are not opened here

# The marks by which the cells of a notebook are recognised, in the text of its file.
_MARKS = {
    "part": re.compile(rb'dtlab\.check\(\\?"(\d\d/\w{1,80})\\?"'),
    "cell": re.compile(rb'"(?:grade_)?id"\s*+:\s*+"([\w.-]{1,80})"'),
    "function": re.compile(rb"\bdef (\w{1,80})\("),
}
Marks = Mapping[str, frozenset[bytes]]


@dataclass(frozen=True)
class File:
    """A submitted file: its path below the submission, and a function that reads it."""

    path: str
    read: Callable[[], bytes | None]

    @property
    def name(self) -> str:
        """The name without folders and endings."""
        name = PurePosixPath(self.path).name
        while name.lower().endswith(_ENDINGS):
            name = name.rpartition(".")[0]
        return name

    @property
    def is_named_notebook(self) -> bool:
        """Whether its name is that of a notebook."""
        return self.path.lower().endswith(".ipynb")


# Finding -----------------------------------------------------------------------------------------


def found(folder: Path) -> list[File]:
    """Returns all files: those in the folder, then in subfolders, then in archives."""
    files: list[File] = []
    archives: list[File] = []
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not _is_hidden(name))
        for name in sorted(name for name in names if not _is_hidden(name)):
            path = Path(place, name)
            file = File(path.relative_to(folder).as_posix(), partial(plain_bytes, path))
            if not file.is_named_notebook and plain_bytes(path, most=1) is None:
                continue  # a link, or a pipe
            is_archive = _is_archive(plain_bytes(path, most=512) or b"")
            (archives if is_archive else files).append(file)
    for file in archives:
        files += _unpacked(file, _MOST_NESTED)
    files = [file for file in files if file.path != "timestamp.txt"]
    return sorted(files, key=lambda file: not file.is_named_notebook)


def plain_bytes(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """Reads a regular file; None if it cannot be read. Refuses links, and pipes that may block."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            return file.read(most)
    except OSError:
        return None


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__"))


def _is_archive(head: bytes) -> bool:
    return head.startswith((b"PK\x03\x04", b"\x1f\x8b")) or head[257:262] == b"ustar"


def _unpacked(archive: File, levels: int) -> Iterator[File]:
    """Yields the files in an archive, and in archives in it; none if it cannot be read."""
    data = archive.read() or b""
    if data.startswith(b"\x1f\x8b"):
        inside = _decompressed(data)
        if not _is_archive(inside):
            yield File(archive.path.removesuffix(".gz"), lambda: inside)
            return
        data = inside
    members = _of_tar(data) if data[257:262] == b"ustar" else _of_zip(data)
    for name, size, read in members:
        # Some programs for Windows separate folders by backslashes.
        name = name.replace("\\", "/")
        if any(map(_is_hidden, PurePosixPath(name).parts)) or name.endswith("/"):
            continue
        file = File(f"{archive.path}/{name}", read)
        if levels > 1 and size < MOST_BYTES and name.lower().endswith((".zip", ".tar", "gz")):
            yield from _unpacked(file, levels - 1)
        else:
            yield file


def _decompressed(data: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(MOST_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""


_Members = Iterator[tuple[str, int, Callable[[], bytes | None]]]  # name, size, function that reads


def _of_zip(data: bytes) -> _Members:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, OSError, ValueError):
        return
    for member in archive.infolist()[:_MOST_MEMBERS]:
        yield member.filename, member.file_size, partial(_zip_member, archive, member)


def _zip_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes | None:
    try:
        with archive.open(member) as file:
            return file.read(MOST_BYTES)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError):
        return None  # damaged, or encrypted


def _of_tar(data: bytes) -> _Members:
    try:
        archive = tarfile.open(fileobj=io.BytesIO(data))  # noqa: SIM115  its members are read later
        for member, _ in zip(archive, range(_MOST_MEMBERS), strict=False):
            if member.isfile():
                yield member.name, member.size, partial(_tar_member, archive, member)
    except (tarfile.TarError, OSError, ValueError, EOFError):
        return


def _tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    try:
        file = archive.extractfile(member)
        return file.read(MOST_BYTES) if file else None
    except (tarfile.TarError, OSError, ValueError):
        return None


# Choosing ----------------------------------------------------------------------------------------


def chosen(
    files: Sequence[File], released: Mapping[str, NotebookNode]
) -> dict[str, tuple[File | None, tuple[str, ...]]]:
    """Returns the file for each released notebook, with notes on the choice."""
    cells = _Cells(files, released)
    result: dict[str, tuple[File | None, tuple[str, ...]]] = {}
    for name in released:
        possible = [file for file in files if cells.may_be(file, name)]
        file = _by_name(name, possible, [*released]) or cells.lone(name)
        if file is None:
            result[name] = (None, tuple(_not_taken(name, files)))
        elif file.path == f"{name}.ipynb":
            result[name] = (file, ())
        else:
            exists = any(other.path == f"{name}.ipynb" for other in files)
            why = "which has the cells of another notebook" if exists else "which is missing"
            result[name] = (file, (f"{file.path} was used as {name}.ipynb, {why}.",))
    return result


class _Cells:
    """Which notebooks' cells the files have: a number of marks for each file and notebook."""

    def __init__(self, files: Sequence[File], released: Mapping[str, NotebookNode]) -> None:
        everything = {name: _marks_of(_graded(notebook)) for name, notebook in released.items()}
        own = {name: _without(marks, name, everything) for name, marks in everything.items()}
        self._files, self._count = files, dict[str, dict[str, int]]()
        self._is_notebook: dict[str, bool] = {}
        left = _MOST_SEARCHED
        for file in files:
            data = file.read() if left > 0 else b""
            left -= len(data or b"")
            marks = _marks_of(data or b"")
            self._is_notebook[file.path] = file.is_named_notebook or marks is not _NO_MARKS
            self._count[file.path] = {name: _in_common(marks, own[name]) for name in released}

    def may_be(self, file: File, name: str) -> bool:
        """Whether a file may be this notebook: it does not have only the cells of another."""
        count = self._count[file.path]
        return self._is_notebook[file.path] and (count[name] > 0 or not any(count.values()))

    def lone(self, name: str) -> File | None:
        """Returns the only file with cells of this notebook; copies of it count once."""
        with_cells = [file for file in self._files if self._count[file.path][name]]
        if not with_cells or len({digest(file.read()) for file in with_cells}) > 1:
            return None
        return with_cells[0]


_NO_MARKS: Marks = dict.fromkeys(_MARKS, frozenset())


def _graded(notebook: NotebookNode) -> bytes:
    """Returns the file of a released notebook with its answers and checks only.

    Other notebooks of the course have cells such as "imports", and the form for the learner's id.
    """
    cells = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    graded = {**notebook, "cells": [cell for cell in cells if cell.id != "learner"]}
    return str(nbformat.writes(nbformat.from_dict(graded))).encode()


def _marks_of(data: bytes) -> Marks:
    """Returns the marks in a notebook's file; `_NO_MARKS` if it has no cells."""
    encoding = json.detect_encoding(data[:4]) if data else "utf-8"
    if not encoding.startswith("utf-8"):
        data = data[:_MOST_DECODED].decode(encoding, "ignore").encode(errors="ignore")
    if b'"cell_type"' not in data:
        return _NO_MARKS
    return {
        kind: frozenset(match[1] for match in islice(pattern.finditer(data), _MOST_MARKS))
        for kind, pattern in _MARKS.items()
    }


def _without(marks: Marks, name: str, everything: Mapping[str, Marks]) -> Marks:
    """Returns the marks of a notebook that no other notebook of the assignment has."""
    others = [each for other, each in everything.items() if other != name]
    return {kind: own.difference(*(o[kind] for o in others)) for kind, own in marks.items()}


def _in_common(marks: Marks, own: Marks) -> int:
    """Returns the number of a notebook's own marks in a file.

    Names of parts are unique in the course; the other marks count only in a file without them.
    """
    kinds = ["part"] if marks["part"] else ["cell", "function"]
    return max(len(marks[kind] & own[kind]) for kind in kinds)


def _by_name(name: str, files: Sequence[File], others: Sequence[str]) -> File | None:
    """Returns the file with this name; else the only one with a similar name; else None."""
    exact = [file for file in files if file.name == name]
    if exact:
        return exact[0]
    strangers = [(file, _plain(file.name)) for file in files if file.name not in others]
    plain = _plain(name)
    level = _UNIT.sub("", plain)
    candidates = [
        [file for file, other in strangers if other == plain],
        [file for file, other in strangers if other.startswith(plain)],
        [file for file, other in strangers if f"-{plain}-" in f"-{other}-"],
    ]
    # Notebooks were called level-2.ipynb before their names had the unit.
    if level != plain and sum(_plain(other).endswith(level) for other in others) == 1:
        candidates.append([file for file, other in strangers if other.startswith(level)])
    elif level == plain:
        candidates.append(
            [file for file, other in strangers if _UNIT.sub("", other).startswith(level)]
        )
    return next((files[0] for files in candidates if len(files) == 1), None)


def _plain(name: str) -> str:
    """Normalizes a name: "Level_2" and "level 2" both become "level-2"."""
    return re.sub(r"[\W_]+", "-", name.casefold())


def _not_taken(name: str, files: Sequence[File]) -> Iterator[str]:
    if not files:
        return
    paths = ", ".join(file.path for file in files[:5]) + ", ..." * (len(files) > 5)
    yield (
        f"There is no {name}.ipynb among the submitted files: {paths}. If one of these is meant, "
        "rename it, and grade again."
    )
    if closed := [file.path for file in files if file.path.lower().endswith(_CLOSED)]:
        yield f"{', '.join(closed)}: this kind of archive is not opened. Unpack it, or get a zip."
