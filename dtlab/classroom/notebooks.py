"""Normalises notebooks for git: no outputs, stable ids; the parts write nbgrader's metadata.

Points, minutes and difficulty in the text of a level are written from the parts too. In lessons,
the source of cells in which there is nothing to read is folded.

    notebooks/, solutions/  ── normalise ──>  the same files  ── nbgrader ──>  exercises/

Opening, running and saving a notebook without a change gives the same file after normalising.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from dtlab.checks.course import Course
from dtlab.checks.functions.checks import Check
from dtlab.checks.parts import Part, known_parts
from dtlab.errors import DtlabError

__all__ = ["normalise", "normalise_all", "release"]

_METADATA = {  # as JupyterLab saves it, which also adds the version of Python to language_info
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
_MADE_UP = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){0,3}(-[0-9a-f]{12})?")  # random ids of Jupyter
_ABOUT = re.compile(r"[\d.]+ points? · \d+ minutes? · difficulty [●○]+")
_COLUMNS = r" [\d.]+ \| \d+ \| [●○]+ \|$"
_COUNTS = "What counts"
_CRITERION = re.compile(r"^\| [\d.]+ \|", re.MULTILINE)
_UNITS = "[0-9][0-9]_*"
_BLANK = re.compile(r"^\s*#+ BEGIN SOLUTION", re.MULTILINE)


def release(course: Course) -> Iterator[str]:
    """Normalises all notebooks and generates `exercises/` again; yields lines on the changes.

    Raises `DtlabError` if cells and parts do not match, or nbgrader fails.
    """
    for path in normalise_all(course):
        yield f"{path}   normalised"
    units = sorted(path.name for path in (course.root / "solutions").glob(_UNITS))
    if units:
        yield f"exercises/   nbgrader generates {len(units)} units"
        _generate(course)
    for unit in units:
        yield f"exercises/{unit}   generated"


def normalise_all(course: Course) -> Iterator[Path]:
    """Normalises lessons and solutions; yields the paths of those that changed."""
    parts = list(known_parts())
    sources = sorted((course.root / "solutions").glob(f"{_UNITS}/*.ipynb"))
    for path in [*sorted((course.root / "notebooks").glob("*.ipynb")), *sources]:
        name = path.relative_to(course.root)
        wanted = _parts_of(path, parts) if path in sources else []
        before = path.read_text(encoding="utf-8")
        notebook = nbformat.reads(before, as_version=4)
        normalise(notebook, wanted, name=str(name))
        if path not in sources:
            _fold(notebook)
        after = nbformat.writes(notebook) + "\n"
        if after != before:
            path.write_text(after, encoding="utf-8")
            yield name


def normalise(
    notebook: NotebookNode, parts: Iterable[Part], *, name: str = "the notebook"
) -> None:
    """Normalises a notebook in place; `parts` are the parts that it contains.

    Raises `DtlabError` if a graded cell belongs to no part, a part lacks one of its cells, a
    part's cell does not have the required form, or two cells have the same id.
    """
    parts = list(parts)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(_METADATA)
    ids: set[str] = set()
    for cell in notebook.cells:
        cell.id = _stable_id(cell, ids)
        if cell.id in ids:
            raise DtlabError(f"{name}: two cells have the id {cell.id!r}. Rename one of them.")
        ids.add(cell.id)
    _demand_cells(notebook, parts, name)
    for part in parts:
        _write_points(notebook, part)
    for cell in notebook.cells:
        _clean(cell, {part.grade_id: part for part in parts}, {part.answer_id for part in parts})


def _demand_cells(notebook: NotebookNode, parts: list[Part], name: str) -> None:
    """Raises `DtlabError` if parts and cells do not match."""
    cells = {cell.id: cell for cell in notebook.cells}
    for part in parts:
        for cell_id, description in {
            part.answer_id: "that is filled in",
            **({} if part.by_hand else {part.grade_id: "with its check"}),
        }.items():
            if cell_id not in cells:
                raise DtlabError(
                    f"{name}: part {part.name} has no cell {description}; its id would be "
                    f"{cell_id!r}."
                )
        _demand_form(part, cells, name)
    known = {part.grade_id for part in parts}
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade") and cell.id not in known:
            raise DtlabError(
                f"{name}: cell {cell.id!r} is graded, but belongs to no part. The parts here have "
                f"these graded cells: {', '.join(part.grade_id for part in parts) or 'none'}. Add "
                "a part to dtlab/units/unitNN, or remove the grading of the cell."
            )


def _demand_form(part: Part, cells: Mapping[str, NotebookNode], name: str) -> None:
    """Raises `DtlabError` if the cells of a part do not have the required form."""
    if not _BLANK.search(cells[part.answer_id].source):
        raise DtlabError(
            f"{name}: cell {part.answer_id!r} has no ### BEGIN SOLUTION, so learners would "
            "get the whole solution. Add the line."
        )
    if part.by_hand and cells[part.grade_id].cell_type != "markdown":
        raise DtlabError(
            f"{name}: cell {part.grade_id!r} is graded by hand, so it must be Markdown."
        )
    if not part.by_hand and cells[part.grade_id].source.strip() != part.call:
        raise DtlabError(f"{name}: cell {part.grade_id!r} must be: {part.call}")


def _write_points(notebook: NotebookNode, part: Part) -> None:
    """Writes a part's points, minutes and difficulty wherever the text of its level has them.

    They stand in the table of the first cell, below the part's heading, and before each of its
    criteria. The tests demand these places.
    """
    cells = notebook.cells
    row = rf"^(\|.*`{re.escape(part.symbol)}`.*\|){_COLUMNS}"
    columns = rf"\1 {part.points:g} | {part.minutes} | {part.dots} |"
    cells[0].source = re.sub(row, columns, cells[0].source, flags=re.MULTILINE)
    place = [cell.id for cell in cells].index(part.answer_id)
    heading = next((cell for cell in cells[place::-1] if _ABOUT.search(cell.source)), None)
    if heading is not None:
        line = f"{part.points:g} points · {part.minutes} minutes · difficulty {part.dots}"
        heading.source = _ABOUT.sub(line, heading.source, count=1)
    criteria = next((cell for cell in cells[place::-1] if _COUNTS in cell.source), None)
    if criteria is not None and isinstance(part.check, Check):
        above, _, table = criteria.source.partition(_COUNTS)
        points = [f"{rule.points:g}" for rule in part.check.rules]
        if len(_CRITERION.findall(table)) == len(points):
            table = _CRITERION.sub(lambda _: f"| {points.pop(0)} |", table)
            criteria.source = above + _COUNTS + table


def _clean(cell: NotebookNode, graded: dict[str, Part], answers: set[str]) -> None:
    """Removes outputs and metadata that do not belong in git; writes nbgrader's metadata."""
    metadata = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None
    if cell.id in graded:
        part = graded[cell.id]
        metadata["nbgrader"] = _role(cell, points=part.points, by_hand=part.by_hand)
    elif cell.id in answers or _BLANK.search(cell.source):
        metadata["nbgrader"] = _role(cell)
    cell.metadata = nbformat.from_dict(metadata)


def _fold(notebook: NotebookNode) -> None:
    """Folds the source of imports, guesses and lone figures, as JupyterLab does."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and (cell.id == "imports" or _nothing_to_read(cell.source)):
            cell.metadata["jupyter"] = {"source_hidden": True}


def _nothing_to_read(source: str) -> bool:
    """Tells whether a cell only asks for guesses, or only calls a function with constants."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # a magic
        return False
    match statements:
        case [ast.Expr(ast.Call(_, arguments, options))]:
            given = [*arguments, *(option.value for option in options)]
            return all(isinstance(argument, ast.Constant) for argument in given)
        case []:
            return False
    return all(map(_is_guess, statements))


def _is_guess(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(value=ast.Call(ast.Name("guess") | ast.Attribute(attr="guess"))):
            return True
    return False


def _role(
    cell: NotebookNode, points: float | None = None, by_hand: bool = False
) -> dict[str, object]:
    """Returns nbgrader's metadata of a graded cell if there are points, else of an answer cell.

    A cell that is graded `by_hand` is both.
    """
    graded, filled_in = points is not None, points is None or by_hand
    role = {"grade": graded, "grade_id": cell.id, "locked": not filled_in, "schema_version": 3}
    role |= {"solution": filled_in, "task": False}
    if points is not None:
        role["points"] = int(points) if points == int(points) else points
    return role


def _stable_id(cell: NotebookNode, taken: set[str]) -> str:
    """Returns nbgrader's name of the cell, or else its id; a readable id replaces a random one."""
    name = str(cell.metadata.get("nbgrader", {}).get("grade_id", "") or cell.get("id", ""))
    if name and not _MADE_UP.fullmatch(name):
        return name
    tokens = re.findall(r"[a-z0-9]+", cell.source.lower())[:3]
    stem = "-".join(tokens)[:40] or cell.cell_type
    number = 1
    while (name := stem if number == 1 else f"{stem}-{number}") in taken:
        number += 1
    return name


def _parts_of(path: Path, parts: Iterable[Part]) -> list[Part]:
    """Returns the parts in the notebook solutions/NN_name/level-N.ipynb."""
    unit, level = path.parent.name[:2], path.stem.removeprefix("level-")
    return [part for part in parts if part.unit == unit and str(part.level) == level]


def _generate(course: Course) -> None:
    """Makes nbgrader release all units, without changing the gradebook."""
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "--force", "--no-db"]
    result = subprocess.run(
        [*command, "--assignment", _UNITS], cwd=course.root, capture_output=True, text=True
    )
    if result.returncode != 0:
        raise DtlabError(f"nbgrader could not generate the exercises:\n{result.stderr.strip()}")
