"""Reader of the files that `Trace.to_chrome` writes: the trace is as it was."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from dtlab.errors import DtlabError
from dtlab.profiling.reading.entries import (
    Notes,
    is_count,
    is_duration,
    is_rank,
    is_ranks,
    is_time,
)
from dtlab.profiling.reading.files import File
from dtlab.trace import Trace
from dtlab.trace.columns import Event

__all__ = ["events_of", "trace_of"]


def trace_of(file: File) -> Trace:
    """Return the trace in a file. Raises: DtlabError if `to_chrome` did not write it so."""
    try:
        about = file.content["dtlab"]
        if not is_rank(about["world_size"]) or not isinstance(about["wire"], list | None):
            raise ValueError(f"world_size {about['world_size']!r}, wire {about['wire']!r}")
        events, notes = events_of(file.content["traceEvents"], file.label)
        trace = Trace(events, world_size=about["world_size"], wire=about["wire"])
        trace.emulated = str(about["emulated"])
        trace.lane_names = tuple(map(str, about.get("lane_names", ())))
        trace.notes = (*map(str, about.get("notes", ())), *file.notes, *notes)
        trace.without_kernels = tuple(map(int, about.get("without_kernels", ())))
        trace.incomplete = tuple(map(int, about.get("incomplete", ())))
        if file.incomplete:
            trace.incomplete = tuple(range(trace.world_size))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DtlabError(f"{file.label} is not as to_chrome writes it: {error!r}.") from None
    for note in [*file.notes, *notes]:
        warnings.warn(note, stacklevel=4)
    return trace


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
