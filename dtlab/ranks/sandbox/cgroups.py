"""A control group: limits on what a tree of processes takes together (Linux, versions 1 and 2)."""

from __future__ import annotations

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
_KILLS = ("memory.oom_control", "memory.events")  # where the kernel says whom it has ended
_END_LIMIT = 1.0  # seconds until the last process is on its way out


class Group:
    """A group by its name, which ends in the process id of whoever takes it away again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._unified = (_ROOT / "cgroup.controllers").exists()

    def make(self, memory: int, processes: int) -> None:
        """Make it. Raises OSError where the system or our rights do not allow it.

        Its processes together get as much of the CPUs as one process outside does, where others
        want them too.
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
        for controller in (*_FILES, "cpu", "cpuacct"):
            if controller in _FILES or (_ROOT / controller).exists():
                yield _ROOT / controller / self.name

    def enter(self) -> None:
        """Move this process into it, before it has started a thread."""
        for folder in self._folders():
            # Version 1 moves one thread at once, but waits 10 ms to be sure of a whole process.
            (folder / ("cgroup.procs" if self._unified else "tasks")).write_text("0")

    def come_last(self, last: bool) -> None:
        """Get a tenth of the usual share of busy CPUs, or the usual share again.

        With the least share that Linux offers, a cell on a busy machine would stand still.
        """
        file, usual, tenth = (pair[self._unified] for pair in _SHARES)
        folder = _ROOT / ("" if self._unified else "cpu") / self.name
        with suppress(OSError):  # not ours to say, or gone
            (folder / file).write_text(tenth if last else usual)

    def used(self) -> float:
        """CPU seconds that all of its processes have taken, those that have ended too."""
        with suppress(OSError, ValueError):
            if not self._unified:
                return int((_ROOT / "cpuacct" / self.name / "cpuacct.usage").read_text()) / 1e9
            for line in (_ROOT / self.name / "cpu.stat").read_text().splitlines():
                what, _, microseconds = line.partition(" ")
                if what == "usage_usec":
                    return int(microseconds) / 1e6
        return 0.0

    def pids(self) -> list[int]:
        """Its processes, by the ids that they have where this is asked."""
        folder = _ROOT / ("" if self._unified else "pids") / self.name
        with suppress(OSError, ValueError):
            return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
        return []

    def killed(self) -> int:
        """How many of its processes the kernel has ended for want of memory."""
        folder = _ROOT / ("" if self._unified else "memory") / self.name
        with suppress(OSError, ValueError):
            for line in (folder / _KILLS[self._unified]).read_text().splitlines():
                what, _, count = line.partition(" ")
                if what == "oom_kill":
                    return int(count)
        return 0

    def remove(self) -> None:
        """Take it away once its processes have ended."""
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
        """Take away groups like this one whose owners were killed before they could."""
        kind, _, _ = self.name.rpartition("-")
        for folder in parent.glob(f"{kind}-*"):
            if not Path("/proc", folder.name.rpartition("-")[2]).exists():
                with suppress(OSError):  # some process may not have ended yet
                    folder.rmdir()
