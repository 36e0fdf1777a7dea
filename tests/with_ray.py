"""What tests of Ray share: programs that start a cluster, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

__all__ = ["SECONDS", "Marked", "needs_ray"]

needs_ray = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'dtlab[ray]'"),
]
HAD_RAY = (Path.home() / ".ray").exists()
SECONDS = 240.0  # that a program may take: a guard, a cluster alone starts in ten
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


class Marked:
    """A program whose processes can be told from others, wherever they end up."""

    def __init__(self, start: Callable[[dict[str, str]], subprocess.Popen[str]]) -> None:
        """`start` starts the program with an environment."""
        self.mark = f"DTLAB_TEST_{time.time_ns()}"
        self.process = start(os.environ | {self.mark: "1"})

    def processes(self) -> Iterator[psutil.Process]:
        for one in psutil.process_iter():
            try:
                if self.mark in one.environ():
                    yield one
            except psutil.Error:
                pass

    def folders(self) -> list[str]:
        places = {Path("/tmp"), Path(os.environ["TMPDIR"])}
        return [str(path) for place in places for path in place.glob(f"ray-{self.process.pid}-*")]

    def demand_loopback(self) -> None:
        """Raises AssertionError if a process can be reached from another machine."""
        found = set()
        for one in self.processes():
            try:
                connections = one.net_connections()
            except psutil.Error:
                continue
            found |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
        assert found <= LOOPBACK

    def demand_nothing_left(self) -> None:
        assert not (Path.home() / ".ray").exists() or HAD_RAY
        deadline = time.monotonic() + 60
        while left := [*map(str, self.processes()), *self.folders()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
