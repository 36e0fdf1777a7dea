"""Whatever happens to a launch or its notebook, nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

import dtlab
from dtlab.errors import Interrupted
from tests.leftovers import descendants


def gone(pids: list[int], within: float) -> bool:
    """Whether all processes have ended after at most `within` seconds."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def leave_children(folder: str) -> None:
    """Fork children that try to survive: one with setsid, one forked twice."""

    def linger(name: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (Path(folder) / f"{name}-{os.getpid()}").touch()
        time.sleep(60)

    if os.fork() == 0:
        os.setsid()
        linger("setsid")
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            linger("twice")
        os._exit(0)
    while len(list(Path(folder).iterdir())) < 2 * dist.get_world_size():
        time.sleep(0.01)


def children_in(folder: Path) -> list[int]:
    return [int(path.name.split("-")[1]) for path in folder.iterdir()]


def raise_after(folder: str) -> None:
    leave_children(folder)
    raise ValueError("after forking")


def hang_after(folder: str) -> None:
    leave_children(folder)
    time.sleep(60)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (leave_children, None),
        (raise_after, dtlab.RankError),
        (hang_after, dtlab.RankTimeoutError),
    ],
)
def test_children_that_ranks_forked_are_ended(
    fn: Callable[[str], None], error: type[Exception] | None, tmp_path: Path
) -> None:
    if error is None:
        dtlab.launch(fn, str(tmp_path))
    else:
        with pytest.raises(error):
            dtlab.launch(fn, str(tmp_path), timeout=2.0)
    assert len(children_in(tmp_path)) == 4
    assert gone(children_in(tmp_path), within=0.5)


@pytest.mark.usefixtures("receives_ctrl_c")
def test_interrupting_ends_every_rank_and_leaves_the_process_usable(tmp_path: Path) -> None:
    def wait_for_ever() -> None:
        (tmp_path / f"rank-{os.getpid()}").touch()
        time.sleep(60)

    def interrupt() -> None:
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        times.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    times: list[float] = []
    threading.Thread(target=interrupt).start()
    with pytest.raises(Interrupted) as caught:
        dtlab.launch(wait_for_ever, world_size=3)
    (shown,) = caught.value._render_traceback_()  # in a notebook: no frame of the library's
    assert shown.endswith(": the launch was stopped; its ranks have ended.")
    assert time.monotonic() - times[0] < 1.0
    assert gone(children_in(tmp_path), within=0.1)
    assert dtlab.launch(dist.get_rank).values == [0, 1]


NOTEBOOK = """
    import os, time
    from pathlib import Path
    import dtlab
    from dtlab.ranks.launch.client import SERVER

    def wait_for_ever(folder):
        if os.fork() == 0:
            os.setsid()
            (Path(folder) / f"child-{os.getpid()}").touch()
            time.sleep(60)
        (Path(folder) / f"rank-{os.getpid()}").touch()
        time.sleep(60)

    dtlab.launch(lambda: None)
    (Path("FOLDER") / f"server-{SERVER._process.pid}").touch()
    THEN
"""


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "then", ["dtlab.launch(wait_for_ever, 'FOLDER')", "time.sleep(60)"], ids=["running", "idle"]
)
def test_killing_the_notebook_ends_ranks_and_server(then: str, tmp_path: Path) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    code = textwrap.dedent(NOTEBOOK.replace("THEN", then)).replace("FOLDER", str(folder))
    notebook = subprocess.Popen([sys.executable, "-c", code])
    expected = 5 if "launch" in then else 1
    deadline = time.monotonic() + 30
    while len(list(folder.iterdir())) < expected and time.monotonic() < deadline:
        time.sleep(0.02)
    pids = children_in(folder)
    assert len(pids) == expected
    notebook.kill()
    notebook.wait()
    assert gone(pids, within=2.0)


def test_a_rank_that_kills_its_supervisor_leaves_nothing() -> None:
    def murder() -> None:
        if dist.get_rank() == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(dtlab.LaunchError, match="Run the cell again"):
        dtlab.launch(murder)
    assert gone(list(descendants()), within=2.0)
    assert dtlab.launch(dist.get_rank).values == [0, 1]


def test_a_thread_that_a_rank_left_running_does_not_keep_it(tmp_path: Path) -> None:
    def leave_thread() -> int:
        threading.Thread(target=time.sleep, args=(60,)).start()
        return os.getpid()

    begun = time.monotonic()
    pids = dtlab.launch(leave_thread).values
    assert time.monotonic() - begun < 5
    assert gone(pids, within=0.5)
