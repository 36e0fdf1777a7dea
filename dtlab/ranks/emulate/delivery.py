"""Delivery of emulated messages: completes operations at their emulated time.

In Python, a hook on `Work.wait` sleeps until that time (interconnect.py). In C++, DDP's reducer
and functional collectives wait for the future of a Work, and cannot be hooked. So an asynchronous
collective returns a Work that is created here. A thread completes its future at that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dtlab.ranks.emulate.ports import Ports
from dtlab.torch_internals import work_from_future

__all__ = ["POLL", "Clock", "Deliveries", "Due"]

POLL = 300_000  # nanoseconds between two checks of operations that cannot notify
MOST_EXCLUDED = 5_000_000  # nanoseconds of calls into the backend, between two waits
_now = time.perf_counter_ns  # as in ports.py, CLOCK_MONOTONIC


@dataclass(eq=False)
class Due:
    """An operation that has been posted, and for which the caller has not waited yet.

    `work` is the Work that the caller has, `real` the Work of the backend. They differ for an
    asynchronous collective, whose caller may wait in C++ or check whether it is complete.
    """

    key: int  # key in the table of `Ports`; 0: not known yet
    channel: tuple[int, ...]
    posted: int
    message: tuple[tuple[int, int], int, int, int] | None = None  # group and tag, src, dst, bytes
    work: Any = None
    real: Any = None
    future: Any = None
    is_here: bool = False  # the real operation is complete
    is_over: bool = False
    lock: Any = field(default_factory=threading.RLock)


class Clock(threading.local):
    """The emulated time of a thread: real time without the delays that emulation itself adds."""

    def __init__(self) -> None:
        self._late = 0  # nanoseconds by which the last sleep was too long
        self._excluded = 0  # nanoseconds of calls into the backend since the last wait

    def now(self) -> int:
        """Return the emulated time in nanoseconds; it is never ahead of the real clock."""
        return _now() - self._late - self._excluded

    def exclude(self, spent: int) -> None:
        """Do not count `spent` nanoseconds, which a call into the backend took."""
        self._excluded = min(self._excluded + spent, MOST_EXCLUDED)

    def sleep_until(self, end: int) -> None:
        """Sleep until the real clock reaches `end`, and set this clock to `end`."""
        now, behind = _now(), self._late
        if end > now:
            while end > now:
                time.sleep((end - now) * 1e-9)
                now = _now()
            behind = now - end
        self._late, self._excluded = min(behind, max(0, now - end)), 0


class Deliveries:
    """Completes asynchronous collectives at their emulated time, and calls `on_delivery`."""

    def __init__(self, ports: Ports, on_delivery: Callable[[Any], None]) -> None:
        self._ports = ports
        self._on_delivery = on_delivery
        self._plain_wait = dist.Work.wait
        self._open: list[Due] = []
        self._news = threading.Condition()
        self._fresh = False  # an operation was added that has not been checked
        self._thread: threading.Thread | None = None

    def replace(self, due: Due) -> Any:
        """Create a Work that replaces the real one, and return it boxed, as operators do."""
        due.future = torch.futures.Future()
        due.work = work_from_future(due.future)
        return due.work.boxed()

    def add(self, due: Due) -> None:
        """Schedule the completion of an operation."""
        with self._news:
            self._open.append(due)
            self._fresh = True
            self._news.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dtlab-wire", daemon=True)
                self._thread.start()

    def deliver(self, due: Due, error: Exception | None = None) -> None:
        """Complete an operation, so that threads that wait for it continue."""
        with due.lock:
            if due.is_over:
                return
            due.is_over = True
            self._on_delivery(due.work)  # first, so that the recorded end precedes later events
            if error is None:
                due.future.set_result(_value(due.real))
            else:
                due.future.set_exception(error)

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._open:
                    self._news.wait()
                due, self._fresh = list(self._open), False
            wait = min(self._look(operation) for operation in due)
            with self._news:
                self._open = [operation for operation in self._open if not operation.is_over]
                if not self._fresh and wait > 0:
                    self._news.wait(wait * 1e-9)

    def _look(self, due: Due) -> int:
        """Deliver an operation if it is due; return the nanoseconds until the next check."""
        if not due.lock.acquire(blocking=False):
            return POLL  # another thread waits for it, and will deliver it
        try:
            if due.is_over:
                return 0
            if not due.is_here and due.real.is_completed():
                self._plain_wait(due.real)  # some operations copy their result here, or raise
                due.is_here = True
            end = self._ports.end(due.key)
            left = POLL if end is None else end - _now()
            if left <= 0 and not due.is_here:
                left = POLL
            if left <= 0:
                self.deliver(due)
            return left
        except Exception as error:  # noqa: BLE001  the waiting thread gets any error of the backend
            self.deliver(due, error)
            return 0
        finally:
            due.lock.release()


def _value(real: Any) -> list[torch.Tensor]:
    """The value of the future of a Work; an empty list if it has no future."""
    try:
        return list(real.get_future().value())
    except RuntimeError:
        return []
