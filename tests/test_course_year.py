"""One assignment's life, with the commands that an instructor and two students type."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from dtlab.classroom.settings import course_directory

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent
NAME, COURSE, STUDENTS = "week-1", "ml-systems", ("ada", "bob")

pytestmark = [pytest.mark.slow, pytest.mark.proof]


class People:
    """A course folder, two students' folders, and the exchange between them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.course = folder, folder / COURSE
        (folder / "exchange").mkdir(mode=0o777)
        (folder / "exchange").chmod(0o777)
        self.home = folder / "jupyter"
        self.home.mkdir()
        (self.home / "nbgrader_config.py").write_text(
            "c = get_config()\n"
            f"c.Exchange.root = {str(folder / 'exchange')!r}\n"
            f"c.CourseDirectory.course_id = {COURSE!r}\n"
            "c.ExchangeCollect.check_owner = False\n"
        )

    def run(self, who: str, *command: str) -> str:
        """What a command says that `who` types in their folder."""
        place = self.course if who == "teacher" else self.folder / who
        place.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "JUPYTER_CONFIG_DIR": str(self.home),
            "JUPYTER_DATA_DIR": str(self.folder / "data" / who),  # nbgrader's list of submissions
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        }
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]], cwd=place, env=environment, check=False,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def submit(self, student: str) -> None:
        """Hands in as `student`; nbgrader itself takes the user of this machine as the student."""
        self.run(student, "nbgrader", "submit", NAME)
        inbound = self.folder / "exchange" / COURSE / "inbound"
        (own,) = (path for path in inbound.iterdir() if path.name.split("+")[0] not in STUDENTS)
        own.rename(inbound / "+".join([student, *own.name.split("+")[1:]]))

    def work(self, student: str, level: str, *solved: str) -> None:
        """Fills in an id, and the instructor's answers to some parts."""
        path = self.folder / student / NAME / f"{level}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        solution = nbformat.read(self.course / "source" / NAME / f"{level}.ipynb", as_version=4)
        answers = {cell.id: cell.source for cell in solution.cells}
        for cell in notebook.cells:
            if cell.id in solved:
                cell.source = re.sub(r"(?m)^ *### .* SOLUTION\n?", "", answers[cell.id])
            if cell.id == "learner":
                cell.source = f'learner = "{student}"'
        nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    """Everything up to feedback, in the order of a term; the tests check the results."""
    people = People(tmp_path_factory.mktemp("term"))
    chosen = "01/averages,01/reduce_scatter"
    people.course.mkdir()
    people.run(
        "teacher", "dtlab", "release", "01", "--parts", chosen, "--points",
        "01/reduce_scatter=20", "--name", NAME, "--due", "2030-01-31 18:00", "--course", ".",
    )  # fmt: skip
    for student in STUDENTS:
        people.run("teacher", "nbgrader", "db", "student", "add", student)
    people.run("teacher", "nbgrader", "release_assignment", NAME)
    for student in STUDENTS:
        people.run(student, "nbgrader", "fetch_assignment", NAME)
    people.work("ada", "01_level_2", "reduce_scatter")
    for student in STUDENTS:
        people.submit(student)
    people.run("teacher", "nbgrader", "collect", NAME)
    people.said = people.run("teacher", "dtlab", "grade", NAME)  # type: ignore[attr-defined]
    return people


def _book(people: People) -> Gradebook:
    directory = course_directory(people.course)
    return Gradebook(directory.db_url, COURSE)


def test_points_are_those_of_the_assignment(people: People) -> None:
    with _book(people) as book:
        ada, bob = (book.find_submission(NAME, who) for who in ("ada", "bob"))
        assert (ada.score, ada.max_score) == (20, 24)
        assert (bob.score, bob.max_score) == (0, 24)
        assert ada.total_seconds_late == 0


def test_manual_points_and_comments_survive_another_run(people: People) -> None:
    with _book(people) as book:
        grade = book.find_grade("reduce_scatter-check", "01_level_2", NAME, "bob")
        grade.manual_score, grade.needs_manual_grade = 3, False
        comment = book.find_comment("reduce_scatter", "01_level_2", NAME, "bob")
        comment.manual_comment = "You told me how it works."
        book.db.commit()
    people.run("teacher", "dtlab", "grade", NAME, "--again", "--student", "bob")
    with _book(people) as book:
        assert book.find_submission(NAME, "bob").score == 3
        comment = book.find_comment("reduce_scatter", "01_level_2", NAME, "bob")
        assert comment.comment == "You told me how it works."


def test_feedback_has_the_reports_and_nothing_of_the_hidden_checks(people: People) -> None:
    people.run("teacher", "nbgrader", "generate_feedback", NAME)
    people.run("teacher", "nbgrader", "release_feedback", NAME)
    people.run("ada", "nbgrader", "fetch_feedback", NAME)
    (page,) = (people.folder / "ada").glob(f"{NAME}/feedback/*/01_level_2.html")
    text = page.read_text()
    assert "chunk r of the sum is on rank r" in text  # what the report says of a right answer
    record = json.loads((people.course / "verdicts" / NAME / "ada.json").read_text())
    (part,) = record["notebooks"]["01_level_2"]
    for secret in (str(record["seed"]), str(part["seed"]), "BEGIN SOLUTION", str(ROOT)):
        assert secret not in text


def test_grades_leave_as_a_table(people: People) -> None:
    people.run(
        "teacher", "nbgrader", "export", "--exporter", "dtlab.classroom.export.Moodle", "--to",
        "moodle.csv",
    )  # fmt: skip
    rows = list(csv.DictReader((people.course / "moodle.csv").read_text().splitlines()))
    assert {row[next(iter(row))] for row in rows} == {"ada", "bob"}


def test_a_second_run_does_nothing_again(people: People) -> None:
    said = people.run("teacher", "dtlab", "grade", NAME)
    assert "2 as before" in said
