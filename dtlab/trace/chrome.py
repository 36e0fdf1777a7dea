"""Export of a trace as Chrome's trace-event JSON, which https://ui.perfetto.dev opens.

There is one process per rank. It has a row for each thread that computes, and rows for
communication, so that overlapping operations are in different rows. An arrow leads from each send
to its receive. `dtlab.profiling.own_files` reads the events back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from dtlab.trace.analysis import Meetings
from dtlab.trace.columns import COMPUTE, MARK, SEND, Columns, Event

__all__ = ["chrome_events"]

_COMM_ROW = 1000  # so that communication is below all threads


def chrome_events(columns: Columns, matches: Meetings) -> Iterator[dict[str, Any]]:
    """Yield the entries of `traceEvents`; times are in microseconds."""
    rows = _rows(columns)
    yield from _names(columns, rows)
    for row, line in enumerate(rows):
        yield _slice(columns.event(row), line)
        partner = int(matches.partner[row])
        if columns.role[row] == SEND and partner >= 0:
            yield from _arrow(columns, rows, row, partner)


def _rows(columns: Columns) -> list[int]:
    """Return the row in which each event is drawn; overlapping communication gets several rows."""
    free: dict[int, list[int]] = {}  # per rank: a heap of unused rows
    running: dict[int, list[tuple[float, int]]] = {}
    rows: list[int] = []
    for row in range(len(columns.rank)):
        if columns.role[row] in (COMPUTE, MARK):
            rows.append(int(columns.thread[row]))
            continue
        rank, start, end = int(columns.rank[row]), columns.start[row], columns.end[row]
        active, idle = running.setdefault(rank, []), free.setdefault(rank, [])
        while active and active[0][0] <= start:
            heapq.heappush(idle, heapq.heappop(active)[1])
        line = heapq.heappop(idle) if idle else _COMM_ROW + len(active)
        heapq.heappush(active, (float(end), line))
        rows.append(line)
    return rows


def _names(columns: Columns, rows: list[int]) -> Iterator[dict[str, Any]]:
    for rank in sorted(set(columns.rank.tolist())):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for rank, row in sorted(set(zip(columns.rank.tolist(), rows, strict=True))):
        number = row - _COMM_ROW if row >= _COMM_ROW else row
        name = "communication" if row >= _COMM_ROW else "compute"
        name += f" {number + 1}" if number else ""
        about = {"pid": rank, "tid": row}
        yield {"ph": "M", "name": "thread_name", **about, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", **about, "args": {"sort_index": row}}


def _slice(event: Event, line: int) -> dict[str, Any]:
    details = {key: _plain(value) for key, value in event.extra.items() if key != "blocked"}
    if event.kind == "comm":
        waits = event.extra.get("blocked", ((event.start, event.end),))
        details |= {
            "bytes": event.bytes,
            "peers": list(event.peers),
            "blocked_us": sum(end - start for start, end in waits) * 1e6,
        }
        if "blocked" in event.extra:
            details["blocked"] = [[start * 1e6, end * 1e6] for start, end in waits]
    return {
        "ph": "X", "name": event.name, "cat": event.kind, "pid": event.rank, "tid": line,
        "ts": event.start * 1e6, "dur": (event.end - event.start) * 1e6, "args": details,
    }  # fmt: skip


def _arrow(columns: Columns, rows: list[int], send: int, recv: int) -> Iterator[dict[str, Any]]:
    sent, start, end = map(float, (columns.start[send], columns.start[recv], columns.end[recv]))
    # The arrow ends just before the end of the receive, because viewers attach it to the slice at
    # that time. It ends after the send, because viewers drop an arrow that goes backwards in time.
    received = max(end - 0.02 * (end - start), (max(sent, start) + end) / 2)
    common = {"name": "message", "cat": "message", "id": send}
    for phase, row, at in (("s", send, sent), ("f", recv, received)):
        place = {"pid": int(columns.rank[row]), "tid": rows[row], "ts": at * 1e6}
        yield {"ph": phase, **common, **place, **({"bp": "e"} if phase == "f" else {})}


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else str(value)
