"""`dtlab.span`: marks a stretch of compute for the recorder of this process."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol

__all__ = ["SpanSink", "set_span_sink", "span", "span_sink"]


class SpanSink(Protocol):
    """Who takes the spans of this process: the recorder."""

    def begin_span(self) -> None:
        """A span is about to begin, in this thread."""

    def add_span(self, name: str, extra: dict[str, Any], start: int, end: int) -> None:
        """Take one finished span; `start` and `end` in nanoseconds of `time.perf_counter_ns`."""


_sink: SpanSink | None = None  # the recorder's registration: the one module state there is


def set_span_sink(sink: SpanSink | None) -> None:
    """Send all spans of this process to `sink` from now on; None throws them away."""
    global _sink
    _sink = sink


def span_sink() -> SpanSink | None:
    """Who takes the spans of this process; None where nobody does."""
    return _sink


class span:
    """Mark what runs inside the `with` block as compute, under a name.

        with dtlab.span("forward", microbatch=3):
            ...

    Outside a traced rank it does nothing. Spans may nest, and may be used in any thread. `extra`
    arrives in the event's `extra`; values that are not plain numbers or text arrive as text.
    """

    __slots__ = ("_extra", "_name", "_sink", "_start")

    def __init__(self, name: str, /, **extra: Any) -> None:
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
