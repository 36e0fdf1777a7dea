"""Time in which a process waits for a CPU does not count against it; its own work does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import psutil
import pytest

from dtlab import launch
from dtlab.checks.functions.trials import Recording, Trial
from dtlab.classroom.judging.isolated import IsolatedBench
from dtlab.errors import RankTimeoutError
from dtlab.ranks.sandbox.isolation import Isolation
from dtlab.ranks.sandbox.time_limits import STRETCH, Patience

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="schedstat is Linux's"),
]
SPIN = "import os, sys\nos.sched_setaffinity(0, {cpu})\nos.nice({nice})\nprint(1, flush=True)\n"
SECONDS = 3.0  # a process that is not urgent may wait for half a second at a time

Start = Callable[..., int]


@contextmanager
def running(cpu: int, nice: int = 0, then: str = "while True: pass") -> Iterator[int]:
    """The process id of a program on one CPU."""
    code = SPIN.format(cpu={cpu}, nice=nice) + then
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda *args, **named: stack.enter_context(running(*args, **named))


def share_that_counts(*pids: int) -> float:
    """The share of SECONDS that counts against these processes."""
    begun, patience = time.monotonic(), Patience(SECONDS, lambda: pids)
    time.sleep(SECONDS)
    return patience.spent / (time.monotonic() - begun)


def busy_for(seconds: float, cpu: int) -> float:
    """Runs on a rank: use a CPU for this time, behind more urgent programs."""
    os.sched_setaffinity(0, {cpu})
    os.nice(5)
    begun = time.monotonic()
    while time.process_time() < seconds:
        pass
    return time.monotonic() - begun


def test_a_launch_does_not_count_it(start: Start) -> None:
    cpu = min(os.sched_getaffinity(0))
    start(cpu)
    start(cpu)
    assert launch(busy_for, 1.0, cpu, world_size=1, timeout=1.5).values[0] > 1.5


def test_waiting_for_a_cpu_does_not_count(start: Start) -> None:
    cpu = min(os.sched_getaffinity(0))
    behind = start(cpu, 10)
    start(cpu)
    start(cpu)
    assert 0.9 / STRETCH < share_that_counts(behind) < 0.5


def test_sleeping_counts(start: Start) -> None:
    asleep = start(min(os.sched_getaffinity(0)), then="import time\ntime.sleep(60)")
    assert share_that_counts(asleep) > 0.9


def test_waiting_for_each_other_counts(start: Start) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    crowd = [psutil.Process(start(cpu)) for cpu in cpus for _ in range(3)]
    patience = Patience(SECONDS, lambda: [each.pid for each in crowd])
    before = sum(each.cpu_times().user for each in crowd)
    time.sleep(SECONDS)
    used = sum(each.cpu_times().user for each in crowd) - before
    assert patience.spent > 0.9 * used / len(cpus)  # though each has waited for the others


def test_the_work_of_started_processes_counts(start: Start) -> None:
    """Else a program could wait for its own processes as long as it likes."""
    fork = "for _ in range(6):\n    os.fork() or exec('while True: pass')\n"
    parent = start(min(os.sched_getaffinity(0)), then=f"{fork}while True: pass")
    children: list[psutil.Process] = []
    try:
        while len(children) < 6:
            time.sleep(0.01)
            children = psutil.Process(parent).children()
        patience = Patience(SECONDS, lambda: [parent])
        before = sum(each.cpu_times().user for each in children)
        time.sleep(SECONDS)
        used = sum(each.cpu_times().user for each in children) - before
        assert patience.spent > 0.9 * used / len(os.sched_getaffinity(0))
    finally:
        for each in children:
            each.kill()


def test_a_limit_ends_for_a_process_that_has_ended(start: Start) -> None:
    gone = start(min(os.sched_getaffinity(0)), then="pass")
    patience = Patience(0.2, lambda: [gone])
    assert 0 < patience.left <= 0.2
    time.sleep(0.25)
    assert patience.left <= 0


@pytest.mark.parametrize(("seconds", "attempts"), [(0.0, 1), (0.3, 2)])
def test_an_answer_whose_ranks_had_no_cpu_is_judged_again(
    seconds: float, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that need much longer than their limit, which is stretched, have waited for a CPU."""
    begun = []

    def launched(*_: Any, **__: Any) -> None:
        begun.append(time.monotonic())
        time.sleep(seconds)
        raise RankTimeoutError("the time limit has passed.", running=[])

    monkeypatch.setattr("dtlab.ranks.launch.launcher.launch_graded", launched)
    monkeypatch.setattr(IsolatedBench, "_sandbox_for", lambda *_, **__: None)
    bench = IsolatedBench(cast("Any", None), Isolation(user=0), None)
    result = bench.observe(Trial(1, [Recording((1,))], limit=0.1), int)
    assert len(begun) == attempts
    assert result.hung and bench.timed_out
