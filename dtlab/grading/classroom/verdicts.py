"""Stores the verdict on each submission, criterion by criterion, beside the gradebook.

verdicts/<assignment>/<student>.json     whose work, which bytes, which seeds, what it earned

The gradebook has the points, this file has the reasons. It makes a grading run that was stopped go
on where it was, a regrade repeat the very same checks, and changed scores a list.
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

from dtlab.grading.judging.judge import PartVerdict
from dtlab.grading.report import Criterion

__all__ = ["ALL", "FOLDER", "Change", "Record", "changes", "digest", "read", "read_all", "write"]

FOLDER = "verdicts"
ALL = ("*",)  # every part
_LONGEST = 200  # bytes of a file's name: file systems take 255


@dataclass(frozen=True)
class Record:
    """The verdict on one submission.

    `key` stands for what was handed in and what was handed out, `version` for the checks.
    `notebooks` has each notebook's parts. Parts in `due` are to be judged again (`ALL`: all of
    them), with the seeds that they had, or those that `due_seed` gives.
    """

    assignment: str
    student: str
    key: str
    seed: int
    version: str
    seconds: float  # for the judge, of which `cell_seconds` for the learner's cells
    cell_seconds: float
    notebooks: Mapping[str, tuple[PartVerdict, ...]]
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    due_seed: int | None = None

    @property
    def parts(self) -> dict[str, PartVerdict]:
        """All parts by name."""
        return {one.part: one for each in self.notebooks.values() for one in each}

    @property
    def score(self) -> float:
        """Points earned by what the judge judges."""
        return sum(one.score for one in self.parts.values())

    @property
    def max_score(self) -> float:
        """Points that could be earned there."""
        return sum(one.max_score for one in self.parts.values())


@dataclass(frozen=True)
class Change:
    """A part that earns other points than before."""

    student: str
    part: str
    before: float | None
    after: float


def changes(before: Record | None, after: Record) -> Iterator[Change]:
    """Where two verdicts on one student's work differ in points."""
    old = before.parts if before else {}
    for name, part in after.parts.items():
        if name not in old or abs(old[name].score - part.score) > 1e-9:
            known = old[name].score if name in old else None
            yield Change(after.student, name, known, part.score)


def digest(*pieces: bytes | str | None) -> str:
    """A short text that differs where any of the pieces does."""
    state = hashlib.sha256()
    for piece in pieces:
        data = b"" if piece is None else piece.encode() if isinstance(piece, str) else piece
        state.update(f"{piece is None} {len(data)}\n".encode())
        state.update(data)
    return state.hexdigest()[:32]


def write(folder: Path, record: Record) -> None:
    """Keeps a verdict; what was kept of this student's work before is replaced, in one step."""
    path = _path(folder, record.assignment, record.student)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.new")
    text = json.dumps(asdict(record), indent=1)
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # else a power cut may leave an empty file under the old name
    beside.replace(path)


def read(folder: Path, assignment: str, student: str) -> Record | None:
    """The verdict that was kept, None where there is none that can be read."""
    return _read(_path(folder, assignment, student))


def read_all(folder: Path, assignment: str) -> Iterator[Record]:
    """The verdicts of an assignment that can be read, in the order of the students' names."""
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
    criteria = tuple(Criterion(**one) for one in fields["criteria"])
    return PartVerdict(**{**fields, "criteria": criteria})


def _path(folder: Path, assignment: str, student: str) -> Path:
    """Where it is kept. A folder's name may be too long to have a suffix."""
    name = student
    if len(os.fsencode(student)) > _LONGEST:
        shortened = os.fsencode(student)[: _LONGEST - 40].decode(errors="ignore")
        name = f"{shortened}-{digest(os.fsencode(student))}"
    return folder / FOLDER / assignment / f"{name}.json"
