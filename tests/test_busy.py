"""Perfect submissions of all units keep all points on a machine at a load of 8."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from dtlab.classroom.judging.judge import judge, part_of
from dtlab.classroom.repair.repaired import repair
from dtlab.classroom.workers.server import JudgesServer

ROOT = Path(__file__).parent.parent
LEVELS = sorted(path.relative_to(ROOT / "solutions") for path in ROOT.glob("solutions/*/*.ipynb"))
LOAD = 8
SPIN = "import os\nos.nice(5)\nwhile True: pass"

pytestmark = [
    pytest.mark.proof,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.unit("none"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[JudgesServer]:
    server = JudgesServer()
    server.wait()
    yield server
    server.stop()


@pytest.fixture(scope="module", params=[0, LOAD], ids=["idle", "busy"])
def load(request: pytest.FixtureRequest, server: JudgesServer) -> Iterator[int]:
    """Programs with the graded ones' priority that use all CPU time that they get."""
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(request.param)]
    yield request.param
    for one in busy:
        one.kill()
        one.wait()


def handed_in(path: Path) -> NotebookNode:
    """The solution, as a learner hands it in."""
    notebook = nbformat.read(ROOT / "solutions" / path, as_version=4)
    for cell in notebook.cells:
        if cell.id == "learner":
            cell.source += '\nlearner = "ada"'
    released = nbformat.read(ROOT / "exercises" / path, as_version=4)
    return repair(nbformat.writes(notebook).encode(), released).notebook


@pytest.mark.parametrize("path", LEVELS, ids=str)
def test_a_perfect_submission_gets_all_points(path: Path, load: int, server: JudgesServer) -> None:
    notebook = handed_in(path)
    judged = judge(notebook, server, student="ada", seed=7)
    lost = [
        f"{part.part}: {one.message}"
        for part in judged.verdicts
        for one in part.criteria
        if one.status != "ok"
    ]
    assert not lost, "\n".join(lost)
    assert not [note for note in judged.notes if "left out" in note or "not run" in note]
    graded = [part for cell in notebook.cells if (part := part_of(cell)) and not part.by_hand]
    assert len(judged.verdicts) == len(graded)
