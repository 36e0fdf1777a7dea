"""Reference solutions, out of the instructor's notebooks."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dtlab.checks import Part
from tests.mutants.engine import unbound

__all__ = ["Solution", "solution_of"]

SOLUTIONS = Path(__file__).parents[2] / "solutions"


@dataclass(frozen=True)
class Solution:
    """The `source` of a part's solution cell, and those of the code cells `before` it."""

    source: str
    before: tuple[str, ...]

    def answer(self, source: str, symbol: str, **defined: Any) -> Any:
        """What `symbol` is after a cell with `source` has run in the solution's place.

        Names that it uses are those `defined`, or come from the cells before it. Its functions
        stay unimportable, as a notebook's are. Whatever the cell raises is raised.
        """
        names: dict[str, Any] = {"__name__": "solution", **defined}
        exec(compile(self.prelude(source, defined), "prelude", "exec"), names)
        exec(compile(source, "mutant", "exec"), names)
        return names[symbol]

    def prelude(self, source: str, defined: Collection[str] = ()) -> str:
        """The statements of the cells before that a cell with `source` needs to run.

        Not the whole cells: most of them launch ranks and draw. Names that are `defined` without
        them are left out.
        """
        return _prelude_of(self.before, source, frozenset(defined))


def solution_of(part: Part) -> Solution:
    """The solution of `part`. Raises `LookupError` where no notebook has it."""
    for notebook in sorted(SOLUTIONS.glob(f"{part.unit}_*/*.ipynb")):
        cells = list(_code_cells(json.loads(notebook.read_text())))
        for index, cell in enumerate(cells):
            if cell["id"] == part.answer_id:
                before = ("".join(one["source"]) for one in cells[:index])
                return Solution("".join(cell["source"]), tuple(before))
    raise LookupError(
        f"write the cell {part.answer_id!r} in solutions/{part.unit}_*/level-{part.level}.ipynb "
        "first: its solution is one of the right answers, and the mutants are made from it."
    )


def _code_cells(notebook: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (cell for cell in notebook["cells"] if cell["cell_type"] == "code")


@cache
def _prelude_of(cells: tuple[str, ...], source: str, defined: frozenset[str]) -> str:
    return _prelude(cells, unbound(ast.parse(source)) - defined, defined)


def _prelude(cells: Iterable[str], wanted: set[str], defined: Collection[str]) -> str:
    """The statements of the cells that bind the wanted names, and the names that those need.

    Names that are `defined` are not needed.
    """
    kept: list[str] = []
    statements = [one for cell in cells for one in ast.parse(cell).body]
    for statement in reversed(statements):
        if not isinstance(statement, ast.Expr) and _binds(statement) & wanted:
            kept.insert(0, ast.unparse(statement))
            wanted = (wanted - _binds(statement)) | (unbound(statement) - set(defined))
    return "\n".join(kept)


def _binds(statement: ast.stmt) -> set[str]:
    """Names that a statement binds at the top of its cell."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(one.asname or one.name).partition(".")[0] for one in statement.names}
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {node.id for node in stored if isinstance(node.ctx, ast.Store)}
