"""`Event`, and the columns in which a `Trace` stores its events."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = [
    "COLLECTIVE",
    "COMPUTE",
    "MARK",
    "NO_THREAD",
    "RECV",
    "SEND",
    "Columns",
    "Event",
    "Group",
    "Table",
    "columns_from_events",
    "role_of",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Group = tuple[str, tuple[int, ...]]  # name and global ranks of a process group
Key = TypeVar("Key", bound=Hashable)

COMPUTE, COLLECTIVE, SEND, RECV, MARK = range(5)  # the values of the column `role`
NO_THREAD = -1  # the thread that was blocked is unknown


@dataclass(frozen=True)
class Event:
    """One operation or span of a rank, measured or predicted.

    `start` and `end` are seconds from the first event of the trace. For communication, `name` is
    the public function of `torch.distributed` without variants ("send", "recv", "all_reduce",
    "all_gather", ...), `peers` are the global ranks at the other end (for a collective, all other
    members of the group), and `bytes` is the size of the message; for a collective it is the size
    of the whole tensor, all shards together.

    `extra` of a communication has "group" (its global ranks), "group_name", "tag", "dtype",
    "numel", "file" and "line" (your line that called the function, if known), "thread" (if not the
    main thread) and "blocked": the (start, end) pairs, in seconds, during which a thread waited
    for the operation. Without "blocked", as in a prediction, the rank waits from start to end
    whenever it does not compute. `extra` of compute has the arguments of `span`. A compute event
    with "busy" False is a mark: a period that does not count as compute, such as a profiler's
    step, or a CPU's annotation in the trace of a job on GPUs.
    """

    rank: int
    kind: Literal["compute", "comm"]
    name: str
    peers: tuple[int, ...] = ()
    bytes: int = 0
    start: float = 0.0
    end: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)


class Table(Generic[Key]):
    """Numbers distinct values in order of appearance."""

    def __init__(self, *values: Key) -> None:
        self.numbers: dict[Key, int] = {value: number for number, value in enumerate(values)}

    def __call__(self, value: Key) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def values(self) -> list[Key]:
        """Return the values in the order of their numbers."""
        return list(self.numbers)


@dataclass
class Columns:
    """The events of a trace as columns: up to `extras`, entry i is for event i.

    Events are sorted by `start`; times are in seconds. `name`, `peers` and `group` are indices
    into `names`, `peer_sets` and `groups`. `thread` distinguishes threads of one rank. The
    `blocked_` columns list the times during which a thread was blocked, in the order of
    `blocked_row`, the index of the event that it waited for.
    """

    rank: Ints
    role: Ints
    name: Ints
    peers: Ints
    group: Ints
    tag: Ints
    bytes: Ints
    thread: Ints
    start: Floats
    end: Floats
    extras: Sequence[Mapping[str, Any]]
    blocked_row: Ints
    blocked_start: Floats
    blocked_end: Floats
    blocked_thread: Ints
    names: list[str]
    peer_sets: list[tuple[int, ...]]
    groups: list[Group]

    @classmethod
    def assemble(
        cls,
        ints: Ints,
        times: Floats,
        extras: Sequence[Mapping[str, Any]],
        blocked: tuple[Ints, Floats, Floats, Ints],
        tables: tuple[Table[str], Table[tuple[int, ...]], Table[Group]],
    ) -> Columns:
        """Build columns from an array of `rank` to `thread` and one of `start` and `end`."""
        rank, role, name, peers, group, tag, size, thread = np.ascontiguousarray(ints.T)
        start, end = np.ascontiguousarray(times.T)
        names, peer_sets, groups = tables
        return cls(
            rank, role, name, peers, group, tag, size, thread, start, end, extras, *blocked,
            names.values(), peer_sets.values(), groups.values(),
        )  # fmt: skip

    def event(self, row: int) -> Event:
        """Build the event of one row."""
        return Event(
            rank=int(self.rank[row]),
            kind="compute" if self.role[row] in (COMPUTE, MARK) else "comm",
            name=self.names[self.name[row]],
            peers=self.peer_sets[self.peers[row]],
            bytes=int(self.bytes[row]),
            start=float(self.start[row]),
            end=float(self.end[row]),
            extra=self.extras[row],
        )


def role_of(name: str) -> int:
    """Return the role of a communication with this name."""
    return {"send": SEND, "recv": RECV}.get(name, COLLECTIVE)


def columns_from_events(events: Iterable[Event]) -> Columns:
    """Build columns of events in any order; the earliest start becomes 0."""
    ordered = sorted(events, key=lambda event: event.start)
    names: Table[str] = Table()
    peer_sets: Table[tuple[int, ...]] = Table()
    groups: Table[Group] = Table()
    zero = ordered[0].start if ordered else 0.0
    rows: list[tuple[int, ...]] = []
    blocked: list[tuple[int, float, float, int]] = []
    for row, event in enumerate(ordered):
        extra = event.extra
        thread = int(extra.get("thread", 0))
        role = role_of(event.name)
        if event.kind == "compute":
            role = COMPUTE if extra.get("busy", True) else MARK
        rows.append((
            event.rank, role, names(event.name), peer_sets(tuple(event.peers)),
            groups(_group_of(event)), int(extra.get("tag", 0)), event.bytes, thread,
        ))  # fmt: skip
        if event.kind == "comm" and "blocked" in extra:
            blocked += [(row, start - zero, end - zero, thread) for start, end in extra["blocked"]]
        elif event.kind == "comm":
            blocked.append((row, event.start - zero, event.end - zero, NO_THREAD))
    waits = np.array(blocked, dtype=np.float64).reshape(-1, 4)
    times = [(event.start - zero, event.end - zero) for event in ordered]
    return Columns.assemble(
        np.array(rows, dtype=np.int64).reshape(-1, 8),
        np.array(times, dtype=np.float64).reshape(-1, 2),
        [_shifted(event.extra, zero) for event in ordered],
        (waits[:, 0].astype(np.int64), waits[:, 1], waits[:, 2], waits[:, 3].astype(np.int64)),
        (names, peer_sets, groups),
    )


def _group_of(event: Event) -> Group:
    """Return name and members of an event's group; a message between two ranks may have none."""
    ranks = event.extra.get("group")
    if ranks is None:
        together = {event.rank, *event.peers} if role_of(event.name) == COLLECTIVE else set()
        ranks = sorted(together)
    return str(event.extra.get("group_name", "")), tuple(ranks)


def _shifted(extra: Mapping[str, Any], zero: float) -> Mapping[str, Any]:
    if not zero or "blocked" not in extra:
        return extra
    return {**extra, "blocked": [(start - zero, end - zero) for start, end in extra["blocked"]]}
