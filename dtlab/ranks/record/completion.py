"""Operations that are not yet known to be complete, and the thread that checks them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from dtlab.ranks.record.journal import Journal

__all__ = ["Ends", "Pending"]

_now = time.perf_counter_ns

# An operation of which nobody has seen the end: its index, its Work, the tensors that it writes
# to, group and tag if it receives from anybody, whether a wait for it has to be announced. A Work
# is known by its Python object, which is the same for as long as one is alive: so it is kept here.
Pending = tuple[int, Any, Any, tuple[Any, int] | None, bool]


def _is_completed(work: Any) -> bool:
    return bool(work.is_completed())


def _is_over(work: Any) -> bool:
    """Whether whoever waits for it may have gone on: gloo tells a Work's future first (as DDP
    waits), and the Work a moment later. (Futures of what runs on a GPU are done from the start.)
    """
    if work.is_completed():
        return True
    try:
        future = work.get_future()
        return bool(future.done()) and not any(one.is_cuda for one in _tensors(future.value()))
    except RuntimeError:  # a Work without a future, or it failed
        return False


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in what a future gives."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for each in value for one in _tensors(each)] if isinstance(value, list) else []


class Ends:
    """Finds out when operations are complete that nobody waits for in Python, as under DDP.

    Their Works and tensors are let go of then. They are looked at whenever an operation is issued
    or a span begins, and, where times are kept, by a thread every 2 ms in between. (A callback on
    a Work's future is exact, but makes the backend's threads compete with the rank for the GIL: a
    tenth of a step of 50 operations.)
    """

    INTERVAL = 0.002  # seconds

    def __init__(self, journal: Journal, pending: dict[int, Pending]) -> None:
        self.open: deque[tuple[int, Any]] = deque()  # in the order of issue, which backends keep
        self._journal, self._pending = journal, pending
        self._looking = threading.Lock()
        self._wake = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def follow(self, index: int, work: Any) -> None:
        """Find out when `work` is complete."""
        self.open.append((index, work))
        if self._journal.limit == 0:
            return  # nobody asks when, so the next operation is soon enough
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dtlab-ends", daemon=True)
            self._thread.start()
        if not self._wake.is_set():
            self._wake.set()

    def look(self) -> None:
        """Note what has been completed since the last look."""
        if not self._looking.acquire(blocking=False):
            return  # another thread is doing it
        try:
            self._note_complete()
        finally:
            self._looking.release()

    def look_now(self) -> None:
        """As `look`; what is complete has been noted when this returns."""
        if self.open or self._looking.locked():
            with self._looking:
                self._note_complete(_is_over)

    def _note_complete(self, is_over: Callable[[Any], bool] = _is_completed) -> None:
        while self.open and is_over(self.open[0][1]):
            index, work = self.open.popleft()
            self._journal.end(index, _now())
            known = self._pending.get(id(work))
            if known is not None and known[0] == index:  # nobody has waited for it
                self._pending.pop(id(work), None)

    def note(self, work: Any) -> None:
        """It is complete: the emulated interconnect tells, which keeps no order among groups."""
        known = self._pending.pop(id(work), None)
        if known is not None:
            self._journal.end(known[0], _now())

    def _run(self) -> None:
        while not self._over:
            self._wake.wait()
            self._wake.clear()
            while self.open and not self._over:
                time.sleep(self.INTERVAL)
                self.look()

    def stop(self) -> None:
        """Look for the last time."""
        self.look()
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
