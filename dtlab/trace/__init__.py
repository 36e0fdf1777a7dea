"""`Trace`: the events of all ranks with their times, measured or simulated.

    launch      -> recorder  -> Records, one per rank -> Trace.from_records
    prediction  -> simulator -> Event, one by one     -> Trace.from_events
    files, profilers, Ray    -> dtlab.profiling       -> Trace.from_chrome, from_profiler, from_ray

A `Trace` stores columns of numbers (`columns.py`); `events` presents them as `Event` objects.
`analysis.py` matches the operations of different ranks.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, overload

import numpy as np

from dtlab.trace.analysis import Meetings, TimeUse, meetings, time_use
from dtlab.trace.chrome import chrome_events
from dtlab.trace.columns import (
    COLLECTIVE,
    RECV,
    SEND,
    Columns,
    Event,
    Ints,
    columns_from_events,
)
from dtlab.trace.lines import LineDifference, differing_lines
from dtlab.trace.records import Records, columns_from_records
from dtlab.trace.spans import SpanSink, set_span_sink, span

__all__ = ["Event", "Records", "SpanSink", "Trace", "set_span_sink", "span"]


StrPath = str | PathLike[str]


def _readers() -> ModuleType:
    """The readers of profilers' traces, which are loaded only when a trace is read."""
    return importlib.import_module("dtlab.profiling.traces")


class Events(Sequence[Event]):
    """The events of a trace, ordered by start; an `Event` is built each time it is accessed."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns.rank)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        rows = range(len(self))[index]  # handles negative indices and raises IndexError
        if isinstance(rows, range):
            return [self._columns.event(row) for row in rows]
        return self._columns.event(rows)

    def __iter__(self) -> Iterator[Event]:
        return (self._columns.event(row) for row in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} events>"


class Trace:
    """Events of all ranks on one clock, in seconds from the first event.

    `Trace(events)` takes `Event` objects in any order; without events it is an empty trace.
    `world_size` defaults to the largest rank mentioned plus one. `wire` gives the bytes that left
    each rank. `emulated` describes emulated links, and is empty if the links are the machine's.
    `lane_names` are the names of the ranks in figures if they are not "rank 0", "rank 1", ....
    `hidden_bytes` is the number of bytes that ranks exchanged outside the counters of
    `bytes_wire`. It is known only for the ranks of a grader, which have a separate network, and
    None otherwise. `wire_pairs[source, target]` is the part of `bytes_wire` that one rank sent to
    another; `wire_pairs` is None if unknown. A rank that only receives still sends a few bytes.
    `notes` say what `from_chrome` could not read or had to leave out. `without_kernels` are the
    ranks of a job on GPUs whose profiler did not record what ran on them; `incomplete` are those
    whose file has no end.
    """

    def __init__(
        self,
        events: Iterable[Event] = (),
        *,
        world_size: int | None = None,
        wire: Sequence[int | None] | None = None,
    ) -> None:
        self._set(columns_from_events(events), world_size, wire, dropped=0)

    @classmethod
    def from_events(cls, events: Iterable[Event], *, world_size: int | None = None) -> Trace:
        """Make a trace of predicted events, in any order; their times are in seconds."""
        return cls(events, world_size=world_size)

    @classmethod
    def from_records(
        cls,
        records: Sequence[Records],
        wire: Sequence[int | None] | None = None,
        emulated: str = "",
    ) -> Trace:
        """Make a trace of the records of ranks on one machine. Failed ranks may be missing.

        `wire[rank]` is the number of bytes that left the rank according to the system's counters,
        or None if it is unknown.
        """
        trace = cls.__new__(cls)
        sizes = [record.world_size for record in records] + [len(wire or ())]
        dropped = sum(record.dropped for record in records)
        trace._set(columns_from_records(records), max(sizes), wire, dropped)
        trace.emulated = emulated
        return trace

    @classmethod
    def from_chrome(
        cls,
        paths: StrPath | Sequence[StrPath] | Mapping[int, StrPath],
        *,
        comm: Iterable[str] = (),
    ) -> Trace:
        """Read the files that torch.profiler's `export_chrome_trace` wrote, one per rank.

        `paths` is one path, a list, or a dictionary from rank to path for files that do not name
        their rank; files may be compressed (.json.gz). Of a folder, all files are read that are
        traces, and of several cycles of the profiler one. A file of `to_chrome` is read back as it
        was. Files of GPU jobs and of CPU jobs (NCCL, RCCL, gloo) are accepted.

        Kernels communicate if the profiler recorded their collective, or by their names: those of
        NCCL, DeepEP, vLLM, NVSHMEM and others (`dtlab.profiling.reading.kernels.LIBRARIES`).
        `comm` has regular expressions for the names of more such kernels, or operators of a CPU.

        An event whose times cannot be read is left out, and an argument that cannot be read is
        ignored; a warning, and `Trace.notes`, say where it is.

        Compute is, on a GPU, each kernel and copy. On a CPU it is each outermost operator and each
        annotation (`record_function`, data loader, optimizer); a wait for communication inside an
        annotation does not count. The profiler does not record waits on a CPU: a thread that is in
        no operator when its communication ends, or for 0.3 ms before, is taken to wait for it.
        Annotations have `extra["annotation"]`. On a GPU, and for the profiler's steps, they do not
        count as compute (`extra["busy"]` is False).

        Communication starts when the rank calls it (on a GPU: when its kernel starts) and ends
        when it is complete. Bytes on the wire are unknown. gloo writes sizes only if the profiler
        has `record_shapes=True`, and never which process group it works for: with several groups
        of several ranks, gloo's collectives have no group and are not matched.

        The ranks' clocks are aligned on the ends of collectives that all ranks leave together; see
        `dtlab.profiling.profiler.clock_offsets`. If a rank is missing, a warning says so, and the
        collectives in which it takes part are not matched.
        Raises: DtlabError if a file is not such a trace, does not say its rank, has the same rank
        as another, several ranks, or comes from other steps.
        """
        trace: Trace = _readers().of_files(paths, comm)
        return trace

    @classmethod
    def from_profiler(cls, profiler: Any, *, comm: Iterable[str] = ()) -> Trace:
        """Make a trace of a torch.profiler that has stopped, as `from_chrome` does from its file.

        On a rank, the trace has the events of this rank only; nothing is sent to other ranks.
        To see all ranks together, return the trace from each rank, and pass the list:

            run = dtlab.launch(step, world_size=4)         # step returns Trace.from_profiler(prof)
            trace = dtlab.Trace.from_profiler(run.values)  # all ranks on one clock

        Without a process group the rank is 0. Of a schedule, the trace has the last cycle. `comm`
        is as in `from_chrome`.
        Raises: DtlabError if the profiler has not run or not stopped, or has recorded nothing.
        """
        trace: Trace = _readers().of_profiler(profiler, comm)
        return trace

    @classmethod
    def from_ray(cls, timeline: Iterable[Mapping[str, Any]], *, since: float = 0.0) -> Trace:
        """Make a trace of the tasks that Ray ran: `Trace.from_ray(ray.timeline())`.

        Rank 0 is the driver, which submits tasks; the others are Ray's worker processes, numbered
        by their first task. A task is a span with its name, and the calls of an actor are spans
        such as "Counter.add". Inside are spans "arguments" and "result", in which Ray fetches the
        task's arguments and stores its result. Ray collects the events about once a second.
        `since` leaves out what began earlier; it is a `time.time()`.
        """
        trace: Trace = _readers().of_ray(timeline, since)
        return trace

    @classmethod
    def from_columns(cls, columns: Columns, *, world_size: int | None = None) -> Trace:
        """Make a trace of many predicted events at once."""
        trace = cls.__new__(cls)
        trace._set(columns, world_size, None, dropped=0)
        return trace

    def _set(
        self,
        columns: Columns,
        world_size: int | None,
        wire: Sequence[int | None] | None,
        dropped: int,
    ) -> None:
        members = (ranks for _, ranks in columns.groups)
        largest = [columns.rank.max(initial=-1)]
        largest += [max(ranks, default=-1) for ranks in (*columns.peer_sets, *members)]
        self.world_size = int(max(*largest, len(wire or ()) - 1)) + 1
        self.world_size = max(self.world_size, world_size or 0)
        self.dropped = dropped
        self.emulated = ""
        self.lane_names: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.without_kernels: tuple[int, ...] = ()
        self.incomplete: tuple[int, ...] = ()
        self.hidden_bytes: int | None = None
        self.wire_pairs: dict[tuple[int, int], int] | None = None
        self.part: Any = None  # a `profiling.kineto.Part` without events, of one rank's profiler
        self._columns = columns
        self._wire = [*(wire or ()), *[None] * self.world_size][: self.world_size]

    @property
    def events(self) -> Sequence[Event]:
        """All events, ordered by start."""
        return Events(self._columns)

    @property
    def columns(self) -> Columns:
        """The events as columns of numbers, for fast arithmetic; see `columns.py`."""
        return self._columns

    @property
    def duration(self) -> float:
        """Seconds from the start of the first event to the end of the last."""
        return float(self._columns.end.max(initial=0.0))

    @overload
    def bytes_sent(self) -> list[int]: ...
    @overload
    def bytes_sent(self, rank: int) -> int: ...
    def bytes_sent(self, rank: int | None = None) -> int | list[int]:
        """Return the payload bytes of a rank's point-to-point sends; without rank, a list.

        Only `send` and `isend` count. A built-in collective, such as an all-reduce, counts 0,
        because a backend does not report its messages. `bytes_wire` includes their traffic.
        """
        if rank is None:
            return [self.bytes_sent(each) for each in range(self.world_size)]
        return int(self._columns.bytes[self._rows(rank, SEND)].sum())

    @overload
    def bytes_wire(self) -> list[int | None]: ...
    @overload
    def bytes_wire(self, rank: int) -> int | None: ...
    def bytes_wire(self, rank: int | None = None) -> int | list[int | None] | None:
        """Return the bytes that left a rank by the operating system's count; without rank, a list.

        The count includes built-in collectives and the backend's headers. It is None if there is
        no count: on other systems than Linux, without TCP (NCCL), or in a prediction.
        """
        if rank is None:
            return list(self._wire)
        return self._wire[self._check(rank)]

    def peers(self, rank: int) -> set[int]:
        """Return the ranks with which a rank exchanged point-to-point messages, either way.

        Built-in collectives do not count, because their messages are not recorded; `ops` counts
        these collectives.
        """
        rows = np.concatenate((self._rows(rank, SEND), self._rows(rank, RECV)))
        sets = self._columns.peer_sets
        return {peer for number in set(self._columns.peers[rows]) for peer in sets[number]}

    def sends(self, rank: int) -> int:
        """Return the number of point-to-point messages that a rank sent."""
        return len(self._rows(rank, SEND))

    def rounds(self, rank: int) -> int:
        """Return a rank's rounds of messages; one send and one receive together are one round.

        This is the larger of the numbers of sends and receives: 2(N-1) for a ring all-reduce.
        """
        return max(len(self._rows(rank, SEND)), len(self._rows(rank, RECV)))

    def ops(self, rank: int | None = None) -> Counter[str]:
        """Count the calls of each communication function, by its name in `torch.distributed`.

        Variants share a name: "all_gather" includes `all_gather_into_tensor`, "send" includes
        `isend`. Without rank: the sum over all ranks.
        """
        columns = self._columns
        rows = np.isin(columns.role, (COLLECTIVE, SEND, RECV))
        if rank is not None:
            rows &= columns.rank == self._check(rank)
        counts = np.bincount(columns.name[rows], minlength=len(columns.names)).tolist()
        return Counter({name: n for name, n in zip(columns.names, counts, strict=True) if n})

    def busy(self, rank: int) -> float:
        """Return the seconds that a rank computed: inside a `span`, not blocked in communication.

        Overlapping spans, nested or in several threads, count once. `from_chrome` says what
        computes in a profiler's trace.
        """
        return self._use(rank).busy

    def exposed_comm(self, rank: int) -> float:
        """Return the seconds that a rank was blocked in communication that was in progress.

        These are times in which the rank does not compute and all participants have arrived: for
        a message its sender and receiver, for a collective all members of the group. An operation
        without a match on the other ranks, for example because a rank failed, counts in full.
        Waits inside C++, as in DDP's backward, are not recorded, except in a profiler's trace.
        """
        return self._use(rank).exposed_comm

    def idle(self, rank: int) -> float:
        """Return the seconds that are neither `busy` nor `exposed_comm`.

        The rank waited for a rank that had not arrived yet, or ran code outside any `span`. For
        each rank `busy`, `exposed_comm` and `idle` add up to `duration`.
        """
        return self._use(rank).idle

    def differing_lines(self) -> list[LineDifference]:
        """Return matched collectives that ranks called in different lines, as a hint.

        Many correct programs have some. After a wrong result they may show that ranks took the
        same steps in another order, which no backend notices if the sizes agree; those come first.
        """
        return differing_lines(self._columns, self._meetings)

    def during(self, name: str) -> Trace:
        """Return a trace of the events that begin inside a rank's spans called `name`.

        These spans are not part of the result. Its times count from its first event. Its bytes on
        the wire are unknown. Raises: ValueError if no rank has such a span.
        """
        spans = [event for event in self.events if event.kind == "compute" and event.name == name]
        if not spans:
            names = sorted({event.name for event in self.events if event.kind == "compute"})
            raise ValueError(f"No rank has a span {name!r}. Spans: {', '.join(names) or 'none'}.")
        inside = (
            event
            for event in self.events
            if event not in spans
            and any(s.rank == event.rank and s.start <= event.start < s.end for s in spans)
        )
        part = Trace(inside, world_size=self.world_size)
        part.emulated, part.lane_names = self.emulated, self.lane_names
        part.notes, part.without_kernels = self.notes, self.without_kernels
        part.incomplete = self.incomplete
        return part

    def to_chrome(self, path: StrPath) -> None:
        """Write the trace as JSON for https://ui.perfetto.dev or chrome://tracing.

        The file has a process per rank, rows for compute and communication, and an arrow per
        message. The key "dtlab" has what `dtlab.profiling.own_files` needs to read the trace back.
        """
        entries = list(chrome_events(self._columns, self._meetings))
        about = {"world_size": self.world_size, "emulated": self.emulated, "wire": self._wire}
        for key in ("lane_names", "notes", "without_kernels", "incomplete"):
            about |= {key: getattr(self, key)} if getattr(self, key) else {}
        content = {"traceEvents": entries, "displayTimeUnit": "ms", "dtlab": about}
        Path(path).write_text(json.dumps(content), encoding="utf-8")

    def __repr__(self) -> str:
        count = len(self._columns.rank)
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"<Trace: {ranks}, {count} events, {self.duration:.4g} s>"

    @cached_property
    def _meetings(self) -> Meetings:
        return meetings(self._columns)

    @cached_property
    def _uses(self) -> dict[int, TimeUse]:
        return {}

    def _use(self, rank: int) -> TimeUse:
        if self._check(rank) not in self._uses:
            ready = self._meetings.ready
            self._uses[rank] = time_use(self._columns, ready, rank, self.duration)
        return self._uses[rank]

    def _rows(self, rank: int, role: int) -> Ints:
        columns = self._columns
        return np.flatnonzero((columns.rank == self._check(rank)) & (columns.role == role))

    def _check(self, rank: int) -> int:
        if not 0 <= rank < self.world_size:
            raise ValueError(
                f"There is no rank {rank}: the trace has ranks 0 to {self.world_size - 1}."
            )
        return rank

    def __getstate__(self) -> dict[str, Any]:
        drop = ("_meetings", "_uses")  # cheap to compute again
        return {key: value for key, value in self.__dict__.items() if key not in drop}
