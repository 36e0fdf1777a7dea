"""Delivery of emulated messages: when an operation completes, and how a waiting rank notices.

In Python, `Work.wait` is hooked and simply sleeps (interconnect.py). C++ has no hook: DDP's
reducer and functional collectives wait for a Work's future. So an asynchronous collective gets a
Work of ours, whose future one thread sets when it is time.
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

__all__ = ["POLL", "Clock", "Deliveries", "Due"]

POLL = 300_000  # nanoseconds between two looks at what cannot tell by itself
MOST_FORGIVEN = 5_000_000  # nanoseconds of handing messages over, between two waits
_now = time.perf_counter_ns  # as in ports.py, CLOCK_MONOTONIC


@dataclass(eq=False)
class Due:
    """An operation that has been posted and not been waited for.

    `work` is what the caller has, `real` what the backend gave: where the caller goes on, and so
    may wait in C++ or ask whether it is complete, they are not the same.
    """

    key: int  # 0: not known yet
    channel: tuple[int, ...]
    posted: int
    message: tuple[tuple[int, int], int, int, int] | None = None  # group and tag, src, dst, bytes
    work: Any = None
    real: Any = None
    future: Any = None
    is_here: bool = False  # really
    is_over: bool = False
    lock: Any = field(default_factory=threading.RLock)


class Clock(threading.local):
    """The emulated time of a thread: real time less what it should not have taken."""

    def __init__(self) -> None:
        self._late = 0  # nanoseconds by which the last sleep was too long
        self._forgiven = 0  # nanoseconds of handing over since the last wait

    def now(self) -> int:
        """Nanoseconds, never ahead of the real clock."""
        return _now() - self._late - self._forgiven

    def forgive(self, spent: int) -> None:
        """Do not count time that was spent on handing a message over."""
        self._forgiven = min(self._forgiven + spent, MOST_FORGIVEN)

    def sleep_until(self, end: int) -> None:
        """Return when the real clock says `end`, or at once; this one then says `end` too."""
        now, behind = _now(), self._late
        if end > now:
            while end > now:
                time.sleep((end - now) * 1e-9)
                now = _now()
            behind = now - end
        self._late, self._forgiven = min(behind, max(0, now - end)), 0


class Deliveries:
    """Completes asynchronous collectives at their time; `on_delivery` hears of their Works."""

    def __init__(self, ports: Ports, on_delivery: Callable[[Any], None]) -> None:
        self._ports = ports
        self._on_delivery = on_delivery
        self._plain_wait = dist.Work.wait
        self._open: list[Due] = []
        self._news = threading.Condition()
        self._fresh = False  # something was added that has not been looked at
        self._thread: threading.Thread | None = None

    def replace(self, due: Due) -> Any:
        """Put a Work of ours in place of the real one; returns it as operators hand it out."""
        make: Any = torch._C._distributed_c10d  # not all of it is declared
        due.future = torch.futures.Future()
        due.work = make._create_work_from_future(due.future)
        return due.work.boxed()

    def add(self, due: Due) -> None:
        """Deliver it when it is time."""
        with self._news:
            self._open.append(due)
            self._fresh = True
            self._news.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dtlab-wire", daemon=True)
                self._thread.start()

    def deliver(self, due: Due, error: Exception | None = None) -> None:
        """It is over: whoever waits for it goes on."""
        with due.lock:
            if due.is_over:
                return
            due.is_over = True
            self._on_delivery(due.work)  # at first: the time that is noted is before what follows
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
            wait = min(self._look(each) for each in due)
            with self._news:
                self._open = [each for each in self._open if not each.is_over]
                if not self._fresh and wait > 0:
                    self._news.wait(wait * 1e-9)

    def _look(self, due: Due) -> int:
        """Deliver it if it is time; nanoseconds until it is worth looking again."""
        if not due.lock.acquire(blocking=False):
            return POLL  # somebody waits for it, and will deliver it
        try:
            if due.is_over:
                return 0
            if not due.is_here and due.real.is_completed():
                self._plain_wait(due.real)  # some copy their result only now, or raise
                due.is_here = True
            end = self._ports.end(due.key)
            left = POLL if end is None else end - _now()
            if left <= 0 and not due.is_here:
                left = POLL
            if left <= 0:
                self.deliver(due)
            return left
        except Exception as error:  # noqa: BLE001  whatever the backend raises is for those who wait
            self.deliver(due, error)
            return 0
        finally:
            due.lock.release()


def _value(real: Any) -> list[torch.Tensor]:
    """What the future of a Work gives."""
    try:
        return list(real.get_future().value())
    except RuntimeError:  # a Work without one
        return []
