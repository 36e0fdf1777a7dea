"""Creates the learner's copies of notebooks, updates them with their answers, and resets parts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from dtlab.errors import DtlabError
from dtlab.grading.course import Course
from dtlab.grading.parts import Part
from dtlab.grading.plugins import released_source

__all__ = ["reset", "start"]

MAKE_A_COPY = re.compile(r"^To keep your answers apart from .*?\n\n", re.DOTALL | re.MULTILINE)


def start(course: Course, unit: str, *, renew: bool = False) -> Iterator[str]:
    """Copies a unit's lesson and levels to `my/`, and yields a line on each.

    Existing copies stay. With `renew`, a newer release replaces a copy of an older one, with the
    answers to its parts; the old copy is kept as a backup.
    """
    for notebook in course.handed_out(unit):
        source, copy = course.root / notebook, course.own(notebook)
        target, shown = course.root / copy, course.shown(copy)
        if not target.exists():
            _write(_stamped(source), target)
            yield f"{shown}   new"
        elif _stamp(source) == _read(target).metadata.get("dtlab", {}).get("release"):
            yield f"{shown}   kept"
        elif renew:
            yield f"{shown}   {_renew(source, target)}"
        else:
            yield f"{shown}   kept; the course has a newer one (see --renew)"


def _renew(source: Path, target: Path) -> str:
    """Replaces a copy by the newer release, with the copy's answers; returns a message."""
    new, old = _stamped(source), _answers(_read(target))
    answers = _answers(new)
    for name in answers.keys() & old.keys():
        answers[name].source = old[name].source
    backup = _back_up(target).name
    _write(new, target)
    if not answers.keys() & old.keys():  # a lesson has blanks, but no parts
        return f"renewed; the old one, with whatever you wrote in it, is {backup}"
    if gone := ", ".join(name for name in old if name not in answers):
        return f"renewed, with your answers; those to {gone}, asked no longer, are in {backup}"
    return f"renewed, with your answers; the old one is {backup}"


def reset(course: Course, part: Part, notebook: Path | None = None) -> tuple[Path, Path | None]:
    """Resets a part in the learner's notebook to its released form; returns it and its backup.

    Changes no other cell. If the part is already in its released form, changes no file and makes
    no backup. Raises `DtlabError` if the notebook, or the part's cell in it, is not found.
    """
    path = notebook or course.root / course.worked_on(part)
    if not path.is_file():
        raise DtlabError(f"there is no notebook {path}. To get one: dtlab start {part.unit}")
    learners = _read(path)
    cell = _cells(learners).get(part.answer_id)
    if cell is None:
        raise DtlabError(
            f"{path} has no cell {part.answer_id!r} any more. Move the notebook away, and get a "
            f"new one: dtlab start {part.unit}"
        )
    fresh = _pristine(course, part, path)
    if cell.source == fresh:
        return path, None
    backup = _back_up(path)
    cell.source, cell.outputs, cell.execution_count = fresh, [], None
    _write(learners, path)
    return path, backup


def _pristine(course: Course, part: Part, worked_on: Path) -> str:
    """Returns the source of the part's cell in its released form.

    Makes it from the instructor's source if there is one, since a learner may have worked in
    exercises/.
    """
    solution = course.root / "solutions" / course.level(part)
    if solution.is_file() and part.answer_id in (cells := _cells(_read(solution))):
        return released_source(cells[part.answer_id].source)
    released = course.root / "exercises" / course.level(part)
    if released.is_file() and released.resolve() != worked_on.resolve():
        cells = _cells(_read(released))
        if part.answer_id in cells:
            return str(cells[part.answer_id].source)
    raise DtlabError(
        f"the released form of {part.name} was not found: neither {solution} nor an unchanged "
        f"{released} has it. Get {released} from the course again."
    )


def _cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """Returns the cells with nbgrader metadata, by their names."""
    named = ((cell.metadata.get("nbgrader", {}).get("grade_id"), cell) for cell in notebook.cells)
    return {name: cell for name, cell in named if name}


def _answers(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """Returns the cells that the learner fills in, by their names."""
    named = _cells(notebook).items()
    return {name: cell for name, cell in named if cell.metadata.nbgrader.get("solution")}


def _stamp(released: Path) -> str:
    return hashlib.sha256(released.read_bytes()).hexdigest()[:16]


def _stamped(released: Path) -> NotebookNode:
    """Returns a copy with a digest of its release in the metadata."""
    notebook = _read(released)
    notebook.metadata["dtlab"] = {"release": _stamp(released)}
    for cell in notebook.cells[:1]:  # its reader already has a copy
        cell.source = MAKE_A_COPY.sub("", cell.source)
    return notebook


def _back_up(path: Path) -> Path:
    """Copies a file into the same folder, under the first free name."""
    for number in count(1):
        backup = path.with_name(f"{path.stem}-backup-{number}{path.suffix}")
        try:
            with backup.open("xb") as file:
                file.write(path.read_bytes())
        except FileExistsError:
            continue
        return backup
    raise AssertionError("numbers do not end")


def _read(path: Path) -> NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    # nbformat raises a different error for invalid JSON, invalid text and an invalid notebook.
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
        raise DtlabError(
            f"{path} cannot be read as a notebook. If it is open in JupyterLab, save it there; "
            "else move it away, and use a new one or a backup."
        ) from error


def _write(notebook: NotebookNode, path: Path) -> None:
    """Writes a notebook atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    temporary.replace(path)
