"""Moves on to other work while a cell runs for a long time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dtlab.ranks.sandbox.enclosure import Enclosure

__all__ = ["PATIENCE", "standing_back"]

PATIENCE = 1.5  # seconds that a cell may take before others come first


@contextmanager
def standing_back(enclosure: Enclosure, waits: Callable[[bool], None]) -> Iterator[None]:
    """If this lasts, `waits(True)`, and what runs there gets less CPU; `waits(False)` at its end.

    Between the two something else may be done, for which `waits(False)` may wait in its turn: what
    has to end is to be ended before.
    """
    stood_back = threading.Event()

    def stand_back() -> None:
        stood_back.set()
        enclosure.come_last(True)
        waits(True)

    timer = threading.Timer(PATIENCE, stand_back)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if stood_back.is_set():
            enclosure.come_last(False)
            waits(False)
