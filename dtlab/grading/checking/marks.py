"""What happened on a rank while it was inside a mark, as `dtlab.span` makes one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtlab.trace import Event, Trace

__all__ = ["inside_marks"]


def inside_marks(trace: Trace | None, rank: int, name: str) -> Iterator[list[Event]]:
    """For each mark of this name on this rank, in order: what began before it ended."""
    own = [event for event in trace.events if event.rank == rank] if trace is not None else []
    for mark in own:
        if mark.name == name:
            yield [event for event in own if mark.start <= event.start <= mark.end]
