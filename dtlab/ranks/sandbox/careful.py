"""Watcher and stack reader for ranks whose messages cannot be trusted."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from dtlab.ranks.protocol import Finding, Frame, OpInfo
from dtlab.ranks.watch.stacks import StackPipe, parse
from dtlab.ranks.watch.watcher import Ask, Watcher

__all__ = ["CarefulStackPipe", "CarefulWatcher", "come_first", "reap_some"]

MOST_SECONDS = 2.0  # for one look at what ranks announced: an honest step takes a millisecond
MOST_STACK = 1 << 18  # bytes of what a rank writes about where it is
LAST_WORDS = 0.1  # seconds for which a rank may go on writing them
MOST_REAPED = 100
Result = TypeVar("Result")


class CarefulWatcher(Watcher):
    """Stops watching ranks that write what makes no sense, or more than it can follow.

    The time limit then ends them, as it ends ranks that compute.
    """

    _gave_up = False

    def look(self, ask: Ask | None = None) -> Finding | None:
        return self._try(lambda: Watcher.look(self, ask), None)

    def misfit(self) -> Finding | None:
        return self._try(lambda: Watcher.misfit(self), None)

    def blocked(self) -> set[int]:
        return self._try(lambda: Watcher.blocked(self), set())

    def waiting(self) -> list[OpInfo]:
        return self._try(lambda: Watcher.waiting(self), [])

    def unreceived(self) -> list[OpInfo]:
        return self._try(lambda: Watcher.unreceived(self), [])

    def _try(self, look: Callable[[], Result], nothing: Result) -> Result:
        if not self._gave_up:
            try:
                with _alarm():
                    return look()
            except Exception:  # noqa: BLE001  whatever they made it stumble over
                self._gave_up = True
        return nothing


class _TooLong(Exception):
    """It is not worth going on."""


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """Raise `_TooLong` inside after a while."""

    def ring(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class CarefulStackPipe(StackPipe):
    """Reads a stack, and not whatever else a rank may write without end."""

    def read_all(self, deadline: float = 0.0) -> list[list[Frame]]:
        text = b""
        deadline = max(deadline, time.monotonic() + LAST_WORDS)
        while len(text) < MOST_STACK:
            patience = max(0.0, deadline - time.monotonic())
            patience = min(patience, 0.02) if text else patience
            if not select.select([self.reader], [], [], patience)[0]:
                break
            data = os.read(self.reader, MOST_STACK)
            text += data
            if not data or time.monotonic() > deadline:
                break
        try:
            return parse(text.decode(errors="replace"))
        except ValueError:  # a line of more digits than a number may have
            return [[]]


def come_first() -> None:
    """Run whenever this process has something to do, however many others want to.

    Hundreds of processes of a fork bomb would leave it next to nothing. All that it forks comes
    first too, until it steps behind walls.
    """
    with contextlib.suppress(OSError):  # it takes root
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def reap_some() -> dict[int, int]:
    """As `system.reap`, which may go on for ever where processes end as quickly as they begin."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while len(ended) < MOST_REAPED:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended
