"""Notebooks as learners hand them in, and what must hold once `repair` has repaired them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
from nbformat import NotebookNode

from dtlab.classroom.repair.repaired import Repaired, repair

UNIT = Path(__file__).parent.parent / "exercises" / "01_ranks_and_collectives"
RELEASED = {path.stem: nbformat.read(path, as_version=4) for path in sorted(UNIT.glob("*.ipynb"))}
LEVEL_2 = RELEASED["level-2"]
PARTS = ("reduce_scatter", "ring_all_reduce", "tree_broadcast", "hierarchical_all_reduce")

Tree = dict[str, Any]  # a notebook, or a cell, as JSON


def tree(notebook: NotebookNode) -> Tree:
    return dict(json.loads(nbformat.writes(notebook)))


def data(notebook: object) -> bytes:
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass")


def work() -> Tree:
    """Level II as a learner hands it in: all parts answered, and the learner's own cells."""
    notebook = tree(LEVEL_2)
    for part in PARTS:
        at(notebook, part)["source"] = answer(part)
    own = [code(f"scratch_{number} = {number}  # mine", f"own-{number}") for number in range(3)]
    notebook["cells"][5:5] = [own[0]]
    notebook["cells"] += [own[1], markdown("My notes.  # mine"), own[2]]
    return notebook


def answer(part: str, result: str = "") -> str:
    """An answer that `earned` recognises."""
    return f"def {part}(*_):\n    return {result or part!r}  # mine"


def code(source: object, name: str | None = None, **fields: object) -> Tree:
    cell = {"cell_type": "code", "source": source, "metadata": {}, "outputs": []}
    return cell | {"execution_count": None} | ({"id": name} if name else {}) | fields


def markdown(source: object, **fields: object) -> Tree:
    return {"cell_type": "markdown", "source": source, "metadata": {}, "id": "notes"} | fields


def at(notebook: Tree, name: str) -> Tree:
    """The cell with that id."""
    return next(one for one in notebook["cells"] if one.get("id") == name)


def place(notebook: Tree, name: str) -> int:
    return [one.get("id") for one in notebook["cells"]].index(name)


def mine(cells: list[Any]) -> list[str]:
    """The sources that a learner wrote, as far as they can be read without doubt."""
    return [text for text in map(_source, cells) if "# mine" in text]


def _source(cell: Any) -> str:
    source = cell.get("source") if isinstance(cell, dict) else None
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    return source if isinstance(source, str) else ""


def earned(notebook: NotebookNode) -> tuple[str, ...]:
    """The parts whose check meets the answer to it, when the cells run in their order."""
    passed: set[str] = set()

    def check(name: str, function: Callable[[], str]) -> None:
        if name == f"01/{function()}":
            passed.add(function())

    names = {"dtlab": SimpleNamespace(check=check)}
    handed_out = {one.source for one in LEVEL_2.cells if "nbgrader" not in one.metadata}
    for one in notebook.cells:
        if one.cell_type == "code" and one.source not in handed_out:
            try:
                exec(one.source, names)
            except Exception:  # noqa: BLE001  a notebook runs the next cell
                continue
    return tuple(part for part in PARTS if part in passed)


def demand_sound(repaired: Repaired, released: NotebookNode = LEVEL_2) -> None:
    """The result is a notebook with each graded cell once, and repairing it changes nothing."""
    nbformat.validate(repaired.notebook)
    cells = repaired.notebook.cells
    assert len({one.id for one in cells}) == len(cells)
    assert repaired.notebook.metadata.kernelspec == released.metadata.kernelspec
    known = {one.id: one for one in released.cells if "nbgrader" in one.metadata}
    marked = [one for one in cells if "nbgrader" in one.metadata]
    assert sorted(one.id for one in marked) == sorted(known)
    for one in marked:
        assert one.metadata.nbgrader == known[one.id].metadata.nbgrader
        assert one.cell_type == known[one.id].cell_type
        roles = one.metadata.nbgrader
        assert roles.solution or roles.task or one == known[one.id]
    assert not any(one.get("outputs") or one.get("execution_count") for one in cells)
    again = repair(nbformat.writes(repaired.notebook).encode(), released)
    assert again.notebook == repaired.notebook
    assert again.notes == ()
