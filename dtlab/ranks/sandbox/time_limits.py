"""Time limits that do not count waiting for a CPU.

On a busy machine a process waits for a CPU most of the time. A correct program must not fail for
that, and a correct answer must not lose points. Linux counts for each thread how long it ran and
how long it waited (/proc/PID/task/TID/schedstat). Without such a file, all time counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dtlab.ranks.system import usable_cpus

__all__ = ["STRETCH", "Patience"]

# Maximum factor by which a limit is stretched. There is one because the work of processes that
# ranks started, and that have ended, is not counted.
STRETCH = 10


class Patience:
    """A time limit of `seconds` that starts now, for processes and those that they have started.

    The time that counts is the elapsed time minus the longest time that one thread has waited for
    a CPU. It is at least 1/`STRETCH` of the elapsed time, and at least the CPU time of all threads
    divided by the number of CPUs, because threads may also wait for each other. If the system
    counts them, `used` returns that CPU time, and `waited` the time in which any process waited
    for a CPU. Both include processes that have ended: a cell that launches ranks several times
    waits with many short ones, one after the other.
    """

    def __init__(
        self,
        seconds: float,
        pids: Callable[[], Iterable[int]],
        used: Callable[[], float] = lambda: 0.0,
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._seconds, self._pids, self._used, self._waited = seconds, pids, used, waited
        self._begun = time.monotonic()
        self._before, self._used_before, self._waited_before = self._threads(), used(), waited()

    @property
    def spent(self) -> float:
        """The time so far that counts, in seconds."""
        elapsed, ran, longest = time.monotonic() - self._begun, 0.0, 0.0
        for thread, (running, waiting) in self._threads().items():
            ran_before, waited_before = self._before.get(thread, (0.0, 0.0))
            ran += running - ran_before
            longest = max(longest, waiting - waited_before)
        ran = max(ran, self._used() - self._used_before)
        longest = max(longest, self._waited() - self._waited_before)
        return max(elapsed - longest, elapsed / STRETCH, ran / usable_cpus())

    @property
    def left(self) -> float:
        """A lower bound of the remaining seconds; 0 or less if the limit has passed."""
        elapsed = time.monotonic() - self._begun
        return self._seconds - (elapsed if elapsed < self._seconds else self.spent)

    def _threads(self) -> dict[int, tuple[float, float]]:
        """For each thread, the seconds that it ran, and that it waited for a CPU."""
        times: dict[int, tuple[float, float]] = {}
        pids = list(self._pids())
        while pids:
            with suppress(OSError):  # it has ended, or this system has no such folder
                for task in Path(f"/proc/{pids.pop()}/task").iterdir():
                    if int(task.name) in times:
                        continue
                    with suppress(OSError, ValueError):
                        ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                        times[int(task.name)] = ran / 1e9, waited / 1e9
                        pids += map(int, (task / "children").read_text().split())
        return times
