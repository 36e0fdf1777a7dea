"""A context manager that lets other tasks continue while a cell runs for a long time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dtlab.ranks.sandbox.sandbox import Sandbox

__all__ = ["PATIENCE", "lowered_priority"]

PATIENCE = 1.5  # seconds that a cell may run before other tasks go first
_SHORTEST = 0.2  # seconds between two looks at the time that a cell has run


@contextmanager
def lowered_priority(sandbox: Sandbox, waits: Callable[[bool], bool | None]) -> Iterator[None]:
    """After `PATIENCE` seconds, calls `waits(True)` and lowers the sandbox's priority.

    Time in which the cell waits for a CPU does not count: on a busy machine every cell takes long,
    and if other tasks went first each time, no task would end. If `waits` returns True, the
    sandbox keeps its priority, so that its task ends soon. At the end of the context it restores
    the priority and calls `waits(False)`. Another task may run in between, and `waits(False)` may
    block until that task pauses. So a process that must end without delay must be ended inside the
    context.
    """
    ended, lowered = threading.Event(), threading.Event()
    patience = sandbox.patience(PATIENCE)

    def lower() -> None:
        left = PATIENCE
        while left > 0:
            if ended.wait(max(left, _SHORTEST)):
                return
            left = patience.left
        lowered.set()
        if not waits(True):
            sandbox.come_last(True)

    thread = threading.Thread(target=lower, name="patience", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if lowered.is_set():
            sandbox.come_last(False)
            waits(False)
