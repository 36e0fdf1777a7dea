"""What tests of Ray share: programs that start a cluster, and what they leave behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from dtlab.ranks.ray.cluster import short_folder

__all__ = ["SECONDS", "Marked", "needs_ray", "running_cluster"]

needs_ray = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'dtlab[ray]'"),
]
HAD_RAY = (Path.home() / ".ray").exists()
SECONDS = 240.0  # that a program may take: a guard, a cluster alone starts in ten
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@contextmanager
def running_cluster(monkeypatch: pytest.MonkeyPatch, cpus: int) -> Iterator[psutil.Process]:
    """A cluster of another program, named by RAY_ADDRESS; yields the process that started it."""
    folder = short_folder()
    for name, value in (
        ("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_AUTH_MODE", "token"),
        ("RAY_AUTH_TOKEN", "0123456789abcdef" * 4), ("PYTHONPATH", os.pathsep.join(sys.path)),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    code = (
        f"import ray, sys; i = ray.init(address='local', num_cpus={cpus}, include_dashboard=False,"
        f"_temp_dir={folder!r}); print(i.address_info['address'], flush=True);"
        "sys.stdin.read(); ray.shutdown()"
    )
    head = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert head.stdout is not None
    try:
        monkeypatch.setenv("RAY_ADDRESS", head.stdout.readline().strip())
        yield psutil.Process(head.pid)
        assert head.poll() is None
    finally:
        head.communicate(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


class Marked:
    """A program whose processes can be identified, whichever their parent is."""

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
