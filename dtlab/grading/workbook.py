"""The learner's copies of notebooks: created, updated without losing answers, reset by part."""

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

_MAKE_A_COPY = re.compile(r"^To keep your answers apart from .*?\n\n", re.DOTALL | re.MULTILINE)


def start(course: Course, unit: str, *, renew: bool = False) -> Iterator[str]:
    """Copies a unit's lesson and levels to `my/`, and says what it did with each.

    What is there already stays. With `renew`, a copy of an older release gives way to the newer
    one: answers to its parts are taken over, and it stays beside it as a backup.
    """
    for notebook in course.handed_out(unit):
        source, own = course.root / notebook, course.own(notebook)
        target, shown = course.root / own, course.shown(own)
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
    """Writes the newer release over a copy, with the copy's answers; says what became of it."""
    new, old = _stamped(source), _answers(_read(target))
    asked = _answers(new)
    for name in asked.keys() & old.keys():
        asked[name].source = old[name].source
    backup = _back_up(target).name
    _write(new, target)
    if not asked.keys() & old.keys():  # a lesson: it has blanks, but no parts
        return f"renewed; the old one, with whatever you wrote in it, is {backup}"
    if gone := ", ".join(name for name in old if name not in asked):
        return f"renewed, with your answers; those to {gone}, asked no longer, are in {backup}"
    return f"renewed, with your answers; the old one is {backup}"


def reset(course: Course, part: Part, notebook: Path | None = None) -> tuple[Path, Path | None]:
    """Puts a part back to its start in the learner's notebook; returns it and its backup.

    Touches no other cell, and no file where the part is as it was handed out: then there is no
    backup. Raises `DtlabError` where the notebook, or the part's cell in it, is not to be found.
    """
    path = notebook or course.root / course.worked_on(part)
    if not path.is_file():
        raise DtlabError(f"there is no notebook {path}. To get one: dtlab start {part.unit}")
    learners = _read(path)
    cell = _cells(learners).get(part.answer_id)
    if cell is None:
        raise DtlabError(
            f"{path} has no cell {part.answer_id!r} any more. Move the notebook away, and take a "
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
    """The part's cell as it is handed out.

    It is made from the instructor's source where there is one: a learner may have worked in
    exercises/ itself.
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
        f"how {part.name} began is not to be found: neither {solution} nor an untouched "
        f"{released} has it. Take {released} from the course again."
    )


def _cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """The cells that nbgrader knows, by their names."""
    named = ((one.metadata.get("nbgrader", {}).get("grade_id"), one) for one in notebook.cells)
    return {name: one for name, one in named if name}


def _answers(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """Those of them that the learner fills in."""
    named = _cells(notebook).items()
    return {name: one for name, one in named if one.metadata.nbgrader.get("solution")}


def _stamp(released: Path) -> str:
    return hashlib.sha256(released.read_bytes()).hexdigest()[:16]


def _stamped(released: Path) -> NotebookNode:
    """A copy that knows which release it was made from."""
    notebook = _read(released)
    notebook.metadata["dtlab"] = {"release": _stamp(released)}
    for cell in notebook.cells[:1]:  # its reader has a copy
        cell.source = _MAKE_A_COPY.sub("", cell.source)
    return notebook


def _back_up(path: Path) -> Path:
    """Copies a file beside itself, under the first name that is free."""
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
    # No JSON, no text, or JSON that is no notebook: nbformat has an error of its own for each.
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
        raise DtlabError(
            f"{path} cannot be read as a notebook. If it is open in JupyterLab, save it there; "
            "else move it away, and take a new one or a backup."
        ) from error


def _write(notebook: NotebookNode, path: Path) -> None:
    """Writes in one step, so that nobody sees half a notebook."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.new")
    half.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    half.replace(path)
