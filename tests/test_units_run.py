"""What a unit's notebooks do when they run: lessons in time, solutions all points, blanks none."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.test_units import LEVELS, PARTS, ROOT, UNITS, files_of, read, solution_of

LESSON_GOAL = {"11": 120}  # seconds, 60 for all others; a test allows three times that
LEARNERS = ("ada", "b.ö@example.org", "20241234")  # beside whom the notebook names, or nobody

lesson = pytest.mark.parametrize("unit", [one for one in UNITS if "lesson" in files_of(one)])
level = pytest.mark.parametrize(
    "name",
    [f"{name}/{one}.ipynb" for name in UNITS for one in files_of(name) if one in LEVELS],
    ids=lambda name: f"{name[:2]}-{Path(name).stem}",
)  # fmt: skip


@contextmanager
def kernel(folder: Path, *, errors: bool) -> Iterator[Callable[[NotebookNode], NotebookNode]]:
    """A kernel that runs notebooks, one after the other; with or without `errors` in cells."""
    client = NotebookClient(
        nbformat.v4.new_notebook(),
        timeout=180,
        allow_errors=errors,
        resources={"metadata": {"path": str(folder)}},
    )

    def run(notebook: NotebookNode) -> NotebookNode:
        client.nb = notebook
        client.reset_execution_trackers()
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        return notebook

    with client.setup_kernel():
        yield run


# Lessons ---------------------------------------------------------------------------------------


def has_figure(output: NotebookNode) -> bool:
    return any(kind.startswith("image/") for kind in output.get("data", {}))


def says_what_it_shows(output: NotebookNode) -> bool:
    """Whether a figure carries its text: as `alt`, which an HTML or a Markdown form has."""
    forms = "".join(str(form) for form in output.get("data", {}).values())
    return bool(re.search(r'(?:alt|aria-label)="[^"]{20,}"', forms))


@lesson
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lesson_runs_in_time_and_its_figures_say_what_they_show(
    unit: str, tmp_path: Path
) -> None:
    notebook = read(ROOT / "notebooks" / f"{unit}.ipynb")
    started = time.monotonic()
    with kernel(tmp_path, errors=False) as run:
        run(notebook)
    assert time.monotonic() - started < 3 * LESSON_GOAL.get(unit[:2], 60)
    outputs = [(cell.id, one) for cell in notebook.cells for one in cell.get("outputs", [])]
    figures = [(name, output) for name, output in outputs if has_figure(output)]
    assert figures, "a lesson without a figure"
    assert not [name for name, output in figures if not says_what_it_shows(output)]


# Levels ----------------------------------------------------------------------------------------


def earned(notebook: NotebookNode) -> dict[str, float]:
    """What nbgrader would read from the cells with checks: the number that a report shows it."""
    points = {}
    for cell in notebook.cells:
        role = cell.metadata.get("nbgrader", {})
        if not role.get("grade") or role.get("solution"):  # or graded by hand
            continue
        shown = [o.data["text/plain"] for o in cell.outputs if o.output_type == "execute_result"]
        clean = all(o.output_type not in ("error", "stream") for o in cell.outputs)
        points[cell.id] = float(shown[0]) if shown and clean else -1.0
    return points


def points_of(name: str) -> dict[str, float]:
    """The points of each cell of a level that has a check."""
    parts = [part for part in PARTS if solution_of(part) == ROOT / "solutions" / name]
    return {part.grade_id: part.points for part in parts if not part.by_hand}


def copies(path: Path, *learners: str) -> Iterator[NotebookNode]:
    """The notebook as it is, and, if it asks for an id, as each of the learners fills that in."""
    yield read(path)
    for learner in learners:
        notebook = read(path)
        for cell in notebook.cells:
            if cell.id == "learner":
                cell.source += f"\nlearner = {learner!r}"
                yield notebook


@level
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_solution_earns_everything_whoever_hands_it_in(name: str, tmp_path: Path) -> None:
    learners = LEARNERS if name.endswith("level-1.ipynb") else LEARNERS[:1]  # others run ranks
    with kernel(tmp_path, errors=False) as run:
        for notebook in copies(ROOT / "solutions" / name, *learners):
            assert earned(run(notebook)) == points_of(name)


@level
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_untouched_exercise_earns_nothing(name: str, tmp_path: Path) -> None:
    opened = list(copies(ROOT / "exercises" / name, LEARNERS[0]))
    with kernel(tmp_path, errors=True) as run:  # without an id, ranks would only run once more
        for notebook in opened if name.endswith("level-1.ipynb") else opened[-1:]:
            assert earned(run(notebook)) == dict.fromkeys(points_of(name), 0)
