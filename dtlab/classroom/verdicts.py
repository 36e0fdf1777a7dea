"""Stores the verdict on each submission, criterion by criterion, next to the gradebook.

verdicts/<assignment>/<student>.json     the student, a digest of the files, seeds, points, reasons

The gradebook has the points, these files have the reasons and the known mistakes. With these
files, a stopped grading run can continue, a regrade can repeat exactly the same checks, and
changed scores can be listed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dtlab.checks.report import Criterion
from dtlab.classroom.judging.judge import PartVerdict

__all__ = ["ALL", "FOLDER", "Change", "Record", "changes", "digest", "read", "read_all", "write"]

FOLDER = "verdicts"
ALL = ("*",)  # every part
_LONGEST = 200  # bytes of a file name: file systems allow 255


@dataclass(frozen=True)
class Record:
    """The stored verdict on one submission.

    `key` is a digest of the submission and the assignment; `version` is that of dtlab.
    `notebooks` has the verdicts on the parts of each notebook. Parts in `due` must be judged again
    (`ALL`: all of them), with their old seeds or with `due_seed`.
    """

    assignment: str
    student: str
    key: str
    seed: int
    version: str
    seconds: float  # of judging, including `cell_seconds` of the learner's cells
    cell_seconds: float
    notebooks: Mapping[str, tuple[PartVerdict, ...]]
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    due_seed: int | None = None

    @property
    def parts(self) -> dict[str, PartVerdict]:
        """All parts by name."""
        return {part.part: part for parts in self.notebooks.values() for part in parts}

    @property
    def score(self) -> float:
        """The points earned in the parts that the judge grades."""
        return sum(part.score for part in self.parts.values())

    @property
    def max_score(self) -> float:
        """The highest possible score in these parts."""
        return sum(part.max_score for part in self.parts.values())


@dataclass(frozen=True)
class Change:
    """A part whose points have changed."""

    student: str
    part: str
    before: float | None
    after: float


def changes(before: Record | None, after: Record) -> Iterator[Change]:
    """Yields the parts in which two verdicts on a student's work differ in points."""
    old = before.parts if before else {}
    for name, part in after.parts.items():
        if name not in old or abs(old[name].score - part.score) > 1e-9:
            score = old[name].score if name in old else None
            yield Change(after.student, name, score, part.score)


def digest(*pieces: bytes | str | None) -> str:
    """Returns a hash of the pieces as 32 hexadecimal digits."""
    state = hashlib.sha256()
    for piece in pieces:
        data = b"" if piece is None else piece.encode() if isinstance(piece, str) else piece
        state.update(f"{piece is None} {len(data)}\n".encode())
        state.update(data)
    return state.hexdigest()[:32]


def write(folder: Path, record: Record) -> None:
    """Stores a verdict; replaces the previous one for this student atomically."""
    path = _path(folder, record.assignment, record.student)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    text = json.dumps(asdict(record), indent=1)
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # else a power cut may leave an empty file under the old name
    temporary.replace(path)


def read(folder: Path, assignment: str, student: str) -> Record | None:
    """Returns the stored verdict, None if there is none or it cannot be read."""
    return _read(_path(folder, assignment, student))


def read_all(folder: Path, assignment: str) -> Iterator[Record]:
    """Yields the readable verdicts of an assignment, in the order of the students' names."""
    for path in sorted((folder / FOLDER / assignment).glob("*.json")):
        record = _read(path)
        if record is not None:
            yield record


def _read(path: Path) -> Record | None:
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Record(**{
            **fields,
            "notebooks": {
                name: tuple(map(_verdict, parts)) for name, parts in fields["notebooks"].items()
            },
            "notes": {name: tuple(notes) for name, notes in fields["notes"].items()},
            "missing": tuple(fields["missing"]),
            "due": tuple(fields["due"]),
        })  # fmt: skip
    return None


def _verdict(fields: dict[str, Any]) -> PartVerdict:
    criteria = tuple(Criterion(**criterion) for criterion in fields["criteria"])
    return PartVerdict(**{**fields, "criteria": criteria})


def _path(folder: Path, assignment: str, student: str) -> Path:
    """Returns the path of a record; shortens an id that is too long for a name with a suffix."""
    name = student
    if len(os.fsencode(student)) > _LONGEST:
        shortened = os.fsencode(student)[: _LONGEST - 40].decode(errors="ignore")
        name = f"{shortened}-{digest(os.fsencode(student))}"
    return folder / FOLDER / assignment / f"{name}.json"
