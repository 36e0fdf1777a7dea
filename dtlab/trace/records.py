"""Records of one rank's recorder, and their conversion to the columns of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dtlab.trace.columns import (
    COLLECTIVE,
    COMPUTE,
    Columns,
    Floats,
    Group,
    Ints,
    Table,
    role_of,
)

__all__ = ["BLOCKED_FIELDS", "COMM_FIELDS", "SPAN_FIELDS", "Records", "columns_from_records"]

# One row per operation. name, group, dtype and file are indices into the tables of `Records`;
# peer is a global rank or -1; times are nanoseconds of CLOCK_MONOTONIC, which all processes of a
# machine share; thread 0 is the main thread; line 0 means unknown.
COMM_FIELDS = (
    "name", "group", "peer", "tag", "bytes", "dtype", "start", "end", "thread", "file", "line",
)  # fmt: skip
BLOCKED_FIELDS = ("row", "start", "end", "thread")  # a thread waited for the operation in `row`
SPAN_FIELDS = ("name", "start", "end", "thread")


def _rows(width: int) -> Ints:
    return np.empty((0, width), dtype=np.int64)


@dataclass
class Records:
    """The raw columns of one rank.

    `groups` are pairs of a process group's name and its global ranks; `dtypes` are pairs of a name
    and the bytes of one element; `span_extras` has one dictionary for each row of `spans`;
    `dropped` counts operations and spans beyond the recorder's limit, which were not recorded.
    """

    rank: int
    world_size: int
    comm: Ints = field(default_factory=lambda: _rows(len(COMM_FIELDS)))
    blocked: Ints = field(default_factory=lambda: _rows(len(BLOCKED_FIELDS)))
    spans: Ints = field(default_factory=lambda: _rows(len(SPAN_FIELDS)))
    span_extras: Sequence[dict[str, Any]] = ()
    names: Sequence[str] = ()
    groups: Sequence[Group] = ()
    dtypes: Sequence[tuple[str, int]] = ()
    files: Sequence[str] = ()
    dropped: int = 0

    @classmethod
    def of(cls, fields: Sequence[Any], rank: int, world_size: int) -> Records:
        """Make records from the fields in order, as a rank sent them, and check them.

        Raises: ValueError or TypeError if the fields belong to another rank, have a wrong format,
        or contain an index that is out of range.
        """
        record = cls(*fields)
        if (record.rank, record.world_size) != (rank, world_size):
            raise ValueError(f"rank {rank} sent records of rank {record.rank}")
        comm = dict(zip(COMM_FIELDS, _table(record.comm, COMM_FIELDS).T, strict=True))
        blocked, spans = _table(record.blocked, BLOCKED_FIELDS), _table(record.spans, SPAN_FIELDS)
        for column, first, end in (
            (comm["name"], 0, len(record.names)),
            (comm["group"], 0, len(record.groups)),
            (comm["peer"], -1, world_size),
            (comm["dtype"], -1, len(record.dtypes)),
            (comm["file"], -1, len(record.files)),
            (blocked[:, 0], 0, len(record.comm)),
            (spans[:, 0], 0, len(record.names)),
        ):
            if len(column) and not (first <= column.min() and column.max() < end):
                raise ValueError("records contain an index that is out of range")
        if len(record.span_extras) != len(spans) or any(size < 1 for _, size in record.dtypes):
            raise ValueError("records have columns of different lengths, or an empty dtype")
        return record


def _table(rows: Ints, fields: tuple[str, ...]) -> Ints:
    if not isinstance(rows, np.ndarray) or rows.dtype != np.int64 or rows.ndim != 2:
        raise TypeError("records must be 2-dimensional arrays of int64")
    if rows.shape[1] != len(fields):
        raise ValueError(f"records have {rows.shape[1]} columns instead of {len(fields)}")
    return rows


def columns_from_records(records: Sequence[Records]) -> Columns:
    """Build columns from the ranks' records; times become seconds from the first event."""
    names: Table[str] = Table()
    peer_sets: Table[tuple[int, ...]] = Table(())
    groups: Table[Group] = Table(("", ()))
    parts = [_int_columns(record, names, peer_sets, groups) for record in records]
    table = np.concatenate([part for part, _ in parts] or [np.empty((0, 10), dtype=np.int64)])
    first_row = np.cumsum([0, *(len(part) for part, _ in parts)])
    waits = [
        np.column_stack((wait[:, 0] + offset, wait[:, 1:]))
        for (_, wait), offset in zip(parts, first_row, strict=False)
    ]
    blocked = np.concatenate([*waits, np.empty((0, 4), dtype=np.int64)])
    order = np.argsort(table[:, 8], kind="stable")
    table = table[order]
    blocked[:, 0] = np.argsort(order)[blocked[:, 0]]
    blocked = blocked[np.argsort(blocked[:, 0], kind="stable")]
    zero = table[0, 8] if len(table) else 0
    waited = (blocked[:, 0], (blocked[:, 1] - zero) * 1e-9, (blocked[:, 2] - zero) * 1e-9)
    return Columns.assemble(
        table[:, :8],
        (table[:, 8:] - zero) * 1e-9,
        RecordExtras(records, first_row, order, *waited),
        (*waited, blocked[:, 3]),
        (names, peer_sets, groups),
    )


def _int_columns(
    record: Records,
    names: Table[str],
    peer_sets: Table[tuple[int, ...]],
    groups: Table[Group],
) -> tuple[Ints, Ints]:
    """Return one rank's events as rows of `rank` to `thread`, start and end; and its waits."""
    comm = dict(zip(COMM_FIELDS, record.comm.T, strict=True))
    count = len(record.comm)
    roles = np.array([role_of(name) for name in record.names] or [0])[comm["name"]]
    name_numbers = np.array([names(name) for name in record.names] or [0])
    group_numbers = np.array([groups(group) for group in record.groups] or [0])
    other_members = [
        peer_sets(tuple(rank for rank in ranks if rank != record.rank))
        for _, ranks in record.groups
    ]
    single_peers = np.array([peer_sets(()), *(peer_sets((r,)) for r in range(record.world_size))])
    peers = np.where(
        roles == COLLECTIVE,
        np.array(other_members or [0])[comm["group"]],
        single_peers[comm["peer"] + 1],
    )
    comm_rows = np.column_stack((
        np.full(count, record.rank), roles, name_numbers[comm["name"]], peers,
        group_numbers[comm["group"]], comm["tag"], comm["bytes"], comm["thread"],
        comm["start"], comm["end"],
    ))  # fmt: skip
    spans = np.zeros((len(record.spans), 10), dtype=np.int64)
    spans[:, 0] = record.rank
    spans[:, 1] = COMPUTE
    spans[:, 2] = name_numbers[record.spans[:, 0]]
    spans[:, 7] = record.spans[:, 3]
    spans[:, 8:] = record.spans[:, 1:3]
    return np.concatenate((comm_rows, spans)), record.blocked


class RecordExtras(Sequence[Mapping[str, Any]]):
    """`Event.extra` of recorded events, built when it is accessed."""

    def __init__(
        self,
        records: Sequence[Records],
        first_row: Ints,
        order: Ints,
        blocked_row: Ints,
        blocked_start: Floats,
        blocked_end: Floats,
    ) -> None:
        self._records = list(records)
        self._first_row = first_row
        self._order = order
        self._blocked = (blocked_row, blocked_start, blocked_end)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        unsorted = int(self._order[index])
        number = int(np.searchsorted(self._first_row, unsorted, side="right")) - 1
        record, row = self._records[number], unsorted - int(self._first_row[number])
        if row < len(record.comm):
            return _comm_extra(record, row) | {"blocked": self._blocked_times(index)}
        row -= len(record.comm)
        thread = int(record.spans[row, 3])
        return {**record.span_extras[row], **({"thread": thread} if thread else {})}

    def _blocked_times(self, index: int) -> list[tuple[float, float]]:
        rows, starts, ends = self._blocked
        low, high = np.searchsorted(rows, [index, index + 1])
        return list(zip(starts[low:high].tolist(), ends[low:high].tolist(), strict=True))


def _comm_extra(record: Records, row: int) -> dict[str, Any]:
    fields = dict(zip(COMM_FIELDS, record.comm[row].tolist(), strict=True))
    group_name, ranks = record.groups[fields["group"]]
    extra: dict[str, Any] = {"group": ranks, "group_name": group_name}
    if role_of(record.names[fields["name"]]) != COLLECTIVE:
        extra["tag"] = fields["tag"]
    if fields["dtype"] >= 0:
        dtype, size = record.dtypes[fields["dtype"]]
        extra |= {"dtype": dtype, "numel": fields["bytes"] // size}
    if fields["line"]:
        extra |= {"file": record.files[fields["file"]], "line": fields["line"]}
    if fields["thread"]:
        extra["thread"] = fields["thread"]
    return extra
