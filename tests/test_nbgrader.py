"""A course from release to feedback with nbgrader itself, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config, PyFileConfigLoader

from dtlab.checks import find_part, known_parts
from dtlab.checks.learners import best_shares
from tests.known_answers import answers_of

ROOT = Path(__file__).parent.parent
UNIT = "01_ranks_and_collectives"
BLANK = "ring_all_reduce"
CHECK = "ring_all_reduce-check"
STUDENTS = ("solution", "untouched", "whole_tensor", "copycat")

pytestmark = [pytest.mark.slow, pytest.mark.proof]


class Course:
    """A course folder with our sources and settings; nbgrader works on it in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "solutions", folder / "solutions")
        shutil.copy(ROOT / "nbgrader_config.py", folder)
        config = Config(PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config())
        config.Exchange.root = str(folder / "exchange")
        self.directory = CourseDirectory(config=config)
        self.nbgrader = NbGraderAPI(coursedir=self.directory, config=config)

    def do(self, step: str, *args: str) -> None:
        result = getattr(self.nbgrader, step)(UNIT, *args)
        assert result["success"], result.get("error") or result.get("log")

    def submit(self, student: str, level_1: NotebookNode, level_2: NotebookNode) -> None:
        place = self.folder / "submitted" / student / UNIT
        place.mkdir(parents=True)
        nbformat.write(level_1, place / "level-1.ipynb")
        nbformat.write(level_2, place / "level-2.ipynb")

    def released(self, level: str = "level-2") -> NotebookNode:
        return nbformat.read(self.folder / "exercises" / UNIT / f"{level}.ipynb", as_version=4)

    def score(self, student: str, level: str = "level-2") -> float:
        with Gradebook(self.directory.db_url, "dtlab") as book:
            return float(book.find_submission_notebook(level, UNIT, student).score)

    def table(self, student: str, name: str = CHECK, level: str = "level-2") -> str:
        """The report that the learner's check left in the autograded notebook, as HTML."""
        path = self.folder / "autograded" / student / UNIT / f"{level}.ipynb"
        outputs = cell(nbformat.read(path, as_version=4), name).outputs
        return "".join(one.get("data", {}).get("text/html", "") for one in outputs)


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(one for one in notebook.cells if one.id == name)


def filled(notebook: NotebookNode, source: str) -> NotebookNode:
    cell(notebook, BLANK).source = source
    return notebook


def solved(notebook: NotebookNode, level: str, learner: str = "") -> NotebookNode:
    """The released notebook with the instructor's cells in its blanks, and the learner's id."""
    solution = nbformat.read(ROOT / "solutions" / UNIT / f"{level}.ipynb", as_version=4)
    for one in notebook.cells:
        if one.metadata.get("nbgrader", {}).get("solution"):
            one.source = cell(solution, one.id).source
            one.source += f"\nlearner = {learner!r}" if one.id == "learner" else ""
    return notebook


def source_of_wrong_answer(name: str) -> str:
    """The cell of a known wrong answer to the exercise."""
    known = answers_of(find_part(f"{UNIT[:2]}/{BLANK}"))
    assert known is not None
    return known.cells[name]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    """A course in which some students have been graded, one with the answers of another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("PATH", os.environ["PATH"])  # nbgrader_config.py changes it
        made = Course(tmp_path_factory.mktemp("course"))
        made.do("generate_assignment")
        answers = solved(made.released("level-1"), "level-1", learner=" Solution")
        made.submit("solution", answers, solved(made.released(), "level-2"))
        made.submit("untouched", made.released("level-1"), made.released())
        wrong = source_of_wrong_answer("whole_tensor_in_every_round")
        made.submit("whole_tensor", made.released("level-1"), filled(made.released(), wrong))
        made.submit("copycat", answers, made.released())
        for student in STUDENTS:
            made.do("autograde", student)
        made.do("generate_feedback")
        yield made


def most(level: int) -> float:
    return sum(part.points for part in known_parts() if (part.unit, part.level) == ("01", level))


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_the_gradebook_has_what_each_student_earned(course: Course) -> None:
    ring = find_part("01/ring_all_reduce").points
    assert {name: course.score(name) for name in STUDENTS} == {
        "solution": most(2),
        "untouched": 0,
        "whole_tensor": ring - 3,
        "copycat": 0,
    }


def test_answers_earn_points_only_for_their_learner(course: Course) -> None:
    assert course.score("solution", "level-1") == most(1)
    assert course.score("copycat", "level-1") == 0
    table = course.table("copycat", "step-check", "level-1")
    assert "&#x27;Solution&#x27;, and &#x27;copycat&#x27; handed them in" in table


def test_autograde_saves_no_progress(course: Course) -> None:
    assert best_shares() == {}


def test_the_autograded_notebook_keeps_the_report(course: Course) -> None:
    assert "not written yet" in course.table("untouched")
    table = course.table("whole_tensor")
    assert "You pass the whole tensor on in every round" in table
    assert "the sum is right and in place" in table


def test_feedback_shows_the_report(course: Course) -> None:
    page = course.folder / "feedback" / "whole_tensor" / UNIT / "level-2.html"
    assert "You pass the whole tensor on in every round" in page.read_text()


@pytest.mark.proof
def test_the_settings_find_alembic_without_an_activated_environment(tmp_path: Path) -> None:
    code = (
        "import shutil; from traitlets.config import PyFileConfigLoader as Load;"
        f"Load('nbgrader_config.py', path={str(ROOT)!r}).load_config();"
        "print(shutil.which('alembic'))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": os.defpath}, capture_output=True, text=True
    ).stdout.strip()
    assert Path(found).parent == Path(sys.executable).parent
