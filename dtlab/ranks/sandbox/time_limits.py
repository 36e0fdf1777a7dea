"""Time limits for graded code that do not count waiting for a CPU.

On a busy machine a process waits for a CPU most of the time, and a right answer must not lose its
points for that. Linux notes for each thread how long it ran and how long it waited
(/proc/PID/task/TID/schedstat). Where there is no such file, all time counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dtlab.ranks.system import usable_cpus

__all__ = ["FOR_CELLS", "FOR_RANKS", "Patience"]

# How many times its seconds a limit is stretched to at most. The CPU time of
# short-lived processes that ranks fork is not counted, so the limit of ranks is stretched less.
FOR_CELLS, FOR_RANKS = 10, 4


class Patience:
    """A time limit of `seconds` that begins now, for the processes that `pids` lists.

    What counts is the time since the beginning, less the longest that one thread has waited. At
    least one part in `stretch` of the time counts, and at least the CPU time that all have taken,
    shared among all CPUs: threads may also wait for each other. `used` gives that CPU time where
    the system counts it, also of processes that have ended.
    """

    def __init__(
        self,
        seconds: float,
        pids: Callable[[], Iterable[int]],
        stretch: int,
        used: Callable[[], float] | None = None,
    ) -> None:
        self._seconds, self._pids, self._all_used = seconds, pids, used
        self._stretch = stretch
        self._begun = time.monotonic()
        self._before, self._used_before = self._threads(), used() if used else 0.0

    @property
    def spent(self) -> float:
        """Seconds so far that count."""
        elapsed, ran, longest = time.monotonic() - self._begun, 0.0, 0.0
        for thread, (running, waiting) in self._threads().items():
            ran_before, waited_before = self._before.get(thread, (0.0, 0.0))
            ran += running - ran_before
            longest = max(longest, waiting - waited_before)
        if self._all_used:
            ran = max(ran, self._all_used() - self._used_before)
        return max(elapsed - longest, elapsed / self._stretch, ran / usable_cpus())

    @property
    def left(self) -> float:
        """Seconds that are left at least; 0 or less once it is over."""
        elapsed = time.monotonic() - self._begun
        return self._seconds - (elapsed if elapsed < self._seconds else self.spent)

    def _threads(self) -> dict[int, tuple[float, float]]:
        """Seconds that each thread ran, and that it waited for a CPU."""
        found = {}
        for pid in self._pids():
            with suppress(OSError):  # it has ended, or this system has no such folder
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with suppress(OSError, ValueError):
                        ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                        found[int(task.name)] = ran / 1e9, waited / 1e9
        return found
