"""The instructor's own answers keep all points in a class that is graded four at a time.

Graded ranks are in a sandbox, without the judges, in parallel with others: what passes
in a notebook may fail there. `make proof` grades every unit so.
"""

from __future__ import annotations

import importlib
import re
import threading
import traceback
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import pytest

from dtlab.checks.turns import has_turn
from dtlab.classroom.grade import Grading, Outcome
from dtlab.classroom.judging import judge
from dtlab.classroom.releases.release import release_assignment
from dtlab.classroom.settings import course_directory
from dtlab.classroom.submissions import Assignment, handed_in
from tests.a_class import NAME, ROOT, keep_path

SOLUTIONS = ROOT / "solutions"
UNITS = sorted(path.name[:2] for path in SOLUTIONS.iterdir() if re.match(r"\d\d_", path.name))
# What changes the state of the process. A judge may do so in its turn only, or never.
CHANGES = (
    "torch.manual_seed", "torch.set_rng_state", "torch.set_default_dtype", "torch.set_num_threads",
    "random.seed", "random.setstate", "numpy.random.seed",
)  # fmt: skip
NEVER = "os.chdir", "os.putenv"


@pytest.fixture
def out_of_turn(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Functions that judges in threads have called outside of their turns, or never may call."""
    found = set[str]()

    def watched(path: str) -> Callable[..., Any]:
        owner, _, name = path.rpartition(".")
        plain = getattr(importlib.import_module(owner), name)

        def call(*args: Any, **words: Any) -> Any:
            is_forbidden = path in NEVER or not has_turn()
            if threading.current_thread().name.startswith("judge") and is_forbidden:
                found.add(f"{path}\n{''.join(traceback.format_stack(limit=6))}")
            return plain(*args, **words)

        return call

    for path in (*CHANGES, *NEVER):
        monkeypatch.setattr(path, watched(path))
    return found


def graded(course: Path, unit: str, number: int, parts: str | None = None) -> list[Outcome]:
    """Releases parts of a unit, hands in their solutions a number of times, and grades them."""
    chosen = {} if parts is None else {"parts": parts}
    list(release_assignment(unit, name=NAME, course=course, **chosen))
    directory = course_directory(course)
    assignment = Assignment.of(directory, NAME)
    for level, notebook in assignment.notebooks.items():
        (path,) = SOLUTIONS.glob(f"{unit}_*/level-{level[-1]}.ipynb")
        answers = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
        for student in range(number):
            folder = course / "submitted" / f"s{student}" / NAME
            folder.mkdir(parents=True, exist_ok=True)
            filled = deepcopy(notebook)
            for cell in filled.cells:
                if cell.metadata.get("nbgrader", {}).get("solution"):
                    cell.source = answers.get(cell.id, cell.source)
                if cell.id == "learner":
                    cell.source += f"\nlearner = 's{student}'"
            nbformat.write(filled, folder / f"{level}.ipynb")
    return list(Grading(directory, assignment, jobs=number).run(handed_in(directory, NAME, "*")))


def lost(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """The criteria that students have lost."""
    return [
        (outcome.student, part.part, f"seed {part.seed}", criterion.name, criterion.message)
        for outcome in outcomes
        for part in outcome.record.parts.values()
        for criterion in part.criteria
        if criterion.status != "ok"
    ]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_judges_change_the_state_of_the_process_in_their_turns_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out_of_turn: set[str]
) -> None:
    """Judges of these two parts train, also to find out which trials show a mistake."""
    keep_path(monkeypatch)
    judge._hidden_modules_of.cache_clear()
    outcomes = graded(tmp_path / "course", "00", 2, "00/cure,00/train_within")
    assert out_of_turn == set()
    assert lost(outcomes) == []
    assert [len(outcome.record.parts) for outcome in outcomes] == [2, 2]


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("unit", UNITS)
def test_the_solutions_keep_all_points(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out_of_turn: set[str]
) -> None:
    keep_path(monkeypatch)
    outcomes = graded(tmp_path / "course", unit, 4)
    assert out_of_turn == set()
    assert lost(outcomes) == []
    assert len({len(outcome.record.parts) for outcome in outcomes} - {0}) == 1
