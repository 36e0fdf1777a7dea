"""Analysis of a trace: matching messages, busy and idle time, exposed communication.

A receive whose sender is late (rank 0 is blocked from B to D, rank 1 sends from C to D):

             A            B           C            D            E
    rank 0   |=== span ===|--- blocked in recv ----|=== span ===|
    rank 1   |========= span =========|--- send ---|=== span ===|

    rank 0        busy       idle: no    exposed: in    busy
                            sender yet   progress
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dtlab.trace.columns import COLLECTIVE, COMPUTE, NO_THREAD, RECV, SEND, Columns, Floats, Ints

__all__ = ["Meetings", "TimeUse", "meetings", "time_use"]


class Meetings(NamedTuple):
    """How operations of different ranks match.

    `partner[row]` is the row of the other end of a message, or -1. `ready[row]` is the time in
    seconds from which the operation no longer waited for another rank to arrive. Operations that
    match have the same `number[row]`; without a match it is -1.
    """

    partner: Ints
    ready: Floats
    number: Ints


class TimeUse(NamedTuple):
    """Times of one rank in seconds; they add up to the duration of the trace."""

    busy: float
    exposed_comm: float
    idle: float


def meetings(columns: Columns) -> Meetings:
    """Match the k-th send with the k-th receive, and the k-th collectives of a group's members.

    An operation without a match, because a rank failed or operations differ, counts as ready from
    its start.
    """
    partner = np.full(len(columns.rank), -1, dtype=np.int64)
    ready = columns.start.copy()
    _match_messages(columns, partner, ready)
    number = np.where(partner < 0, -1, np.minimum(partner, np.arange(len(partner))))
    _match_collectives(columns, ready, number)
    return Meetings(partner, ready, number)


def _match_messages(columns: Columns, partner: Ints, ready: Floats) -> None:
    rows = np.flatnonzero((columns.role == SEND) | (columns.role == RECV))
    ends = np.array([ranks[0] if len(ranks) == 1 else -1 for ranks in columns.peer_sets] or [0])
    rank, peer = columns.rank[rows], ends[columns.peers[rows]]
    rows, rank, peer = rows[peer >= 0], rank[peer >= 0], peer[peer >= 0]
    sends = columns.role[rows] == SEND
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    channel = _numbered(columns.group[rows], source, target, columns.tag[rows])
    message = _numbered(channel, _occurrence(_numbered(channel, sends)))
    _, i, j = np.intersect1d(message[sends], message[~sends], return_indices=True)
    here, there = rows[sends][i], rows[~sends][j]
    partner[here], partner[there] = there, here
    together = np.maximum(columns.start[here], columns.start[there])
    for side in (here, there):
        # An operation that ended before the other began (a buffered small message) did not wait.
        ready[side] = np.where(together <= columns.end[side], together, columns.start[side])


def _match_collectives(columns: Columns, ready: Floats, number: Ints) -> None:
    rows = np.flatnonzero(columns.role == COLLECTIVE)
    if not len(rows):
        return
    group = columns.group[rows]
    meeting = _numbered(group, _occurrence(_numbered(group, columns.rank[rows])))
    last = np.full(meeting.max() + 1, -np.inf)
    np.maximum.at(last, meeting, columns.start[rows])
    sizes = np.array([len(ranks) for _, ranks in columns.groups])
    complete = np.bincount(meeting)[meeting] == sizes[group]
    first_name = np.zeros(len(last), dtype=np.int64)
    first_name[meeting] = columns.name[rows]
    mixed = np.zeros(len(last), dtype=bool)
    mixed[meeting[columns.name[rows] != first_name[meeting]]] = True
    matched = complete & ~mixed[meeting]
    number[rows[matched]] = len(columns.rank) + meeting[matched]
    waited = matched & (last[meeting] <= columns.end[rows])
    ready[rows[waited]] = last[meeting[waited]]


def _numbered(*keys: Ints) -> Ints:
    """Give equal combinations of keys equal numbers, from 0 on."""
    _, numbers = np.unique(np.stack(keys), axis=1, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64)


def _occurrence(numbers: Ints) -> Ints:
    """Return for each entry how many equal entries precede it."""
    order = np.argsort(numbers, kind="stable")
    runs = numbers[order]
    position = np.arange(len(runs))
    fresh = np.ones(len(runs), dtype=bool)
    fresh[1:] = runs[1:] != runs[:-1]
    count = np.empty_like(numbers)
    count[order] = position - np.maximum.accumulate(np.where(fresh, position, 0))
    return count


def time_use(columns: Columns, ready: Floats, rank: int, duration: float) -> TimeUse:
    """Divide a rank's time as defined by `Trace.busy`, `Trace.exposed_comm` and `Trace.idle`."""
    spans = np.flatnonzero((columns.rank == rank) & (columns.role == COMPUTE))
    waits = np.flatnonzero(columns.rank[columns.blocked_row] == rank)
    computing = np.empty((0, 2))
    for thread in np.unique(columns.thread[spans]):
        own_spans = spans[columns.thread[spans] == thread]
        inside = waits[columns.blocked_thread[waits] == thread]
        marked = np.column_stack((columns.start[own_spans], columns.end[own_spans]))
        waiting = np.column_stack((columns.blocked_start[inside], columns.blocked_end[inside]))
        if thread != NO_THREAD:
            marked = _minus(marked, waiting)
        computing = np.concatenate((computing, marked))
    begin = np.maximum(columns.blocked_start[waits], ready[columns.blocked_row[waits]])
    in_progress = np.column_stack((begin, columns.blocked_end[waits]))
    busy = _seconds(_minus(computing, np.empty((0, 2))))
    exposed = _seconds(_minus(in_progress[begin < in_progress[:, 1]], computing))
    return TimeUse(busy, exposed, max(0.0, duration - busy - exposed))


def _minus(covered: Floats, holes: Floats) -> Floats:
    """Return disjoint intervals in `covered` but not in `holes`; arrays of shape (n, 2)."""
    edges = np.concatenate((covered, holes)).T.reshape(-1)
    step = np.repeat([1, -1], len(edges) // 2)
    is_hole = np.tile(np.repeat([False, True], [len(covered), len(holes)]), 2)
    order = np.argsort(edges, kind="stable")
    inside = np.cumsum(np.where(is_hole, 0, step)[order]) > 0
    out = np.cumsum(np.where(is_hole, step, 0)[order]) <= 0
    starts = np.flatnonzero((inside & out)[:-1])
    return np.column_stack((edges[order][starts], edges[order][starts + 1]))


def _seconds(intervals: Floats) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())
