"""Progress notices for anything that takes more than two seconds.

    with notice("05/leak: checking"):
        ...

In a notebook it is one output, "05/leak: checking, 3 s", which is updated every second and says
at the end how long it took. In a terminal it is printed once, to stderr. What waits for ranks
calls `tick`, in the thread that waits, so no other thread is needed.
"""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Iterator
from contextvars import ContextVar

from dtlab.ranks.system import in_a_kernel

__all__ = ["PATIENCE", "no_notices", "notice", "patience", "tick"]

SILENCE = 2.0  # seconds after which the line appears
PATIENCE = 1.0  # seconds that may pass between two calls of `tick`


class _Notice:
    """One line, and when it was last shown."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.begun = time.monotonic()
        self.due = self.begun + SILENCE
        self._display: str | None = None  # the id of its output in a notebook

    def tick(self) -> None:
        now = time.monotonic()
        if now >= self.due:
            self.due = now + PATIENCE
            self._show(f"{self.words}, {now - self.begun:.0f} s")

    def end(self) -> None:
        if self._display is not None:
            self._show(f"{self.words}: {time.monotonic() - self.begun:.0f} s")

    def _show(self, text: str) -> None:
        if not in_a_kernel():
            if self._display is None:
                print(f"{self.words} ...", file=sys.stderr, flush=True)
                self.due = float("inf")
            return
        update = self._display is not None
        self._display = self._display or uuid.uuid4().hex
        # Checks redirect stdout while ranks run, so `print` would not be seen.
        sys.modules["IPython"].get_ipython().display_pub.publish(
            {"text/plain": text}, transient={"display_id": self._display}, update=update
        )


_CURRENT: ContextVar[_Notice | None] = ContextVar("notice", default=None)


@contextlib.contextmanager
def notice(words: str) -> Iterator[None]:
    """Show `words` and the seconds since now, if this takes more than two; not inside another."""
    if _CURRENT.get() is not None:
        yield
        return
    current = _Notice(words)
    token = _CURRENT.set(current)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        current.end()


@contextlib.contextmanager
def no_notices() -> Iterator[None]:
    """Show none meanwhile: a progress bar says what is going on."""
    nothing = _Notice("")
    nothing.due = float("inf")
    token = _CURRENT.set(nothing)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def patience(most: float | None) -> float | None:
    """Seconds to wait before the next `tick`: `most` (None: no limit), or less inside a notice."""
    if _CURRENT.get() is None:
        return most
    return PATIENCE if most is None else min(most, PATIENCE)


def tick() -> None:
    """Show or update the notice in which this is called, if it is time to."""
    if (current := _CURRENT.get()) is not None:
        current.tick()
