"""Tracks operations that are not yet known to be complete, with a thread that checks them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dtlab.ranks.record.journal import Journal

__all__ = ["Ends", "Pending", "is_completed"]

_now = time.perf_counter_ns

# An operation that is not known to be complete: index, Work, the tensors that it writes to, group
# and tag if it receives from any source, whether a wait for it must be announced, and whether it
# is a collective. Operations are looked up by the id of the Work's Python object, so this
# reference keeps that object alive.
Pending = tuple[int, Any, Any, tuple[Any, int] | None, bool, bool]

# The recorder may replace these methods, in order to see calls of the program (buffers.py).
is_completed, _get_future = dist.Work.is_completed, dist.Work.get_future


def _is_over(work: Any) -> bool:
    """Whether a thread that waits for the Work may have continued.

    gloo completes a Work's future, for which DDP waits, slightly before the Work itself. (The
    futures of GPU operations are done from the start, so they are ignored.)
    """
    if is_completed(work):
        return True
    try:
        future: Any = _get_future(work)
        return bool(future.done()) and not any(t.is_cuda for t in _tensors(future.value()))
    except RuntimeError:  # the Work has no future, or has failed
        return False


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in the value of a future."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, list) else []


class Ends:
    """Notes the ends of operations for which no Python code waits, such as those of DDP.

    It then releases their Works and tensors. Operations are checked whenever another is issued or
    a span begins and, if times are recorded, also by a thread every 2 ms. (A callback on a Work's
    future would be exact, but the backend's threads would compete with the rank for the GIL: that
    costs a tenth of a step of 50 operations.)
    """

    INTERVAL = 0.002  # seconds

    def __init__(self, journal: Journal, pending: dict[int, Pending]) -> None:
        self.open: deque[tuple[int, Any]] = deque()  # in the order of issue and completion
        self._journal, self._pending = journal, pending
        self._looking = threading.Lock()
        self._wake = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def follow(self, index: int, work: Any) -> None:
        """Note the end of operation `index` when `work` is complete."""
        self.open.append((index, work))
        if self._journal.limit == 0:
            return  # no times are recorded, so a check at the next operation suffices
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dtlab-ends", daemon=True)
            self._thread.start()
        if not self._wake.is_set():
            self._wake.set()

    def look(self) -> None:
        """Note the operations that were completed since the last check, without waiting."""
        if not self._looking.acquire(blocking=False):
            return  # another thread is checking
        try:
            self._note_complete()
        finally:
            self._looking.release()

    def look_now(self) -> None:
        """Note all operations that are complete now, even if another thread is checking."""
        if self.open or self._looking.locked():
            with self._looking:
                self._note_complete(_is_over)

    def _note_complete(self, is_over: Callable[[Any], bool] = is_completed) -> None:
        while self.open and is_over(self.open[0][1]):
            index, work = self.open.popleft()
            self._journal.end(index, _now())
            known = self._pending.get(id(work))
            if known is not None and known[0] == index:  # no thread has waited for it
                self._pending.pop(id(work), None)

    def note(self, work: Any) -> None:
        """Note that `work` is complete; the emulated interconnect calls this, in any order."""
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
        """Check for the last time, and end the thread."""
        self.look()
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
