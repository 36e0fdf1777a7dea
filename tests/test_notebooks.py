"""Notebooks have one form: additions of Jupyter are removed, and graded cells follow the parts."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelspec import get_kernel_dict
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from dtlab.checks import Part, find_part, known_parts
from dtlab.checks.course import Course
from dtlab.classroom.notebooks import normalise, normalise_all, release
from dtlab.classroom.plugins import released_source
from dtlab.errors import DtlabError

ROOT = Path(__file__).parent.parent
RING = find_part("01/ring_all_reduce")
SOLUTION = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION"


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """A course of the test's own."""
    for name in ("notebooks", "exercises", "solutions"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    return Course(tmp_path)


def contents(course: Course, *folders: str) -> dict[str, bytes]:
    paths = [path for folder in folders for path in (course.root / folder).rglob("*.ipynb")]
    there = [path for path in paths if ".ipynb_checkpoints" not in path.parts]
    return {str(path.relative_to(course.root)): path.read_bytes() for path in there}


# Opened and saved ------------------------------------------------------------------------------


def test_notebooks_are_kept_with_what_jupyterlab_writes_of_the_kernel() -> None:
    """JupyterLab writes the kernel's own description, whose version depends on the machine."""
    language = {**IPythonKernel.language_info}
    del language["version"]
    kernel = {key: get_kernel_dict()[key] for key in ("display_name", "language")}
    metadata = {"kernelspec": kernel | {"name": "python3"}, "language_info": language}
    for name, text in contents(Course(ROOT), "notebooks", "solutions", "exercises").items():
        assert json.loads(text)["metadata"] == metadata, f"run `make notebooks`: {name}"


def run_and_saved(path: Path) -> None:
    """What JupyterLab leaves of a notebook that was opened, run and saved without a change."""
    notebook = json.loads(path.read_text())
    for number, cell in enumerate(notebook["cells"]):
        cell["metadata"] |= {"trusted": True, "collapsed": False, "editable": True}
        cell["metadata"] |= {"slideshow": {"slide_type": ""}, "jp-MarkdownHeadingCollapsed": True}
        if cell["cell_type"] == "code":
            cell["execution_count"] = number
            cell["metadata"]["execution"] = {"iopub.status.busy": "2024-01-01T00:00:00Z"}
            text = {"output_type": "stream", "name": "stdout", "text": ["hello\n"]}
            data = {"data": {"text/plain": ["3"]}, "metadata": {}, "execution_count": number}
            cell["outputs"] = [text, {"output_type": "execute_result", **data}]
    notebook["metadata"]["kernelspec"] |= {"display_name": "dtlab (.venv)", "name": "dtlab"}
    notebook["metadata"]["language_info"] |= {"version": "3.12.1"}
    notebook["metadata"] |= {"widgets": {"state": {}}, "toc-autonumbering": True}
    path.write_text(json.dumps(shuffled(notebook), ensure_ascii=True, indent=2))


def shuffled(node: Any) -> Any:
    """Put the keys of every JSON object in another order."""
    if isinstance(node, dict):
        keys = random.Random(len(node)).sample(sorted(node), len(node))
        return {key: shuffled(node[key]) for key in keys}
    return [shuffled(one) for one in node] if isinstance(node, list) else node


@pytest.mark.slow
def test_a_notebook_opened_run_and_saved_gives_no_diff(course: Course) -> None:
    list(normalise_all(course))
    before = contents(course, "notebooks", "solutions")
    for name in before:
        run_and_saved(course.root / name)
    changed = {str(path) for path in normalise_all(course)}
    assert changed == before.keys()
    assert contents(course, "notebooks", "solutions") == before


@pytest.mark.slow
def test_normalising_twice_changes_nothing(course: Course) -> None:
    list(normalise_all(course))
    assert not list(normalise_all(course))


@pytest.mark.slow
def test_make_notebooks_gives_what_there_is_also_after_one_was_run(course: Course) -> None:
    """Exercises are what nbgrader generates, byte for byte, however often."""
    kept = ("exercises", "notebooks", "solutions")
    run_and_saved(next((course.root / "solutions").rglob("level-2.ipynb")))
    said = list(release(course))
    after, before = contents(course, *kept), contents(Course(ROOT), *kept)
    assert after.keys() == before.keys()
    changed = [name for name in before if after[name] != before[name]]
    assert not changed, f"run `make notebooks`: {', '.join(changed)}"
    assert "exercises/01_ranks_and_collectives   generated" in said
    assert not (course.root / "gradebook.db").exists()  # an instructor's, and not touched


# Cells and parts -------------------------------------------------------------------------------


def asking_for(part: Part) -> NotebookNode:
    """A notebook that asks for one part, as an instructor would type it."""
    return new_notebook(
        cells=[
            new_markdown_cell("# Title", id="title"),
            new_code_cell(SOLUTION, id=part.answer_id),
            new_code_cell(part.call, id=part.grade_id),
        ]
    )


def test_metadata_of_graded_cells_comes_from_the_part() -> None:
    notebook = asking_for(RING)
    notebook.cells[2].metadata["nbgrader"] = {"grade": True, "points": 99, "locked": False}
    notebook.cells[0].metadata["tags"] = ["kept"]
    normalise(notebook, [RING])
    title, answer, check = notebook.cells
    assert title.metadata == {"tags": ["kept"]}
    assert answer.metadata.nbgrader == {
        "grade": False, "grade_id": RING.answer_id, "locked": False, "schema_version": 3,
        "solution": True, "task": False,
    }  # fmt: skip
    assert check.metadata.nbgrader == {
        "grade": True, "grade_id": RING.grade_id, "locked": True, "points": RING.points,
        "schema_version": 3, "solution": False, "task": False,
    }  # fmt: skip


def test_points_in_the_text_come_from_the_part() -> None:
    notebook = asking_for(RING)
    title = notebook.cells[0]
    rows = [f"| {rule.points + 1:g} | {rule.name} |" for rule in RING.check.rules]
    title.source = "\n".join([
        "# Title", f"| 1 | `{RING.symbol}` | 99 | 1 | ●○○ |", "| 2 | `other` | 99 | 1 | ●○○ |", "",
        "*99 points · 1 minute · difficulty ●○○*", "**What counts**", "|---|---|", *rows,
    ])  # fmt: skip
    normalise(notebook, [RING])
    assert title.source.splitlines() == [
        "# Title", f"| 1 | `{RING.symbol}` | {RING.points:g} | {RING.minutes} | {RING.dots} |",
        "| 2 | `other` | 99 | 1 | ●○○ |", "",
        f"*{RING.points:g} points · {RING.minutes} minutes · difficulty {RING.dots}*",
        "**What counts**", "|---|---|",
        *[f"| {rule.points:g} | {rule.name} |" for rule in RING.check.rules],
    ]  # fmt: skip


def test_what_is_to_be_filled_in_is_a_solution_cell_without_a_part() -> None:
    notebook = new_notebook(cells=[new_code_cell(SOLUTION, id="learner")])
    normalise(notebook, [])
    assert notebook.cells[0].metadata.nbgrader.solution
    notebook.cells[0].source = "no solution any more"
    normalise(notebook, [])
    assert notebook.cells[0].metadata == {}


def test_ids_that_jupyter_made_up_become_readable_and_stay() -> None:
    made_up = ["0a1b2c3d", "8b1c5b4e-6f0e-4b6e-9b1a-0123456789ab", "deadbeef"]
    sources = ["## 3 All-reduce: all ranks", "## 3 All-reduce: all ranks", ""]
    cells = [
        new_markdown_cell(source, id=name) for name, source in zip(made_up, sources, strict=True)
    ]
    notebook = new_notebook(cells=[*cells, new_code_cell("x", id="kept")])
    for _ in range(2):
        normalise(notebook, [])
        assert [one.id for one in notebook.cells] == [
            "3-all-reduce", "3-all-reduce-2", "markdown", "kept",
        ]  # fmt: skip


def without(notebook: NotebookNode, name: str) -> NotebookNode:
    notebook.cells = [one for one in notebook.cells if one.id != name]
    return notebook


def with_source(notebook: NotebookNode, name: str, source: str) -> NotebookNode:
    next(one for one in notebook.cells if one.id == name).source = source
    return notebook


def graded(notebook: NotebookNode, name: str, grade_id: str = "") -> NotebookNode:
    cell = next(one for one in notebook.cells if one.id == name)
    cell.metadata["nbgrader"] = {"grade": True, "grade_id": grade_id or name}
    return notebook


@pytest.mark.parametrize(
    ("notebook", "words"),
    [
        (
            graded(asking_for(RING), "title"),
            "x: cell 'title' is graded, but belongs to no part. The parts here have these graded "
            "cells: ring_all_reduce-check",
        ),
        (
            without(asking_for(RING), RING.grade_id),
            "x: part 01/ring_all_reduce has no cell with its check; its id would be "
            "'ring_all_reduce-check'",
        ),
        (
            without(asking_for(RING), RING.answer_id),
            "x: part 01/ring_all_reduce has no cell that is filled in",
        ),
        (
            with_source(asking_for(RING), RING.answer_id, "def f(): return 1"),
            "x: cell 'ring_all_reduce' has no ### BEGIN SOLUTION",
        ),
        (
            with_source(asking_for(RING), RING.grade_id, "dtlab.check('01/other', f)"),
            'must be: dtlab.check("01/ring_all_reduce", ring_all_reduce)',
        ),
        (
            graded(graded(asking_for(RING), "title", RING.grade_id), RING.grade_id),
            "x: two cells have the id 'ring_all_reduce-check'",
        ),
    ],
)
def test_cells_and_parts_that_do_not_fit_are_named(notebook: NotebookNode, words: str) -> None:
    with pytest.raises(DtlabError) as error:
        normalise(notebook, [RING], name="x")
    assert words in str(error.value)


def test_a_part_of_another_level_is_not_demanded(course: Course) -> None:
    level_1 = next((course.root / "solutions").glob("01_*/level-1.ipynb"))
    notebook = nbformat.read(level_1, as_version=4)
    wanted = {part.grade_id for part in known_parts() if part.unit == "01" and part.level == 1}
    found = {one.id for one in notebook.cells if one.metadata.get("nbgrader", {}).get("grade")}
    assert found == wanted


# What learners get -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "released"),
    [
        (SOLUTION, "def f():\n    # YOUR CODE HERE\n    raise NotImplementedError()"),
        ("a = None\n### BEGIN SOLUTION\na = 1\n### END SOLUTION", "a = None"),
        ("a = None\n# BEGIN SOLUTION\na = 1\n# END SOLUTION\nb = 2", "a = None\nb = 2"),
        (f"a = 0\n### BEGIN SOLUTION\na = 1\n### END SOLUTION\n{SOLUTION}",
         "a = 0\ndef f():\n    # YOUR CODE HERE\n    raise NotImplementedError()"),
    ],
)  # fmt: skip
def test_a_function_becomes_a_blank_and_a_form_keeps_its_own(source: str, released: str) -> None:
    assert released_source(source) == released
