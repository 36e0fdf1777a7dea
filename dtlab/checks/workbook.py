"""Creates the learner's copies of notebooks, updates them with their answers, and resets parts."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from dtlab.checks.course import CARD, Course, level_file
from dtlab.checks.parts import Part
from dtlab.errors import DtlabError

__all__ = ["reset", "start"]

_LEVEL_LINK = re.compile(r"\]\(([^()\s]*/)?level-(\d)\.ipynb")
MAKE_A_COPY = re.compile(r"^To keep your answers apart from .*?\n\n", re.DOTALL | re.MULTILINE)


def start(course: Course, unit: str, *, renew: bool = False) -> Iterator[str]:
    """Copies a unit's lesson and levels to `my/`, and yields a line on each.

    Existing copies stay. With `renew`, a newer release replaces a copy of an older one, with the
    answers to its parts; the old copy is kept as a backup.
    """
    for notebook in course.handed_out(unit):
        source, copy = course.material / notebook, course.own(notebook)
        found, target, shown = course.in_use(notebook), course.root / copy, course.shown(copy)
        if found == notebook:
            _write(_stamped(source), target)
            yield f"{shown}   new"
            continue
        old = course.root / found
        if found == copy and _read(old).metadata.get("dtlab", {}).get("release") == _stamp(source):
            yield f"{shown}   kept"
        elif renew:
            yield f"{shown}   {_renew(source, old, target)}"
        else:
            yield f"{course.shown(found)}   kept; the course has a newer one (see --renew)"
    card, copy = course.material / CARD, Path("my") / CARD
    if card.is_file() and not (course.root / copy).exists():
        (course.root / copy).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(card, course.root / copy)
        yield f"{course.shown(copy)}   new"


def _renew(source: Path, old: Path, target: Path) -> str:
    """Writes the newer release with the answers of the old copy; returns a message.

    The old copy becomes the backup. It may have another name, from an earlier dtlab.
    """
    new, answered = _stamped(source), _answers(_read(old))
    answers = _answers(new)
    for name in answers.keys() & answered.keys():
        answers[name].source = answered[name].source
    backup = _back_up(old).name
    _write(new, target)
    was = ""
    if old != target:
        old.unlink()
        was = f". It was {old.name}: if that is open in JupyterLab, close it without saving"
    if not answers.keys() & answered.keys():  # a lesson has blanks, but no parts
        return f"renewed; the old copy, with everything that you wrote, is {backup}{was}"
    renewed = "renewed, with your answers"
    if gone := ", ".join(name for name in answered if name not in answers):
        return f"{renewed}; answers that are no longer asked ({gone}) are in {backup}{was}"
    return f"{renewed}; the old copy is {backup}{was}"


def reset(
    course: Course,
    part: Part,
    notebook: Path | None = None,
    cleared: Callable[[str], str] | None = None,
) -> tuple[Path, Path | None]:
    """Resets a part in the learner's notebook to its released form.

    `cleared` removes the solution from the source of an instructor's cell; without it, only the
    released notebooks are used. Changes no other cell. Returns the paths of the notebook and of
    its backup. If the part is already in its released form, changes no file, and the backup is
    None. Raises `DtlabError` if the notebook, or the part's cell in it, is not found.
    """
    path = notebook or course.root / course.worked_on(part)
    if not path.is_file():
        raise DtlabError(f"there is no notebook {path}. To get one: dtlab start {part.unit}")
    learners = _read(path)
    cell = _cells(learners).get(part.answer_id)
    if cell is None:
        raise DtlabError(
            f"{path} no longer has a cell {part.answer_id!r}. Move the notebook away, and get a "
            f"new one: dtlab start {part.unit}"
        )
    fresh = _pristine(course, part, path, cleared)
    if cell.source == fresh:
        return path, None
    backup = _back_up(path)
    cell.source, cell.outputs, cell.execution_count = fresh, [], None
    _write(learners, path)
    return path, backup


def _pristine(
    course: Course, part: Part, worked_on: Path, cleared: Callable[[str], str] | None
) -> str:
    """Returns the source of the part's cell in its released form.

    It is generated from the instructor's source if there is one, since a learner may have worked
    in exercises/.
    """
    solution = course.root / "solutions" / course.level(part)
    if cleared and solution.is_file() and part.answer_id in (cells := _cells(_read(solution))):
        return cleared(cells[part.answer_id].source)
    released = course.material / "exercises" / course.level(part)
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


def _text(released: Path) -> str:
    """Returns the text of a notebook, with links to levels under their names in my/."""

    def renamed(link: re.Match[str]) -> str:
        folder = link[1] or ""
        return f"]({folder}{level_file((released.parent / folder).name[:2], link[2])}"

    return _LEVEL_LINK.sub(renamed, released.read_text(encoding="utf-8"))


def _stamp(released: Path) -> str:
    return hashlib.sha256(_text(released).encode()).hexdigest()[:16]


def _stamped(released: Path) -> NotebookNode:
    """Returns a copy with a digest of its release in the metadata."""
    notebook = nbformat.reads(_text(released), as_version=4)
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
