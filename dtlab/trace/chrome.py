"""Export of a trace as Chrome's trace-event JSON, which https://ui.perfetto.dev opens.

There is one process per rank. It has a row for each thread that computes, and rows for
communication, so that overlapping operations are in different rows. An arrow leads from each send
to its receive. `events_of` reads the events back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dtlab.trace.analysis import Meetings
from dtlab.trace.columns import COMPUTE, MARK, SEND, Columns, Event
from dtlab.trace.reading.entries import Notes, is_count, is_duration, is_rank, is_ranks, is_time

__all__ = ["chrome_events", "events_of"]

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


def events_of(entries: Iterable[Any], label: str) -> tuple[list[Event], list[str]]:
    """Return the events in `traceEvents` of a file that `Trace.to_chrome` wrote, and notes.

    An event with a value that cannot be read is left out, and a note says so.
    """
    events, notes = [], Notes(label)
    for number, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("ph") in _OTHERS:
            continue
        fault = _fault(entry)
        if fault:
            name = f' ("{entry.get("name")}")' if isinstance(entry, dict) else ""
            notes.add(fault[0], f"traceEvents[{number}]{name}", fault[1], "the event is left out")
        else:
            events.append(_event(entry))
    return events, notes.sentences()


_OTHERS = ("M", "s", "f")  # names and arrows


def _fault(entry: Any) -> tuple[str, object] | None:
    """Return the key and the value of an event that cannot be read, or None."""
    if not isinstance(entry, dict):
        return "", entry
    args = entry.get("args")
    rules: dict[str, bool] = {
        "ph": entry.get("ph") == "X", "ts": is_time(entry.get("ts")),
        "dur": is_duration(entry.get("dur")), "pid": is_rank(entry.get("pid")),
        "cat": entry.get("cat") in ("comm", "compute"), "args": isinstance(args, dict),
    }  # fmt: skip
    key = next((key for key, readable in rules.items() if not readable), "")
    if key or not isinstance(args, dict):
        return key, entry.get(key)
    rules = {key: is_rank(args[key]) for key in ("thread",) if key in args}
    if entry["cat"] == "comm":
        rules |= {"bytes": is_count(args.get("bytes")), "peers": _is_list(args.get("peers"))}
        rules |= {"group": _is_list(args["group"])} if "group" in args else {}
        rules |= {"blocked": _is_pairs(args["blocked"])} if "blocked" in args else {}
    return next(((key, args.get(key)) for key, readable in rules.items() if not readable), None)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and is_ranks(value)


def _is_pairs(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(is_time, pair)) for pair in value
    )


def _event(entry: Mapping[str, Any]) -> Event:
    extra = dict(entry["args"])
    bytes_, peers = 0, ()
    if entry["cat"] == "comm":
        bytes_, peers = extra.pop("bytes"), tuple(extra.pop("peers"))
        extra.pop("blocked_us", None)
        if "blocked" in extra:
            extra["blocked"] = [(start * 1e-6, end * 1e-6) for start, end in extra["blocked"]]
        if "group" in extra:
            extra["group"] = tuple(extra["group"])
    start = entry["ts"] * 1e-6
    return Event(
        entry["pid"], entry["cat"], str(entry.get("name")), peers, bytes_, start,
        start + entry["dur"] * 1e-6, extra,
    )  # fmt: skip
