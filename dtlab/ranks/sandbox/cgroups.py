"""Linux control groups (versions 1 and 2): resource limits for a tree of processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["Group"]

_ROOT = Path("/sys/fs/cgroup")
_FILES = {  # controller: the files with its limit, version 1 and 2
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "pids": ("pids.max", "pids.max"),
}
_SHARES = ("cpu.shares", "cpu.weight"), ("1024", "100"), ("102", "10")  # file, usual, a tenth
_PRESSURE = _ROOT / "unified"  # with version 1 too, some systems count waiting in a group there
_KILLS = ("memory.oom_control", "memory.events")  # files with the count of killed processes
_END_LIMIT = 1.0  # seconds until the last process has ended


class Group:
    """A control group; its name ends in the process id of the owner that will remove it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._unified = (_ROOT / "cgroup.controllers").exists()

    def make(self, memory: int, processes: int) -> None:
        """Create the group with limits on bytes and processes. Raises OSError if not allowed.

        On a busy machine, all processes of the group together get the CPU share of one process.
        """
        limits = {"memory": memory, "pids": processes}
        try:
            for folder in self._folders():
                self._sweep(folder.parent)
                folder.mkdir()
            for controller, most in limits.items():
                folder = _ROOT / ("" if self._unified else controller) / self.name
                (folder / _FILES[controller][self._unified]).write_text(str(most))
        except OSError:
            self.remove()
            raise

    def _folders(self) -> Iterator[Path]:
        if self._unified:
            yield _ROOT / self.name
            return
        for controller in (*_FILES, "cpu", "cpuacct", _PRESSURE.name):
            if controller in _FILES or os.access(_ROOT / controller, os.W_OK):
                yield _ROOT / controller / self.name

    def enter(self) -> None:
        """Move this process, which must have only one thread, into the group."""
        for folder in self._folders():
            # Version 1 moves one thread at once, but needs 10 ms for a whole process.
            whole = self._unified or folder.parent == _PRESSURE
            (folder / ("cgroup.procs" if whole else "tasks")).write_text("0")

    def come_last(self, last: bool) -> None:
        """Reduce the group's share of busy CPUs to a tenth, or restore the usual share.

        With the smallest share that Linux allows, a cell on a busy machine would make no progress.
        """
        file, usual, tenth = (pair[self._unified] for pair in _SHARES)
        folder = _ROOT / ("" if self._unified else "cpu") / self.name
        with suppress(OSError):  # not allowed, or the group is gone
            (folder / file).write_text(tenth if last else usual)

    def used(self) -> float:
        """CPU seconds that all processes of the group have used, including ended ones."""
        with suppress(OSError, ValueError):
            if not self._unified:
                return int((_ROOT / "cpuacct" / self.name / "cpuacct.usage").read_text()) / 1e9
            for line in (_ROOT / self.name / "cpu.stat").read_text().splitlines():
                key, _, microseconds = line.partition(" ")
                if key == "usage_usec":
                    return int(microseconds) / 1e6
        return 0.0

    def waited(self) -> float:
        """Seconds in which any process of the group waited for a CPU; 0.0 if that is not counted.

        Linux calls this pressure ("some"), and counts it anew every two seconds.
        """
        folder = _ROOT / ("" if self._unified else _PRESSURE.name) / self.name
        with suppress(OSError, ValueError):
            some, _, _ = (folder / "cpu.pressure").read_text().partition("\n")
            return int(some.rpartition("total=")[2]) / 1e6
        return 0.0

    def pids(self) -> list[int]:
        """The ids of the group's processes, in the PID namespace of the caller."""
        folder = _ROOT / ("" if self._unified else "pids") / self.name
        with suppress(OSError, ValueError):
            return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
        return []

    def killed(self) -> int:
        """Number of the group's processes that the kernel killed because memory ran out."""
        folder = _ROOT / ("" if self._unified else "memory") / self.name
        with suppress(OSError, ValueError):
            for line in (folder / _KILLS[self._unified]).read_text().splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return int(count)
        return 0

    def remove(self) -> None:
        """Remove the group once its processes have ended."""
        deadline = time.monotonic() + _END_LIMIT
        for folder in self._folders():
            while folder.exists():
                with suppress(OSError):
                    folder.rmdir()
                    break
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)

    def _sweep(self, parent: Path) -> None:
        """Remove groups of the same kind whose owners were killed before they could do it."""
        kind, _, _ = self.name.rpartition("-")
        for folder in parent.glob(f"{kind}-*"):
            if not Path("/proc", folder.name.rpartition("-")[2]).exists():
                with suppress(OSError):  # some process may not have ended yet
                    folder.rmdir()
