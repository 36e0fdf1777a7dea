"""A cell that takes long lets other cells run, and only its own seconds count."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from dtlab.classroom.judging.cells import Limits
from dtlab.classroom.judging.judge import judge
from dtlab.ranks.launch.client import Server
from tests.sandboxed import needs_root

pytestmark = [needs_root, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("IPython.core.interactiveshell", "matplotlib.pyplot")
    yield server
    server.stop()


@pytest.mark.proof
@pytest.mark.parametrize(
    ("cell", "takes", "limit"),
    [("import time; time.sleep(10)", 10.0, 20.0), ("while 1: 1", 2.0, 2.0)],
)
def test_waiting_for_others_costs_nothing(
    server: Server, cell: str, takes: float, limit: float
) -> None:
    heard = []

    def waits(begins: bool) -> None:
        heard.append(begins)
        if not begins:
            time.sleep(8)  # others have their turn

    notebook = new_notebook(cells=[new_code_cell("1"), new_code_cell(cell)])
    limits = Limits(cell=limit, notebook=60.0)
    judged = judge(notebook, server, student=None, seed=1, limits=limits, waits=waits)
    assert heard[-2:] == [True, False]  # on a busy machine, the first cell takes long too
    assert judged.cell_seconds < takes + 5


@pytest.mark.proof
def test_a_short_cell_does_not_wait_for_others(server: Server) -> None:
    heard: list[bool] = []
    notebook = new_notebook(cells=[new_code_cell("print(1)")])
    judged = judge(notebook, server, student=None, seed=1, waits=heard.append)
    assert heard == []
    assert judged.notebook.cells[0].outputs[0].text == "1\n"


PRESSURE = [*Path("/sys/fs/cgroup").glob("unified/cgroup.pressure"),
            *Path("/sys/fs/cgroup").glob("cgroup.pressure")]  # fmt: skip
SHORT_ONES = r"""
import subprocess, sys, time
def run():
    busy = "import time\nwhile time.process_time() < 0.15: pass"
    subprocess.run([sys.executable, "-S", "-c", busy])
begun = time.monotonic()
while time.monotonic() < begun + 8:
    run()
print(time.monotonic() - begun)
"""


@pytest.mark.skipif(not PRESSURE, reason="this system does not count waiting in groups")
def test_short_processes_that_wait_for_a_cpu_cost_no_time(server: Server) -> None:
    """They have ended when the time is counted, like the ranks of a cell that launches often."""
    spin = [sys.executable, "-c", "while True: pass"]
    crowd = [subprocess.Popen(spin) for _ in range(3 * (os.cpu_count() or 1))]
    try:
        notebook = new_notebook(cells=[new_code_cell(SHORT_ONES)])
        judged = judge(notebook, server, student=None, seed=1)
    finally:
        for each in crowd:
            each.kill()
            each.wait()
    elapsed = float(judged.notebook.cells[0].outputs[0].text)
    assert elapsed > 8
    assert judged.cell_seconds < 0.6 * elapsed
