"""Reader of torch.profiler's traces of all ranks, from files or from profilers, on one clock.

rank0.json ─┐ reading.files         kineto.parse            merge
rank1.json ─┴──────────────► File, File ─────────► Part, Part ─────► events of all ranks
"""

from __future__ import annotations

import socket
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from dtlab.errors import ArgumentError, DtlabError
from dtlab.profiling.kineto import Part, parse
from dtlab.profiling.reading.entries import is_rank
from dtlab.profiling.reading.files import File, read_file
from dtlab.profiling.reading.kernels import CommKernels
from dtlab.trace.columns import Event

__all__ = ["clock_offsets", "merge", "part_of", "parts_of"]

_SAME_CLOCK = 1e-3  # s; clocks of one host that differ by more are taken to be different
_EQUAL = ("all_reduce", "broadcast", "reduce")  # tensors have the same size on all ranks
_SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


def parts_of(files: Sequence[File], comm: CommKernels) -> list[Part]:
    """Turn the files of all ranks into events; a file alone is of rank 0 if it names no rank.

    A file in a folder that cannot be read is left out; of several cycles of a profiler's schedule
    in a folder, the last one that most ranks wrote is taken. Notes say so.
    """
    alone = 0 if len(files) == 1 or _are_cycles(files) else None
    ranks = 1 if alone == 0 else len(files)
    parts, refused = [], []
    for file in files:
        content, notes = _with_rank(file)
        try:
            part = parse(content, file.label, alone, ranks, comm)
        except DtlabError as error:
            if not file.from_folder:
                raise
            refused.append(error)
        else:
            part.notes = [*file.notes, *notes, *part.notes]
            part.incomplete = file.incomplete
            parts.append(part)
    if not parts:
        raise refused[0]
    if all(file.from_folder for file in files):
        parts = _one_cycle(parts)
    parts[0].notes += [f"A file is left out: {error}" for error in refused]
    return parts


def _with_rank(file: File) -> tuple[Mapping[str, Any], list[str]]:
    """Return a file's content with the rank that the user gave, and a note if the file differs."""
    if file.rank is None:
        return file.content, []
    about = file.content.get("distributedInfo")
    about = about if isinstance(about, Mapping) else {}
    written = about.get("rank", file.rank)
    notes = [
        f"{file.label} says that rank {written} wrote it; it is read as rank {file.rank}, as you "
        "say."
    ] * (written != file.rank and is_rank(written))
    return {**file.content, "distributedInfo": {**about, "rank": file.rank}}, notes


def _are_cycles(files: Sequence[File]) -> bool:
    """Return whether files of a folder, which name no rank, have different steps of one job."""
    steps = []
    for file in files:
        about = file.content.get("distributedInfo")
        if not file.from_folder or (isinstance(about, Mapping) and "rank" in about):
            return False
        names = (entry.get("name") for entry in file.content["traceEvents"]
                 if isinstance(entry, Mapping))  # fmt: skip
        steps.append({name for name in names if str(name).startswith("ProfilerStep#")})
    return all(steps) and sum(map(len, steps)) == len(set().union(*steps))


def _one_cycle(parts: list[Part]) -> list[Part]:
    """Return the parts of one cycle of the profilers' schedule, if there are several."""
    cycles: dict[tuple[int, ...], list[Part]] = {}
    for part in parts:
        cycles.setdefault(part.steps, []).append(part)
    if len({part.rank for part in parts}) == len(parts) or len(cycles) < 2 or () in cycles:
        return parts
    ranks = {steps: len({part.rank for part in cycles[steps]}) for steps in cycles}
    chosen = max(cycles, key=lambda steps: (ranks[steps], steps))
    found = ", ".join(_range(steps) for steps in sorted(cycles))
    one = cycles[chosen]
    one[0].notes.append(
        f"The folder has {len(cycles)} cycles of the profiler, with the steps {found}. This is "
        f"the one of {_range(chosen)}; for another one, pass its files."
    )
    return one


def part_of(profiler: Any, comm: CommKernels) -> Part:
    """Return the events that a stopped profiler has recorded on this rank."""
    if not hasattr(profiler, "export_chrome_trace"):
        raise ArgumentError(
            "from_profiler needs a torch.profiler.profile, or the list of traces that it returned "
            f"on the ranks, not {type(profiler).__name__}."
        )
    inner = getattr(profiler, "profiler", profiler)
    if getattr(inner, "kineto_results", None) is None:
        raise DtlabError(
            "The profiler has no result: it has not started, or not stopped. Call from_profiler "
            "after its with block, or in on_trace_ready."
        )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        # Kineto's own export works only once; this one leaves it to the caller.
        profiler.export_chrome_trace(str(path), use_python_export=True)
        content = read_file(path, label="the profiler").content
    return parse({**_this_rank(), **content}, "the profiler", 0, 1, comm)


def _this_rank() -> dict[str, Any]:
    """Return what a profiler's result may lack: the host, and the rank in the default group."""
    about: dict[str, Any] = {"host_name": socket.gethostname()}
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        about["distributedInfo"] = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    return about


def merge(parts: Sequence[Part]) -> tuple[list[Event], int, list[str]]:
    """Put the events of all ranks on one clock; return them, the world size, and notes.

    Raises: DtlabError if two parts are of one rank, or the parts are of different runs.
    """
    by_rank: dict[int, Part] = {}
    for part in parts:
        if part.rank in by_rank:
            raise DtlabError(
                f"{by_rank[part.rank].label} and {part.label} are both of rank {part.rank}. "
                "Pass one file or trace per rank. A profiler whose schedule repeats writes a file "
                "for each cycle: read each cycle by itself."
            )
        by_rank[part.rank] = part
    ordered = [by_rank[rank] for rank in sorted(by_rank)]
    _check_steps(ordered)
    zeros = [part.zero for part in ordered if part.zero is not None]
    known = zeros if len(zeros) == len(ordered) else [0] * len(ordered)
    shifts = [(zero - min(known)) * 1e-9 for zero in known]
    raw = [[_moved(event, by) for event in part.events]
           for part, by in zip(ordered, shifts, strict=True)]  # fmt: skip
    offsets = clock_offsets(raw, [part.host for part in ordered])
    events = [
        _moved(event, -offset)
        for rank_events, offset in zip(raw, offsets, strict=True)
        for event in rank_events
    ]
    difference = _first_difference(raw)
    notes = [note for part in ordered for note in part.notes]
    for note in notes + [difference] * bool(difference):
        warnings.warn(note, stacklevel=5)
    world_size = max(part.world_size for part in ordered)
    missing = [str(rank) for rank in range(world_size) if rank not in by_rank]
    if missing:
        names = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        warnings.warn(
            f"There is no trace of rank {names}, of {world_size} ranks. Collectives with a "
            "missing rank are not matched: their time counts as communication, none as waiting.",
            stacklevel=5,
        )
    return events, world_size, notes + [difference] * bool(difference)


def _check_steps(parts: Sequence[Part]) -> None:
    first = parts[0]
    for part in parts[1:]:
        if first.steps and part.steps and not set(first.steps) & set(part.steps):
            raise DtlabError(
                f"{first.label} has the profiler's steps {_range(first.steps)}, {part.label} has "
                f"{_range(part.steps)}. Pass files of the same steps."
            )


def _first_difference(ranks: Sequence[Sequence[Event]]) -> str:
    """Say where the ranks' collectives differ; "" if they agree as far as all are recorded."""
    calls = [_in_order(events) for events in ranks]
    for group in dict.fromkeys(group for each in calls for group in each):
        rows = [each[group] for each in calls if group in each]
        for number, events in enumerate(zip(*rows, strict=False), 1):
            first = events[0]
            for other in events[1:]:
                same_size = first.bytes == other.bytes or first.name not in _EQUAL
                if first.name != other.name or not same_size:
                    return (
                        f"Collective {number} of the ranks {list(group[0])} is {first.name} of "
                        f"{first.bytes:,} bytes on rank {first.rank}, and {other.name} of "
                        f"{other.bytes:,} bytes on rank {other.rank}. Collectives are matched by "
                        "their number: start the profilers at the same step on all ranks."
                    )
    return ""


def _in_order(events: Iterable[Event]) -> dict[Any, list[Event]]:
    """Return a rank's collectives by group: ranks and name."""
    result: dict[Any, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.start):
        ranks = event.extra.get("group", ())
        if event.kind == "comm" and event.name not in ("send", "recv") and len(ranks) > 1:
            result.setdefault((ranks, event.extra["group_name"]), []).append(event)
    return result


def _range(steps: Sequence[int]) -> str:
    return str(min(steps)) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"


def _moved(event: Event, seconds: float) -> Event:
    if not seconds:
        return event
    extra = event.extra
    if "blocked" in extra:
        moved = [(start + seconds, end + seconds) for start, end in extra["blocked"]]
        extra = {**extra, "blocked": moved}
    return replace(event, start=event.start + seconds, end=event.end + seconds, extra=extra)


def clock_offsets(ranks: Sequence[Sequence[Event]], hosts: Sequence[str]) -> list[float]:
    """Estimate how many seconds each rank's clock is ahead of the first rank's.

    No rank can leave an all-reduce, all-gather, reduce-scatter, all-to-all or barrier before
    every rank has entered it, and all leave it nearly together. The estimate for two ranks is the
    median difference of the ends of these collectives. It starts with the pair of ranks that has
    most of them, and reaches other ranks through ranks that it has reached. A rank without any
    keeps its own clock. Ranks of one host have one clock, which the profiler reads to some
    hundredths of a millisecond, unless a rank would leave a collective more than a millisecond
    before another has entered it.
    """
    meetings = [_meetings(events) for events in ranks]
    offsets: dict[int, float] = {}
    while len(offsets) < len(ranks):
        best = (0, next(place for place in range(len(ranks)) if place not in offsets), -1)
        for here in offsets:
            for other in range(len(ranks)):
                common = len(meetings[here].keys() & meetings[other].keys())
                if other not in offsets and common > best[0]:
                    best = (common, other, here)
        _, other, here = best
        offsets[other] = 0.0
        if here >= 0:
            pairs = [(meetings[other][key], meetings[here][key])
                     for key in meetings[here].keys() & meetings[other].keys()]  # fmt: skip
            same = hosts[here] and hosts[here] == hosts[other]
            early = max(max(a.start, b.start) - min(a.end, b.end) for a, b in pairs)
            if not same or early > _SAME_CLOCK:
                offsets[other] = median(a.end - b.end for a, b in pairs)
            offsets[other] += offsets[here]
    return [offsets[place] for place in range(len(ranks))]


def _meetings(events: Iterable[Event]) -> dict[Any, Event]:
    """Return the collectives that synchronise a rank, by group, name and number in the group."""
    return {
        (group, event.name, number): event
        for group, calls in _in_order(events).items()
        for number, event in enumerate(calls)
        if event.name in _SYMMETRIC
    }
