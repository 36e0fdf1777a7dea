"""Progress notices for calls that take more than two seconds.

    with notice("05/run_c: checking"):
        ...

In a notebook the notice is one output, "05/run_c: checking, 3 s", updated every second, and empty
in the end. In a terminal it is printed once, to stderr. Code that waits for ranks calls `tick` in
the waiting thread, so no other thread is needed.
"""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Iterator
from contextvars import ContextVar

from dtlab.ranks.system import in_a_kernel

__all__ = ["PATIENCE", "heard", "no_notices", "notice", "patience", "tick"]

SILENCE = 2.0  # seconds after which the notice appears
PATIENCE = 1.0  # seconds that may pass between two calls of `tick`


class _Notice:
    """The text of one notice, and the time at which it is due next."""

    def __init__(
        self, words: str, if_silent: bool = False, since: float | None = None
    ) -> None:
        self.words = words
        self.begun = time.monotonic() if since is None else since
        self.due = self.begun + SILENCE
        self._if_silent = if_silent
        self._display: str | None = None  # id of its output in a notebook

    def tick(self) -> None:
        now = time.monotonic()
        if now >= self.due:
            self.due = now + PATIENCE
            self._show(f"{self.words}, {now - self.begun:.0f} s")

    def heard(self) -> None:
        if self._if_silent and self._display is None:
            self.due = time.monotonic() + SILENCE

    def end(self) -> None:
        if self._display is not None:
            self._publish("")

    def _show(self, text: str) -> None:
        if not in_a_kernel():
            if self._display is None:
                print(f"{self.words} ...", file=sys.stderr, flush=True)
                self.due = float("inf")
            return
        self._publish(text)

    def _publish(self, text: str) -> None:
        """Create or replace the notice's output in a notebook; an empty one takes no room."""
        update = self._display is not None
        self._display = self._display or uuid.uuid4().hex
        # Checks redirect stdout while ranks run, so `print` would not be seen.
        sys.modules["IPython"].get_ipython().display_pub.publish(
            {"text/plain": text}, transient={"display_id": self._display}, update=update
        )


_CURRENT: ContextVar[_Notice | None] = ContextVar("notice", default=None)


@contextlib.contextmanager
def notice(
    words: str, if_silent: bool = False, since: float | None = None
) -> Iterator[None]:
    """After two seconds, show `words` and the elapsed time. Do nothing inside another notice.

    With `if_silent`, these are two seconds without a call of `heard`. They begin now, or at the
    time `since`.
    """
    if _CURRENT.get() is not None:
        yield
        return
    current = _Notice(words, if_silent, since)
    token = _CURRENT.set(current)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        current.end()


@contextlib.contextmanager
def no_notices() -> Iterator[None]:
    """Suppress notices in this context, for instance while a progress bar is shown."""
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


def heard() -> None:
    """Postpone the current notice if it is only for silence: something else was shown."""
    if (current := _CURRENT.get()) is not None:
        current.heard()


def tick() -> None:
    """Show or update the current notice, if it is due."""
    if (current := _CURRENT.get()) is not None:
        current.tick()
