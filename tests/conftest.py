"""What every test shares: nothing may stay behind, and a few ways to run things."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dtlab
from dtlab.ranks.system import compiler_cache
from tests.covering import leave_the_rest_to_the_proof
from tests.leftovers import descendants, files, listening


def pytest_configure(config: pytest.Config) -> None:
    """Give this run a temporary folder of its own, and no more than its share of the cores."""
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="dtlab-tests-")
    os.environ.update(compiler_cache(os.environ))
    torch.set_num_threads(1)  # there are as many workers as cores, and ranks besides
    os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp()  # what checks keep of a learner's progress
    config.add_cleanup(lambda: shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True))


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take a sample of many cases; files that take longest first, so that workers end together."""
    leave_the_rest_to_the_proof(items)
    seconds: Counter[Path] = Counter()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        seconds[item.path] += 200 if "browser" in marks else 40 if "slow" in marks else 1
    items.sort(key=lambda item: -seconds[item.path])


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


@pytest.fixture(scope="module")
def warm() -> None:
    """The server of ranks has started: its start is not part of the time that a test takes."""
    dtlab.launch(int)


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """As in a terminal or a kernel. What a shell starts in the background has Ctrl-C ignored, so
    have xdist's workers, and both hand that on to what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A place for a script, in a folder of its own."""
    return tmp_path / "script.py"
