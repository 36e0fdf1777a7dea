"""What every test shares: nothing may stay behind, and a few ways to run things."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

# Other programs on this machine are none of our business: only descendants of this process are
# looked at, and a temporary folder that only this run of the tests uses.
os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="dtlab-tests-")
FOLDERS = [Path("/dev/shm"), Path(tempfile.tempdir)]


def pytest_unconfigure() -> None:
    """Remove the temporary folder of this run."""
    shutil.rmtree(FOLDERS[1], ignore_errors=True)


def descendants() -> dict[int, str]:
    """Living processes below this one, the idle warm server left out."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline()) or process.name()
            if process.status() != psutil.STATUS_ZOMBIE and "dtlab-rank-server" not in title:
                found[process.pid] = title
        except psutil.NoSuchProcess:
            pass
    return found


def files() -> set[Path]:
    """Files in shared memory and in the temporary folder, pytest's own left out."""
    return {
        path
        for folder in FOLDERS
        if folder.exists()
        for path in folder.iterdir()
        if not path.name.startswith(("pytest-", "ipykernel_"))
        and path.stat(follow_symlinks=False).st_uid == os.getuid()
    }


def listening() -> set[int]:
    """Ports on which this process or one below it listens."""
    ports = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            ports |= {c.laddr.port for c in process.net_connections() if c.status == "LISTEN"}
    return ports


@pytest.fixture(autouse=True)
def nothing_stays_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, a port, or a file behind."""
    before = set(descendants()), files(), listening()
    yield
    deadline = time.monotonic() + 2.0
    while True:
        processes = {pid: name for pid, name in descendants().items() if pid not in before[0]}
        left = processes, files() - before[1], listening() - before[2]
        if not any(left) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not processes, f"processes left: {processes}"
    assert not left[1], f"files left: {left[1]}"
    assert not left[2], f"ports left: {left[2]}"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A place for a script, in a folder of its own."""
    return tmp_path / "script.py"
