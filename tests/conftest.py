"""Fixtures that all tests share, the check that nothing stays behind, and which tests run when.

    make check   the tests without a mark: each takes less than a third of a second
    make test    those marked `slow` and `browser` too
    make proof   those marked `proof`, by unit; see tests/proof.py

"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import dtlab
from dtlab.ranks.system import compiler_cache
from tests.covering import leave_the_rest_to_the_proof
from tests.journal import JournalPlugin, left_out
from tests.journal import pytest_addoption as pytest_addoption
from tests.leftovers import descendants, files, listening
from tests.staying import BENCH


def pytest_configure(config: pytest.Config) -> None:
    """Give this run a separate temporary folder, and no more than its share of the cores."""
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="dtlab-tests-")
    os.environ.update(compiler_cache(os.environ))
    torch.set_num_threads(1)  # there are as many workers as cores, and ranks besides
    # How long an example takes says nothing on a busy machine.
    slow = [HealthCheck.too_slow]
    settings.register_profile("course", deadline=None, suppress_health_check=slow)
    settings.load_profile("course")
    os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp()  # what checks keep of a learner's progress
    config.add_cleanup(lambda: shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True))
    config.add_cleanup(BENCH.close)
    gc.disable()  # until all tests are collected: that makes little garbage and many objects
    journal = config.getoption("--journal")
    if journal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(JournalPlugin(journal))


# Which tests run --------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most cases of large products as `proof`; apply `--unit` and `--journal`."""
    leave_the_rest_to_the_proof(items)
    items[:] = [item for item in items if not left_out(item)]


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays until the end: modules and thousands of tests."""
    gc.enable()
    gc.collect()
    gc.freeze()


# What tests share -------------------------------------------------------------------------------


TIME_TO_END = 10.0  # seconds


@contextmanager
def nothing_stays() -> Iterator[None]:
    """Raises AssertionError for a process, a port, or a file that is left behind.

    What is left behind stays; what only ends late, on a busy machine, gets its time.
    """
    before = set(descendants()), files(), listening()
    yield
    deadline = time.monotonic() + TIME_TO_END
    while True:
        processes = {pid: name for pid, name in descendants().items() if pid not in before[0]}
        left = processes, files() - before[1], listening() - before[2]
        if not any(left) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not processes, f"processes left: {processes}"
    assert not left[1], f"files left: {left[1]}"
    assert not left[2], f"ports left: {left[2]}"


@pytest.fixture(autouse=True)
def nothing_stays_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks that a slow test leaves nothing behind."""
    slow = request.node.get_closest_marker("slow") is not None
    with nothing_stays() if slow else nullcontext():
        yield


@pytest.fixture(autouse=True)
def the_folder_stays() -> Iterator[None]:
    """Checks that a test ends in the folder in which it began, and returns there."""
    before = os.getcwd()
    yield
    after = os.getcwd() if Path("/proc/self/cwd").exists() else before
    os.chdir(before)
    assert after == before, f"the current folder has become {after}"


@pytest.fixture(autouse=True, scope="module")
def nothing_stays_of_a_module() -> Iterator[None]:
    """Checks the same of the quick tests of a file, and of its fixtures."""
    with nothing_stays():
        yield


@pytest.fixture(scope="module")
def warm() -> None:
    """The server of ranks has started: its start is not part of the time that a test takes."""
    dtlab.launch(int)


@pytest.fixture
def receives_ctrl_c() -> Iterator[None]:
    """Lets this process receive Ctrl-C, as in a terminal or a kernel. Background processes of a
    shell ignore it, and so do xdist's workers and the processes that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The path of a script in an empty folder."""
    return tmp_path / "script.py"
