"""Plug-ins for nbgrader that `nbgrader_config.py` names."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from nbgrader import preprocessors

__all__ = ["ClearSolutions", "Execute", "Stamp", "released_source"]


class ClearSolutions(preprocessors.ClearSolutions):  # type: ignore[misc]
    """nbgrader's own, save for cells that are a form to fill in.

    A solution inside a function gives way to `raise NotImplementedError()`. One at the margin of
    a cell stands below a form, `answers = {"ring": None}`, and goes without a trace.
    """

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        before = cell.source
        cell.source = _without_margin(before, self)
        return bool(super()._replace_solution_region(cell, language)) or cell.source != before


class Stamp(preprocessors.NbGraderPreprocessor):  # type: ignore[misc]
    """Notes in what learners get which dtlab made it: grading says so where it is another."""

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Puts it into the notebook's metadata."""
        nb.metadata["dtlab"] = {"version": version("dtlab")}
        return nb, resources


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


class Execute(preprocessors.Execute):  # type: ignore[misc]
    """nbgrader's own, save that learners' cells run behind walls, and are judged from outside.

    No kernel is started. `dtlab grade` does the same for a class, several at a time, and also for
    notebooks that nbgrader cannot read.
    """

    def preprocess(
        self, nb: NotebookNode, resources: Any, km: Any = None
    ) -> tuple[NotebookNode, Any]:
        """Puts outputs and reports into the notebook, and keeps the reasons in verdicts/."""
        from dtlab.grading.classroom.alone import judge_alone

        names = resources["nbgrader"]
        course = self.parent.parent.coursedir  # of the exporter of nbgrader's autograde
        judge_alone(
            nb, Path(course.root), names["assignment"], names["student"], names["notebook"]
        )
        return nb, resources
