"""A course from release to feedback with nbgrader itself, in a folder of its own."""

from __future__ import annotations

import ast
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

ROOT = Path(__file__).parent.parent
UNIT = "01_ranks_and_collectives"
LEVEL = "level-2"
BLANK = "ring_all_reduce"
CHECK = "ring_all_reduce-check"

pytestmark = pytest.mark.slow


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

    def submit(self, student: str, notebook: NotebookNode) -> None:
        place = self.folder / "submitted" / student / UNIT
        place.mkdir(parents=True)
        nbformat.write(notebook, place / f"{LEVEL}.ipynb")

    def released(self) -> NotebookNode:
        return nbformat.read(self.folder / "exercises" / UNIT / f"{LEVEL}.ipynb", as_version=4)

    def score(self, student: str) -> float:
        with Gradebook(self.directory.db_url, "dtlab") as book:
            return float(book.find_submission(UNIT, student).score)

    def table(self, student: str) -> str:
        """The report that the learner's check left in the autograded notebook, as HTML."""
        path = self.folder / "autograded" / student / UNIT / f"{LEVEL}.ipynb"
        outputs = cell(nbformat.read(path, as_version=4), CHECK).outputs
        return "".join(one.get("data", {}).get("text/html", "") for one in outputs)


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(one for one in notebook.cells if one.id == name)


def filled(notebook: NotebookNode, source: str) -> NotebookNode:
    cell(notebook, BLANK).source = source
    return notebook


def source_of_solution() -> str:
    source = nbformat.read(ROOT / "solutions" / UNIT / f"{LEVEL}.ipynb", as_version=4)
    return str(cell(source, BLANK).source)


def source_of_wrong_answer(name: str) -> str:
    """A function of the file of wrong answers, under the name that the exercise asks for."""
    text = (ROOT / "tests" / "wrong_answers" / UNIT / f"{BLANK}.py").read_text()
    found = next(one for one in ast.parse(text).body if getattr(one, "name", "") == name)
    return str(ast.get_source_segment(text, found)).replace(name, BLANK)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    """A course in which three students have been graded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.environ["PATH"])  # nbgrader_config.py changes it
        made = Course(tmp_path_factory.mktemp("course"))
        made.do("generate_assignment")
        made.submit("solution", filled(made.released(), source_of_solution()))
        made.submit("untouched", made.released())
        made.submit(
            "whole_tensor",
            filled(made.released(), source_of_wrong_answer("whole_tensor_in_every_round")),
        )
        for student in ("solution", "untouched", "whole_tensor"):
            made.do("autograde", student)
        made.do("generate_feedback")
        yield made


@pytest.mark.timeout(180)
def test_the_gradebook_has_what_each_student_earned(course: Course) -> None:
    students = ("solution", "untouched", "whole_tensor")
    assert {name: course.score(name) for name in students} == {
        "solution": 10,
        "untouched": 0,
        "whole_tensor": 7,
    }


def test_the_autograded_notebook_keeps_the_report(course: Course) -> None:
    assert "not written yet" in course.table("untouched")
    table = course.table("whole_tensor")
    assert "You pass the whole tensor on in every round" in table
    assert "the sum is right and in place" in table


def test_feedback_shows_the_report(course: Course) -> None:
    page = course.folder / "feedback" / "whole_tensor" / UNIT / f"{LEVEL}.html"
    assert "You pass the whole tensor on in every round" in page.read_text()


def test_exercises_are_what_nbgrader_generates(course: Course) -> None:
    generated, committed = course.folder / "exercises", ROOT / "exercises"
    for folder in (generated, committed):
        assert folder.is_dir()
    files = {path.relative_to(generated) for path in generated.rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(committed)
        for path in committed.rglob("*")
        if path.is_file() and ".ipynb_checkpoints" not in path.parts
    }
    for path in files:
        assert (generated / path).read_bytes() == (committed / path).read_bytes(), path


def test_a_release_gives_nothing_away(course: Course) -> None:
    text = nbformat.writes(course.released())
    for word in ("BEGIN", "END SOLUTION", "HIDDEN", "MARK SCHEME", "tensor_split(size)"):
        assert word not in text
    for one in course.released().cells:
        assert not one.get("outputs")
        assert one.get("execution_count") is None


def test_sources_are_normalised() -> None:
    for path in (ROOT / "solutions").rglob("*.ipynb"):
        notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
        assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
        for one in notebook.cells:
            assert not one.get("outputs")
            assert one.get("execution_count") is None
            assert one.id == one.metadata.get("nbgrader", {}).get("grade_id", one.id)


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
