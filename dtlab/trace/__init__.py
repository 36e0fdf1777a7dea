"""`Trace`: what happened on every rank and when, measured or simulated.

    launch      -> recorder  -> Records, one per rank -> Trace.from_records
    prediction  -> simulator -> Event, one by one     -> Trace.from_events

A `Trace` is columns of numbers inside (`columns.py`); `events` shows them as `Event` objects.
How operations of different ranks belong together is in `analysis.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np

from dtlab.trace.analysis import Meetings, TimeUse, meetings, time_use
from dtlab.trace.chrome import chrome_events
from dtlab.trace.columns import (
    COMPUTE,
    RECV,
    SEND,
    Columns,
    Event,
    Ints,
    columns_from_events,
)
from dtlab.trace.records import Records, columns_from_records
from dtlab.trace.spans import SpanSink, set_span_sink, span

__all__ = ["Event", "Records", "SpanSink", "Trace", "set_span_sink", "span"]


class Events(Sequence[Event]):
    """The events of a trace in order of their start; each is built when somebody looks at it."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns.rank)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        rows = range(len(self))[index]  # takes care of negative indices, raises IndexError
        if isinstance(rows, range):
            return [self._columns.event(row) for row in rows]
        return self._columns.event(rows)

    def __iter__(self) -> Iterator[Event]:
        return (self._columns.event(row) for row in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} events>"


class Trace:
    """Events of all ranks on one clock, in seconds from the first event.

    `Trace(events)` takes `Event` objects in any order; `world_size` defaults to what they mention;
    `wire` gives the bytes that left each rank. Without events it is an empty trace. `emulated`
    says in words whose links it shows, and is empty where they are those of the machine.
    `hidden_bytes` are those that ranks sent to each other past all that `bytes_wire` counts; None
    where that is not known: only a grader's ranks have a network to themselves.
    `wire_pairs[source, target]` is what of `bytes_wire` went from one rank to another; None where
    that is not known. A rank that only receives has sent a few bytes back.
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
        """The trace of predicted events, in any order; their times are in seconds."""
        return cls(events, world_size=world_size)

    @classmethod
    def from_records(
        cls,
        records: Sequence[Records],
        wire: Sequence[int | None] | None = None,
        emulated: str = "",
    ) -> Trace:
        """The trace of what ranks recorded on one machine. Ranks that failed may be missing.

        `wire[rank]` is how many bytes left that rank by the system's counters, None where that is
        not known.
        """
        trace = cls.__new__(cls)
        sizes = [record.world_size for record in records] + [len(wire or ())]
        dropped = sum(record.dropped for record in records)
        trace._set(columns_from_records(records), max(sizes), wire, dropped)
        trace.emulated = emulated
        return trace

    @classmethod
    def from_columns(cls, columns: Columns, *, world_size: int | None = None) -> Trace:
        """The trace of many predicted events at once."""
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
        seen = [columns.rank.max(initial=-1)]
        seen += [max(ranks, default=-1) for ranks in (*columns.peer_sets, *members)]
        self.world_size = int(max(*seen, len(wire or ()) - 1)) + 1
        self.world_size = max(self.world_size, world_size or 0)
        self.dropped = dropped
        self.emulated = ""
        self.hidden_bytes: int | None = None
        self.wire_pairs: dict[tuple[int, int], int] | None = None
        self._columns = columns
        self._wire = [*(wire or ()), *[None] * self.world_size][: self.world_size]

    @property
    def events(self) -> Sequence[Event]:
        """All events, in order of their start."""
        return Events(self._columns)

    @property
    def columns(self) -> Columns:
        """The events as columns of numbers, for arithmetic on many; see `columns.py`."""
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
        """Payload bytes that a rank handed to point-to-point sends; without rank a list of all.

        Only `send` and `isend` count. After built-in collectives alone, such as an all-reduce, it
        is 0: a backend does not say what it sends for them. `bytes_wire` counts their traffic too.
        """
        if rank is None:
            return [self.bytes_sent(each) for each in range(self.world_size)]
        return int(self._columns.bytes[self._rows(rank, SEND)].sum())

    @overload
    def bytes_wire(self) -> list[int | None]: ...
    @overload
    def bytes_wire(self, rank: int) -> int | None: ...
    def bytes_wire(self, rank: int | None = None) -> int | list[int | None] | None:
        """Bytes that left a rank as the operating system counted them; without rank a list.

        Built-in collectives and a backend's own headers are in it. None where it cannot be had:
        not on Linux, not over TCP (NCCL), or in a prediction.
        """
        if rank is None:
            return list(self._wire)
        return self._wire[self._check(rank)]

    def peers(self, rank: int) -> set[int]:
        """The ranks with which a rank exchanged point-to-point messages, either way.

        Built-in collectives do not count, since they do not tell who talks to whom; whether there
        were any is in `ops`.
        """
        rows = np.concatenate((self._rows(rank, SEND), self._rows(rank, RECV)))
        sets = self._columns.peer_sets
        return {peer for number in set(self._columns.peers[rows]) for peer in sets[number]}

    def sends(self, rank: int) -> int:
        """How many point-to-point messages a rank sent."""
        return len(self._rows(rank, SEND))

    def rounds(self, rank: int) -> int:
        """Rounds of point-to-point messages: one out and one in at the same time make one round.

        That is the larger of the numbers of sends and of receives: 2(N-1) for a ring all-reduce.
        """
        return max(len(self._rows(rank, SEND)), len(self._rows(rank, RECV)))

    def ops(self, rank: int | None = None) -> Counter[str]:
        """How often each communication was called, by its name in `torch.distributed`.

        Variants count under one name: "all_gather" is also `all_gather_into_tensor`, "send" is
        also `isend`. Without rank: the sum over all ranks.
        """
        columns = self._columns
        rows = columns.role != COMPUTE
        if rank is not None:
            rows &= columns.rank == self._check(rank)
        counts = np.bincount(columns.name[rows], minlength=len(columns.names)).tolist()
        return Counter({name: n for name, n in zip(columns.names, counts, strict=True) if n})

    def busy(self, rank: int) -> float:
        """Seconds that a rank computed: inside a `span`, and not blocked in communication there.

        Spans that overlap, nested or in several threads, count once.
        """
        return self._use(rank).busy

    def exposed_comm(self, rank: int) -> float:
        """Seconds that a rank was blocked in communication that was really under way.

        That is while nothing computes in it, and after every rank that takes part had arrived:
        for a message its sender and receiver, for a collective all members of the group. What
        cannot be matched with the other ranks (one failed) counts in full. Waits that happen
        inside C++, as in DDP's backward, are not seen.
        """
        return self._use(rank).exposed_comm

    def idle(self, rank: int) -> float:
        """Seconds that are neither `busy` nor `exposed_comm`.

        The rank waited for another one that had not arrived yet, or ran what no `span` marks.
        The three add up to `duration`.
        """
        return self._use(rank).idle

    def to_chrome(self, path: str | PathLike[str]) -> None:
        """Write the trace as JSON for https://ui.perfetto.dev or chrome://tracing.

        A process per rank, rows for compute and communication, an arrow per message.
        """
        entries = list(chrome_events(self._columns, self._meetings))
        Path(path).write_text(
            json.dumps({"traceEvents": entries, "displayTimeUnit": "ms"}), encoding="utf-8"
        )

    def __repr__(self) -> str:
        count = len(self._columns.rank)
        return f"<Trace: {self.world_size} ranks, {count} events, {self.duration:.4g} s>"

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
        drop = ("_meetings", "_uses")  # cheap to find again
        return {key: value for key, value in self.__dict__.items() if key not in drop}
