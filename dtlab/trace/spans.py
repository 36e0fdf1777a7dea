"""`dtlab.span`: marks a period of compute for the recorder of this process."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dtlab.trace.records import Records

__all__ = ["SpanSink", "set_span_sink", "span", "span_sink"]


class SpanSink(Protocol):
    """The interface of the recorder, which receives the spans of this process."""

    def begin_span(self) -> None:
        """Record that a span begins in this thread."""

    def add_span(self, name: str, extra: dict[str, Any], start: int, end: int) -> None:
        """Record a finished span; `start` and `end` are from `time.perf_counter_ns`."""

    def records(self, rank: int) -> Records:
        """Return what has been recorded so far in this process, which is rank `rank`."""


_sink: SpanSink | None = None  # the registered recorder, the only module-level state


def set_span_sink(sink: SpanSink | None) -> None:
    """Send all spans of this process to `sink` from now on; None discards them."""
    global _sink
    _sink = sink


def span_sink() -> SpanSink | None:
    """Return the recorder of this process's spans, or None."""
    return _sink


class span:
    """Marks the code inside the `with` block as compute, under a name.

        with dtlab.span("forward", microbatch=3):
            ...

    Outside a traced rank it does nothing. Spans may be nested, and used in any thread. The keyword
    arguments become the event's `extra`; values other than plain numbers or text become text.
    """

    __slots__ = ("_extra", "_name", "_sink", "_start")

    def __init__(self, name: str, /, **extra: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f'span needs a name, as in dtlab.span("forward"), not {name!r}.')
        self._name = name
        self._extra = extra
        self._sink: SpanSink | None = None
        self._start = 0

    def __enter__(self) -> None:
        self._sink = _sink
        if self._sink is not None:
            self._sink.begin_span()
        self._start = time.perf_counter_ns()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._sink is not None:
            self._sink.add_span(self._name, self._extra, self._start, time.perf_counter_ns())
