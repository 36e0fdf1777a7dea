"""A watcher and a stack reader for ranks whose messages are not trusted."""

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

__all__ = ["UntrustedRanksWatcher", "UntrustedStackPipe", "come_first", "reap_some"]

MOST_SECONDS = 2.0  # for one check of announcements; with honest ranks it takes a millisecond
MOST_STACK = 1 << 18  # bytes of a rank's stack trace
LAST_WORDS = 0.1  # seconds for which a rank may write its stack trace
MOST_REAPED = 100
Result = TypeVar("Result")


class UntrustedRanksWatcher(Watcher):
    """A watcher that gives up if ranks write invalid records, or too many of them.

    The time limit then ends the ranks.
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

    def posted(self) -> list[OpInfo]:
        return self._try(lambda: Watcher.posted(self), [])

    def polled(self) -> list[tuple[OpInfo, list[int]]]:
        return self._try(lambda: Watcher.polled(self), [])

    def _try(self, look: Callable[[], Result], nothing: Result) -> Result:
        if not self._gave_up:
            try:
                with _alarm():
                    return look()
            except Exception:  # noqa: BLE001  invalid records may raise anything
                self._gave_up = True
        return nothing


class _TooLong(Exception):
    """A check took longer than `MOST_SECONDS`."""


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """Raise `_TooLong` inside the context after `MOST_SECONDS`."""

    def ring(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class UntrustedStackPipe(StackPipe):
    """Reads a stack trace, with limits on its size and on the time for reading it."""

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
        except ValueError:  # a line number with too many digits
            return [[]]


def come_first() -> None:
    """Give this process the highest scheduling priority.

    Otherwise hundreds of processes of a fork bomb would leave it almost no CPU time. Its children
    inherit the priority until they confine themselves (`isolation.confine`).
    """
    with contextlib.suppress(OSError):  # requires root
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def reap_some() -> dict[int, int]:
    """As `system.reap`, but bounded, since a fork bomb could keep `reap` busy without end."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while len(ended) < MOST_REAPED:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended
