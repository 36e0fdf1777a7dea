"""A context manager that lets other tasks continue while a cell runs for a long time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dtlab.ranks.sandbox.enclosure import Enclosure

__all__ = ["PATIENCE", "lowered_priority"]

PATIENCE = 1.5  # seconds that a cell may run before other tasks go first


@contextmanager
def lowered_priority(enclosure: Enclosure, waits: Callable[[bool], None]) -> Iterator[None]:
    """After `PATIENCE` seconds, lowers the enclosure's priority and calls `waits(True)`.

    At the end of the context it restores the priority and calls `waits(False)`. Another task may
    run in between, and `waits(False)` may block until that task pauses. So a process that must end
    without delay must be ended inside the context.
    """
    lowered = threading.Event()

    def lower() -> None:
        lowered.set()
        enclosure.come_last(True)
        waits(True)

    timer = threading.Timer(PATIENCE, lower)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if lowered.is_set():
            enclosure.come_last(False)
            waits(False)
