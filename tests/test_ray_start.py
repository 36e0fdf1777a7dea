"""Starting Ray on a busy machine, and what a learner sees if Ray does not start."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from dtlab.ranks.ray import startup
from tests.test_ray import program
from tests.test_units import ROOT, read
from tests.with_ray import SECONDS, Marked, needs_ray

LESSON = ROOT / "notebooks" / "11_orchestration_with_ray.ipynb"
SENTENCE = "Ray is not running: run the cell `start` again"
# Ray refuses to start with this storage unless a second variable names a folder.
CANNOT_START = {"RAY_gcs_storage": "rocksdb"}
NEED_RAY = {
    "graph-run", "graph-look", "actor-run", "value-run", "change-run", "cost-run", "flight-run",
    "server-run", "limit-run", "job-run", "train-run", "tune-run", "failure-run", "serve-code",
    "serve-run",
}  # fmt: skip
pytestmark = [*needs_ray, pytest.mark.unit("11")]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)


@pytest.fixture
def four_busy_loops() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def output(run: Marked) -> str:
    """What a program printed to stdout; its end leaves nothing behind."""
    out, error = run.process.communicate(timeout=SECONDS)
    assert run.process.returncode == 0, out + error
    run.demand_nothing_left()
    return out


# Ray cannot start -------------------------------------------------------------------------------


def errors(cell: NotebookNode) -> list[str]:
    return [
        f"{each.ename}: {each.evalue}"
        for each in cell.get("outputs", [])
        if each.output_type == "error"
    ]


def test_the_lesson_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell that needs Ray ends with one sentence; every other cell works."""
    monkeypatch.setenv("DTLAB_QUICK", "1")
    notebook = read(LESSON)
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", allow_errors=True)
    client.execute(env=os.environ | CANNOT_START)
    code = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    wrong = {name: found for name, cell in code.items() if (found := errors(cell))}
    (start,) = wrong.pop("start")
    assert start.startswith("DtlabError: Ray did not start on this machine. Two attempts took")
    assert re.search(r"load average +[\d.]+ .*\n +cores +\d+\n +free memory +[\d.]+ GB\n", start)
    assert "rocksdb requires RAY_gcs_storage_path" in start
    assert wrong == {name: [f"DtlabError: {SENTENCE}"] for name in NEED_RAY}
    shown = "".join(map(str, code["graph-run"].outputs))
    assert "Traceback" not in shown and "site-packages" not in shown


@pytest.mark.proof
def test_a_failed_start_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's server cannot have a port that is taken, and logs this; a notebook shows no log."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("RAY_GCS_SERVER_PORT", str(taken.getsockname()[1]))
        cells = ["from dtlab.ranks.ray import local_ray", "local_ray(num_cpus=4)"]
        notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
        client = NotebookClient(
            notebook, timeout=SECONDS, kernel_name="python3", allow_errors=True
        )
        client.execute()
    *notices, message = notebook.cells[1].outputs
    assert [each.data for each in notices] == [{"text/plain": ""}] * 2  # empty in the end
    assert message.evalue.startswith("Ray did not start on this machine. Two attempts took")
    assert "Ray says       Failed to start GCS.\n" in message.evalue
    assert "Then run this cell again." in message.evalue.replace("\n", " ")


AGAIN = """
import os
import psutil
import dtlab
from dtlab.ranks.ray import local_ray

ray = local_ray.module(cell="start")

@ray.remote
def pid():
    return os.getpid()

os.environ["RAY_gcs_storage"] = "rocksdb"
for attempt in (local_ray, pid.remote, lambda: dtlab.launch(int, engine="ray")):
    try:
        attempt()
    except dtlab.DtlabError as error:
        print(error)
del os.environ["RAY_gcs_storage"]
local_ray(num_cpus=2)
local_ray.start_workers(2)
assert len(set(ray.get([pid.remote() for _ in range(40)]))) == 2
print("runs")
local_ray.stop()
try:
    pid.remote()
except dtlab.DtlabError as error:
    print(error)
"""


@pytest.mark.proof
def test_the_cell_can_be_run_again(script: Path) -> None:
    """What was defined without Ray then works; after the end, the sentence is there again."""
    out = output(program(AGAIN, script)).splitlines()
    assert out[0].startswith("Ray did not start")
    assert out[-4:] == [SENTENCE, SENTENCE, "runs", SENTENCE]


# The raylet is stopped as soon as it appears, as on a machine that gives it no time.
STOPPED = """
import contextlib, signal, threading, time
import psutil
import dtlab
from dtlab.ranks.ray import local_ray, startup

def stop():
    while startup.NODE_LIMIT == 1.0:
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if process.name() == "raylet":
                    process.send_signal(signal.SIGSTOP)
        time.sleep(0.01)

startup.NODE_LIMIT = 1.0
thread = threading.Thread(target=stop)
thread.start()
try:
    local_ray(num_cpus=2)
except dtlab.DtlabError as error:
    print(error)
left = [p for p in psutil.Process().children(recursive=True)
        if p.status() != psutil.STATUS_ZOMBIE]
print("left:", left)
startup.NODE_LIMIT = 120.0
thread.join()
local_ray(num_cpus=2)
print("runs")
"""


@pytest.mark.proof
def test_a_failed_start_leaves_no_process(script: Path) -> None:
    """This holds while the program continues, although Ray itself loses track of its processes."""
    out = output(program(STOPPED, script))
    assert "Ray says       the node was not registered after 1 s" in out
    assert out.endswith("left: []\nruns\n"), out


def test_the_message_says_what_to_do() -> None:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    said = str(startup.did_not_start(RuntimeError("no room\nFrames"), 12.3))
    assert "Two attempts took 12 s." in said
    assert "Ray says       no room\n" in said and "Frames" not in said
    if load > cores + 1:
        assert "\nOther programs use the cores" in said
    assert said.replace("\n", " ").endswith("Then run the same command again.")
    assert max(map(len, said.splitlines())) <= 80  # JupyterLab breaks longer lines inside words
    assert startup.NEEDED_BYTES < 4e9


# A busy machine ---------------------------------------------------------------------------------

STARTS = """
import os
from dtlab.ranks.ray import local_ray

ray = local_ray(num_cpus=4)
local_ray.start_workers(4)

@ray.remote
def variable():
    return os.environ["AGENT"]

print(ray.get(variable.options(runtime_env={"env_vars": {"AGENT": "has answered"}}).remote()))
"""


@pytest.mark.proof
def test_ray_starts_while_four_loops_are_busy(script: Path, four_busy_loops: None) -> None:
    assert output(program(STARTS, script)) == "has answered\n"


SLOW = """
import sys, time
command = open("/proc/self/cmdline").read()
if any(name in command for name in ("dashboard/agent.py", "runtime_env/agent/main.py")):
    time.sleep(45)
"""


@pytest.mark.proof
def test_ray_starts_though_its_agents_need_45_s(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The raylet ends after less, unless it is given their ports; `Node` gives up after 30 s."""
    (script.parent / "sitecustomize.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(script.parent))
    assert output(program(STARTS, script)) == "has answered\n"
