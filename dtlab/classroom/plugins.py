"""Plug-ins for nbgrader, which `settings.configure` installs."""

from __future__ import annotations

import os
from glob import escape, glob
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from nbgrader import preprocessors
from nbgrader.converters import BaseConverter

__all__ = ["ClearSolutions", "Execute", "Stamp", "find_notebooks", "released_source"]


class ClearSolutions(preprocessors.ClearSolutions):  # type: ignore[misc]
    """nbgrader's `ClearSolutions`, with an additional rule for forms that learners fill in.

    It replaces a solution inside a function by `raise NotImplementedError()`. A solution that
    begins in column 0 follows a form, `answers = {"ring": None}`, and is removed completely.
    """

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        before = cell.source
        cell.source = _without_margin(before, self)
        return bool(super()._replace_solution_region(cell, language)) or cell.source != before


class Stamp(preprocessors.NbGraderPreprocessor):  # type: ignore[misc]
    """Stores dtlab's version in released notebooks, so that grading can report another version."""

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Writes the version into the notebook's metadata."""
        nb.metadata["dtlab"] = {"version": version("dtlab")}
        return nb, resources


def _without_margin(source: str, names: preprocessors.ClearSolutions) -> str:
    """Returns the source without the solutions that begin in column 0."""
    lines, inside = [], False
    for line in source.split("\n"):
        begins = names.begin_solution_delimeter in line and not line[:1].isspace()
        inside = inside or begins
        if not inside:
            lines.append(line)
        elif names.end_solution_delimeter in line:
            inside = False
    return "\n".join(lines)


def released_source(source: str) -> str:
    """Returns a cell's source as learners get it."""
    cell = new_code_cell(source)
    ClearSolutions()._replace_solution_region(cell, "python")
    return str(cell.source)


class Execute(preprocessors.Execute):  # type: ignore[misc]
    """Replaces nbgrader's `Execute`: runs cells in a sandbox, and judges answers outside it.

    It starts no kernel. `dtlab grade` does the same for a class, several submissions at a time,
    and also for notebooks that nbgrader cannot read.
    """

    def preprocess(
        self, nb: NotebookNode, resources: Any, km: Any = None
    ) -> tuple[NotebookNode, Any]:
        """Writes outputs and reports into the notebook, and the reasons into verdicts/."""
        from dtlab.classroom.single import judge_alone

        names = resources["nbgrader"]
        course = self.parent.parent.coursedir  # parents: the exporter, then nbgrader's autograde
        judge_alone(
            nb, Path(course.root), names["assignment"], names["student"], names["notebook"]
        )
        return nb, resources


def find_notebooks(converter: BaseConverter) -> None:
    """Replaces `init_notebooks` of nbgrader's converters, which skips ids such as "a[b]".

    nbgrader takes the name of a folder for a pattern and finds nothing, so a student with such
    an id would get no page of feedback.
    """
    course, place = converter.coursedir, converter._format_source
    folders = {
        *glob(place(course.assignment_id, course.student_id)),
        *glob(place(escape(course.assignment_id), escape(course.student_id))),
    }
    names = f"{course.notebook_id}.ipynb"
    found = {folder: sorted(glob(os.path.join(escape(folder), names))) for folder in folders}
    converter.assignments = {folder: paths for folder, paths in found.items() if paths}
    converter.notebooks = []
    if not converter.assignments:
        BaseConverter.init_notebooks(converter)  # raises, and says what was looked for
