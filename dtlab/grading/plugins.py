"""What dtlab adds to nbgrader, named in `nbgrader_config.py`."""

from __future__ import annotations

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from nbgrader import preprocessors

__all__ = ["ClearSolutions", "released_source"]


class ClearSolutions(preprocessors.ClearSolutions):  # type: ignore[misc]
    """nbgrader's own, save for cells that are a form to fill in.

    A solution inside a function gives way to `raise NotImplementedError()`. One at the margin of
    a cell stands below a form, `answers = {"ring": None}`, and goes without a trace.
    """

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        before = cell.source
        cell.source = _without_margin(before, self)
        return bool(super()._replace_solution_region(cell, language)) or cell.source != before


def _without_margin(source: str, names: preprocessors.ClearSolutions) -> str:
    """The source without the solutions that begin at its margin."""
    kept, inside = [], False
    for line in source.split("\n"):
        begins = names.begin_solution_delimeter in line and not line[:1].isspace()
        inside = inside or begins
        if not inside:
            kept.append(line)
        elif names.end_solution_delimeter in line:
            inside = False
    return "\n".join(kept)


def released_source(source: str) -> str:
    """A cell's source as learners get it."""
    cell = new_code_cell(source)
    ClearSolutions()._replace_solution_region(cell, "python")
    return str(cell.source)
