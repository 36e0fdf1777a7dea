"""What tests of the sandbox share: a server, a sandbox, ranks, and a look from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from dtlab.ranks.launch.client import Server
from dtlab.ranks.launch.launcher import Run, launch_graded
from dtlab.ranks.sandbox.isolation import Isolation
from dtlab.ranks.sandbox.sandbox import Sandbox, first_user

needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="a complete sandbox needs root and Linux"
)
USERS = first_user(15)
MEMORY = 3 * 2**30
SLACK = 40.0  # seconds that a limit may be exceeded by on a busy machine
Launch = Callable[..., Run]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("IPython.core.interactiveshell", "matplotlib.pyplot")
    yield server
    server.stop()


@pytest.fixture
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server, Isolation(user=USERS, memory=MEMORY)) as one:
        assert one.missing == []
        yield one
    assert processes() == []


@pytest.fixture
def launch(sandbox: Sandbox) -> Launch:
    def run(fn: Callable[..., Any], ranks: int = 2, timeout: float = 20.0, **more: Any) -> Run:
        inputs = list(range(ranks))
        return launch_graded(fn, inputs=inputs, door=sandbox, timeout=timeout, **more)

    return run


def rank_of(rank: int) -> int:
    """The function of a launch that must succeed."""
    return dist.get_rank()


def processes() -> list[str]:
    """Names of living processes of the users in the sandbox."""
    found = []
    for process in psutil.process_iter(["uids", "name", "status"]):
        uids, status = process.info["uids"], process.info["status"]
        if uids and USERS <= uids.real < USERS + 512 and status != psutil.STATUS_ZOMBIE:
            found.append(process.info["name"])
    return found


def spin() -> None:
    """Run without end, whatever signals arrive."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    while True:
        pass
