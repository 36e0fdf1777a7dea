"""What a unit's notebooks do when they run: lessons in time, solutions all points, blanks none.

`make test` runs all notebooks in one kernel, on ranks that stay, and lessons with few repetitions
(DTLAB_QUICK). `make proof` runs each notebook in full, in a separate kernel, on fresh ranks.
A lesson that starts Ray runs in `make proof` only.
"""

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

from dtlab.checks.course import SEQUEL
from tests.drawn import programs_words
from tests.leftovers import STAYING
from tests.marks import proof
from tests.test_units import LEVELS, PARTS, ROOT, UNITS, files_of, read, solution_of

LESSON_GOAL = {"11": 120}  # seconds, 60 for all others; a test allows three times that
LEARNERS = ("ada", "b.ö@example.org", "20241234")  # besides the notebook's id, or none



def lesson_of(unit: str) -> list[NotebookNode]:
    """The cells of a lesson or of its second notebook."""
    return list(read(ROOT / "notebooks" / f"{unit}.ipynb").cells)


LESSONS = [one for one in UNITS if "lesson" in files_of(one)]
SEQUELS = [path.stem for path in sorted((ROOT / "notebooks").glob(f"*{SEQUEL}.ipynb"))]
WITH_RAY = [one for one in LESSONS if "local_ray" in "".join(c.source for c in lesson_of(one))]
lesson = pytest.mark.parametrize(
    ("unit", "run"),
    [
        *((unit, "shared") for unit in LESSONS if unit not in WITH_RAY),
        *(proof(unit, "shared") for unit in SEQUELS),
        *(proof(unit, "alone") for unit in [*LESSONS, *SEQUELS]),
    ],
    indirect=["run"],
)
level = pytest.mark.parametrize(
    "name",
    [f"{name}/{one}.ipynb" for name in UNITS for one in files_of(name) if one in LEVELS],
    ids=lambda name: f"{name[:2]}-{Path(name).stem}",
)  # fmt: skip
alone_or_not = pytest.mark.parametrize("run", ["shared", proof("alone")], indirect=True)

Run = Callable[..., NotebookNode]

# What runs before each notebook in a kernel that serves many.
BEGIN = """
%reset -f
import gc, os, sys
gc.collect()
gc.freeze()  # without it, each collection would look through all that earlier notebooks imported
os.chdir({folder!r})
sys.path.append({root!r})
from tests.staying import serve_this_process
serve_this_process()
del gc, os, sys, serve_this_process
"""


@contextmanager
def kernel() -> Iterator[NotebookClient]:
    """A kernel, which belongs to no test in particular."""
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=180)
    with client.setup_kernel():
        yield client


def run_in(client: NotebookClient, notebook: NotebookNode, errors: bool = False) -> NotebookNode:
    """Runs the cells; with `errors`, also those after one that fails."""
    client.nb, client.allow_errors = notebook, errors
    client.reset_execution_trackers()
    for index, cell in enumerate(notebook.cells):
        client.execute_cell(cell, index)
    return notebook


@pytest.fixture(scope="module")
def shared_kernel() -> Iterator[NotebookClient]:
    """One kernel for many notebooks, in which lessons repeat little."""
    before = set(STAYING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTLAB_QUICK", "1")
        with kernel() as client:
            STAYING.add(client.km.provisioner.pid)
            yield client
    STAYING.intersection_update(before)


@pytest.fixture
def run(
    request: pytest.FixtureRequest, tmp_path: Path, shared_kernel: NotebookClient
) -> Iterator[Run]:
    """Runs a notebook, in the shared kernel or in a separate one."""
    if request.param == "shared":
        client = shared_kernel
        code = BEGIN.format(folder=str(tmp_path), root=str(ROOT))
        begin = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])

        def run_shared(notebook: NotebookNode, errors: bool = False) -> NotebookNode:
            run_in(client, begin)
            return run_in(client, notebook, errors)

        yield run_shared
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with kernel() as client:

            def run_alone(notebook: NotebookNode, errors: bool = False) -> NotebookNode:
                return run_in(client, notebook, errors)

            yield run_alone


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
def test_a_lesson_runs_in_time_and_its_figures_say_what_they_show(unit: str, run: Run) -> None:
    started = time.monotonic()
    notebook = run(read(ROOT / "notebooks" / f"{unit}.ipynb"))
    assert time.monotonic() - started < 3 * LESSON_GOAL.get(unit[:2], 60)
    outputs = [(cell.id, one) for cell in notebook.cells for one in cell.get("outputs", [])]
    figures = [(name, output) for name, output in outputs if has_figure(output)]
    assert figures, "a lesson without a figure"
    assert not [name for name, output in figures if not says_what_it_shows(output)]
    assert not [words for _, output in figures
                for words in programs_words(output["data"].get("text/plain", ""))]  # fmt: skip


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


def leave_out_what_only_shows(notebook: NotebookNode) -> None:
    """Keep the cells that a check needs, without those in which a learner only looks."""
    only_show = ("-run", "-try", "-figure", "-look", "-watch")
    notebook.cells = [cell for cell in notebook.cells if not cell.id.endswith(only_show)]


@level
@alone_or_not
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_solution_earns_everything_for_every_learner(
    name: str, run: Run, request: pytest.FixtureRequest
) -> None:
    alone = "alone" in request.node.name
    learners = LEARNERS if name.endswith("level-1.ipynb") and alone else LEARNERS[:1]
    opened = list(copies(ROOT / "solutions" / name, *learners))
    for notebook in opened if alone else opened[-1:]:
        if not alone:  # other cells that need the results may then fail
            leave_out_what_only_shows(notebook)
        assert earned(run(notebook, errors=not alone)) == points_of(name)


@level
@alone_or_not
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_untouched_exercise_earns_nothing(
    name: str, run: Run, request: pytest.FixtureRequest
) -> None:
    opened = list(copies(ROOT / "exercises" / name, LEARNERS[0]))
    if "shared" in request.node.name:
        for notebook in opened:
            leave_out_what_only_shows(notebook)
    # Without an id, ranks would only run again.
    for notebook in opened if name.endswith("level-1.ipynb") else opened[-1:]:
        assert earned(run(notebook, errors=True)) == dict.fromkeys(points_of(name), 0)
