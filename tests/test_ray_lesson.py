"""What lesson 11 claims, by its own cells on a real Ray; 30 failures leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_ray import program
from tests.test_units import ROOT, read
from tests.with_ray import SECONDS, needs_ray

LESSON = ROOT / "notebooks" / "11_orchestration_with_ray.ipynb"
pytestmark = [*needs_ray, pytest.mark.proof, pytest.mark.timeout(900)]


def cells(*names: str) -> str:
    """The code of some cells; the first two are added."""
    code = {cell.id: cell.source for cell in read(LESSON).cells}
    return "\n\n".join(code[name] for name in ("imports", "start", *names))


# Ray is a part of these programs, so that its processes can be told from those of other tests.
FAILURES = """
import contextlib
import psutil

def left():
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if process.status() != psutil.STATUS_ZOMBIE:
                ports = [each.laddr.port for each in process.net_connections()
                         if each.status == psutil.CONN_LISTEN]
                found |= {process.pid, *(("port", port) for port in ports)}
    return found | set(Path("/dev/shm").glob("*dtlab*"))

whole = dtlab.launch(train, folder / "whole", world_size=2, threads=1).values[0][1]
before = set()
for attempt in range(31):
    killed_after = 1 + (attempt * 17) % 80  # all sides of a save, and the last step
    here = folder / str(attempt)
    first, losses = supervised(here, killed_after)
    assert first == (killed_after - (killed_after % 20 == 0)) // 20 * 20, (killed_after, first)
    assert losses == whole[first:], killed_after
    assert sorted(path.name for path in here.iterdir()) == ["step_60", "step_80"]
    deadline = time.monotonic() + 20
    while attempt and (new := left() - before):  # the first launch on Ray starts what stays
        assert time.monotonic() < deadline, (attempt, new)
        time.sleep(0.05)
    before = left()
print("30 times the same")
"""

EFFECTS = """
assert (
    500e6 <= written["by value"] < 501e6 and 25e6 <= written["by reference"] < 26e6), written
assert 0.9 * 20 <= held[4] <= 30 and 190 <= held[40], held
assert np.abs(served - alone).max() < 1e-5
one, two = curves["one server"][1], curves["two servers"][1]
assert one[-1] > 4 * one[0] and two[-1] < 0.8 * one[-1], curves
assert costs[1] > 5 * costs[100], costs
print("as the lesson says")
"""


def run(code: str, path: Path) -> str:
    """Run a program to its end; return what it printed."""
    marked = program(code, path)
    out, error = marked.process.communicate(timeout=3 * SECONDS)
    assert marked.process.returncode == 0, out + error
    marked.demand_nothing_left()
    return out


def test_thirty_failures_leave_nothing_and_lose_no_checkpoint(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = cells("failure-code", "failure-supervisor") + FAILURES
    assert run(code, script).endswith("30 times the same\n")


def test_the_store_tasks_and_servers_behave_as_the_lesson_says(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    names = [part + kind for part in ("value", "cost", "flight") for kind in ("-guess", "-run")]
    names += ["server-code", "server-run", "limit-guess", "limit-run"]
    assert run(cells(*names) + EFFECTS, script).endswith("as the lesson says\n")
