"""Results of a class arrive one by one, in the order of the submissions, even under load."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from dtlab.classroom.grade import Grading
from dtlab.classroom.submissions import handed_in
from dtlab.classroom.workers.engines import Turns
from dtlab.ranks.system import usable_cpus
from tests.a_class import NAME, Class, keep_path

STEPS = 4


def ends(number: int, tasks: int, step: float = 0.02, pause: float = 0.0) -> list[tuple[int, int]]:
    """Tasks with equal steps; which task ends, and how many steps all have made until then."""
    turns, made, order = Turns(number), 0, list[tuple[int, int]]()
    lock = threading.Lock()

    def work(task: int) -> None:
        nonlocal made
        turns.begin(task)
        turns.acquire(task)
        for _ in range(STEPS):
            turns.give_way(task)
            time.sleep(step)
            with lock:
                made += 1
            if pause:  # a slow cell: other tasks continue meanwhile
                turns.release()
                time.sleep(pause)
                turns.acquire(task)
        turns.release()
        turns.finish(task)
        with lock:
            order.append((task, made))

    threads = [threading.Thread(target=work, args=(task,)) for task in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return order


@pytest.mark.parametrize("number", [1, 2, 3])
def test_tasks_end_in_their_order(number: int) -> None:
    order = [task for task, _ in ends(number, tasks=9)]
    assert all(abs(place - task) < number for place, task in enumerate(order))


@pytest.mark.parametrize(("number", "pause"), [(1, 0.02), (1, 0.06), (2, 0.03)])
def test_a_task_that_paused_goes_before_later_ones(number: int, pause: float) -> None:
    """With equal turns, the first of 9 tasks would end after 28 or more of all 36 steps."""
    order = ends(number, tasks=9, pause=pause)
    assert order[0][1] < 28
    assert {task for task, _ in order[:2]} == {0, 1}


def test_only_the_earliest_unfinished_task_is_first() -> None:
    turns = Turns(2)
    for task in (4, 5, 6):
        turns.begin(task)
    assert [turns.is_first(task) for task in (4, 5, 6)] == [True, False, False]
    turns.finish(4)
    assert [turns.is_first(task) for task in (5, 6)] == [True, False]


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Twice as many processes compute as there are CPUs."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(int(2 * usable_cpus()))]
    yield
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.busy
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("busy_machine")
def test_the_first_result_does_not_wait_for_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells compute for less than a second, but take several seconds here."""
    keep_path(monkeypatch)
    group = Class(tmp_path / "course")
    names = [f"s{number}" for number in range(4)]
    code = "import time\nend = time.thread_time() + 0.6\nwhile time.thread_time() < end: pass"
    for name in names:
        path = group.hand_in(name) / "01_level_1.ipynb"
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[1:1] = [new_code_cell(code) for _ in range(3)]
        nbformat.write(notebook, path)
    begun, arrived = time.monotonic(), list[tuple[str, float]]()
    for outcome in Grading(group.directory, group.assignment, jobs=1).run(
        handed_in(group.directory, NAME, "*")
    ):
        assert outcome.record is not None
        assert outcome.record.score == outcome.record.max_score
        arrived.append((outcome.student, round(time.monotonic() - begun, 1)))
    print(arrived)
    assert [student for student, _ in arrived] == names
    first, last = arrived[0][1], arrived[-1][1]
    assert first < 0.7 * last, arrived
