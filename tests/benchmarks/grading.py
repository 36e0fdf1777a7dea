"""`dtlab grade` on a class of Level II of unit 01, against `nbgrader autograde` as it comes.

Goals: at most 0.3 s per submission beyond its cells and checks; two jobs within 10 % of what two
cores allow; the same grades; with ten hanging ones among forty healthy, eight times its speed.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psutil
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import Execute
from nbgrader.utils import capture_log

from dtlab.checks.parts import known_parts
from dtlab.classroom.grade import Grading, Outcome
from dtlab.classroom.releases.release import release_assignment
from dtlab.classroom.settings import course_directory
from dtlab.classroom.submissions import Assignment, handed_in
from dtlab.ranks.system import usable_cpus
from tests.known_answers import answers_of

NAME = "week-1"
HEALTHY, HANGING = 40, 10
SAMPLE = 4  # healthy ones, and as many hanging, that plain nbgrader grades: it takes a minute each
PLAIN_LIMIT = 30  # seconds for a cell: nbgrader's own default
HANG = "while True:\n    pass"


class Class:
    """A course folder with submissions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for _ in release_assignment("01", levels="2", name=NAME, course=folder):
            pass
        released = folder / "release" / NAME / "01_level_2.ipynb"
        self.released = nbformat.read(released, as_version=4)
        self.directory = course_directory(folder)

    def hand_in(self, student: str, notebook: NotebookNode) -> None:
        place = self.folder / "submitted" / student / NAME
        place.mkdir(parents=True)
        nbformat.write(notebook, place / "01_level_2.ipynb")

    def healthy(self, draw: random.Random) -> NotebookNode:
        """A notebook with all four parts, each with one of the known right answers."""
        notebook = nbformat.from_dict(self.released)
        for part in known_parts():
            if (part.unit, part.level) == ("01", 2):
                answers = answers_of(part)
                assert answers is not None
                answer = draw.choice(list(answers.right))
                _cell(notebook, part.symbol).source = answers.cells[answer.__name__]
        return notebook

    def hanging(self, draw: random.Random) -> NotebookNode:
        """A healthy notebook with an endless loop in a cell that the learner has added."""
        notebook = self.healthy(draw)
        own = nbformat.v4.new_code_cell(HANG, id="own")
        notebook.cells.insert(3, own)
        return notebook

    def grade(self, students: str, jobs: int) -> list[Outcome]:
        assignment = Assignment.of(self.directory, NAME)
        grading = Grading(self.directory, assignment, jobs=jobs, again=True)
        return list(grading.run(handed_in(self.directory, NAME, students)))

    def grade_plainly(self, student: str) -> None:
        """Grade with nbgrader's own steps, in kernels."""
        config = self.directory.config.copy()
        config.Autograde.autograde_preprocessors = Autograde.autograde_preprocessors.default()
        config.Execute.timeout = PLAIN_LIMIT
        here = CourseDirectory(config=config)
        here.assignment_id, here.student_id = NAME, student
        app = Autograde(coursedir=here, config=config)
        app.force = True
        done = capture_log(app)
        assert done["success"], done
        assert Execute in config.Autograde.autograde_preprocessors

    def score(self, student: str) -> float:
        with Gradebook(self.directory.db_url, self.directory.course_id) as book:
            return float(book.find_submission(NAME, student).score)


def _cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.id == name)


@contextmanager
def a_class() -> Iterator[Class]:
    """Forty healthy submissions and ten that hang."""
    with tempfile.TemporaryDirectory(prefix="dtlab-class-") as folder:
        group, draw = Class(Path(folder) / "course"), random.Random(0)
        for number in range(HEALTHY):
            group.hand_in(f"healthy-{number:02}", group.healthy(draw))
        for number in range(HANGING):
            group.hand_in(f"hanging-{number:02}", group.hanging(draw))
        yield group


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of processors: all of a machine that does nothing else.

    Some of them are the kernel's own, as it removes a sandbox: no process is charged for those.
    """
    wall, cpu = time.perf_counter(), _busy()
    call()
    return time.perf_counter() - wall, _busy() - cpu


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _own_seconds(outcomes: Sequence[Outcome]) -> float:
    """What cells and checks took."""
    records = [one.record for one in outcomes if one.record]
    checks = sum(part.seconds for record in records for part in record.parts.values())
    return checks + sum(record.cell_seconds for record in records)


def overhead(group: Class) -> None:
    """What is added to a submission's own seconds, one after the other."""
    start, _ = timed(lambda: group.grade("healthy-00", jobs=1))
    outcomes: list[Outcome] = []
    wall, _ = timed(lambda: outcomes.extend(group.grade("healthy-0?", jobs=1)))
    count = len(outcomes)
    each = _own_seconds(outcomes) / count
    start -= wall / count
    more = (wall - start) / count - each
    print(
        f"  1 job: {each:.2f} s of cells and checks each, and {more + start / HEALTHY:.2f} s more "
        f"for one of {HEALTHY}: {more:.2f} s, and its share of {start:.1f} s until the server "
        "stands (goal 0.3)"
    )


def spread(group: Class, cores: float) -> None:
    """Print how well several jobs use the cores."""
    wall, cpu = timed(lambda: group.grade("healthy-*", jobs=int(cores)))
    print(
        f"  {int(cores)} jobs: {wall:.1f} s for {HEALTHY}, {wall / HEALTHY:.2f} s each; they take "
        f"{cpu:.1f} s of processors, {cpu / cores:.1f} s of all: {wall * cores / cpu:.2f} times "
        "that (goal 1.1)"
    )


def against_nbgrader(group: Class, cores: float) -> None:
    """Check that the grades are nbgrader's, and print how much faster they are."""
    few = [f"healthy-{number:02}" for number in range(SAMPLE)]
    scores = {name: group.score(name) for name in few}
    healthy = sum(timed(lambda name=name: group.grade_plainly(name))[0] for name in few) / SAMPLE
    same = all(group.score(name) == scores[name] for name in few)
    slow = [f"hanging-{number:02}" for number in range(2)]
    hanging = sum(timed(lambda name=name: group.grade_plainly(name))[0] for name in slow) / 2
    print(
        f"  nbgrader autograde: {healthy:.1f} s each, {hanging:.1f} s for one that hangs (its "
        f"limit is {PLAIN_LIMIT} s for a cell); the same grades: {same}"
    )
    both, _ = timed(lambda: group.grade("*", jobs=int(cores)))
    plain = HEALTHY * healthy + HANGING * hanging
    print(
        f"  all {HEALTHY + HANGING}: {both:.1f} s; nbgrader would take {plain:.0f} s at that "
        f"rate: {plain / both:.1f} times as long (goal 8)"
    )


def main() -> None:
    """Print the figures."""
    cores = usable_cpus()
    print(f"dtlab grade, {HEALTHY} healthy submissions of 01 level II, {HANGING} that hang")
    with a_class() as group:
        overhead(group)
        spread(group, cores)
        against_nbgrader(group, cores)


if __name__ == "__main__":
    os.environ.pop("DTLAB_MOST_SECONDS", None)
    main()
