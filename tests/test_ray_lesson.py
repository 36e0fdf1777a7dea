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


# Ray is a part of these programs, so that its processes differ from those of other tests.
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

# What must be true after a cell of the lesson.
CLAIMS = {
    "graph-run": "assert seconds >= 1.2, seconds",
    "actor-run": "assert values == [2, 3, 4, 5], values",
    "value-run": """
assert 500e6 <= written["by value"] < 501e6 and 25e6 <= written["by reference"] < 26e6, written
assert took["by value"] > took["by reference"], took
""",
    "cost-run": "assert costs[1] > 5 * costs[100], costs",
    "flight-run": "assert 18 <= held[4] <= 30 and 190 <= held[40], held",
    "server-run": "assert np.abs(served - alone).max() < 1e-5",
    "limit-run": """
one, two = curves["one server"][1], curves["two servers"][1]
assert one[-1] > 4 * one[0] and two[-1] < 0.8 * one[-1], curves
""",
    "train-run": "assert same, losses",
    "tune-run": """
assert best == 0.8, sweep
assert min((0.05, 0.2, 0.8), key=lambda rate: sweep[rate, 16]) == 0.05, sweep
""",
    "failure-run": "assert first == 40 and losses == whole[1][first:], (first, losses)",
    "young-run": """
at = lambda interval: goodput(interval, SAVE, between, RESTART)
assert at(120) < at(young) > at(3600) and at(best) > 0.9
""",
    "broken-run": "assert not same and rates['schedule'] > 5 * rates['nothing'], rates",
    "serve-run": """
assert max(test.replicas) == 3 and test.replicas[-1] == 1, test
assert sum(right) > 0.85 * len(right)
""",
}


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


def test_the_lesson_is_right_in_what_it_claims(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = {cell.id: cell.source for cell in read(LESSON).cells if cell.cell_type == "code"}
    assert code.keys() >= CLAIMS.keys()
    whole = "\n".join(f"{text}\n{CLAIMS.get(name, '')}" for name, text in code.items())
    assert run(f"{whole}\nprint('as the lesson says')", script).endswith("as the lesson says\n")
