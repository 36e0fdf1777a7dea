"""The time of each rank by what it did, and a replay of the trace without a part of that time.

    measured                     rank 0   compute │ waits for rank 1 │ in progress │ compute
                                 rank 1   input │ compute            │ in progress │ compute

    replayed without input       rank 0   compute │ in progress │ compute
                                 rank 1   compute │ in progress │ compute

A replay keeps the order of everything that a rank did. An operation is in progress once its last
rank has arrived, and then takes as long as it was measured to take. So a replay shows how much
shorter a step becomes, also where one rank's delay reaches the other ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dtlab.trace.analysis import Meetings
from dtlab.trace.columns import COMPUTE, MARK, NO_THREAD, Columns, Floats, Ints

__all__ = [
    "BORDER", "COMPUTING", "EXPOSED", "INPUT", "LAUNCH", "OTHER", "WAITING", "Use", "is_input",
    "replay", "segments", "uses",
]  # fmt: skip

Bools = npt.NDArray[np.bool_]

# What a rank does at a time. The first four are work, which a replay can scale.
COMPUTING, INPUT, LAUNCH, OTHER, WAITING, EXPOSED = range(6)
WORK: Final = 4
BORDER: Final = -1
_OVERHEAD: Final = 0.1  # share of a message's time: a shorter wait is the call's own time
_ROUNDING: Final = 1e-9  # seconds; a profiler counts nanoseconds
_INPUT_NAMES: Final = frozenset(("input", "data", "load", "dataloader"))
_LOADER: Final = "enumerate(DataLoader)"  # torch.profiler's name for the next batch
_STEP: Final = "ProfilerStep"


def is_input(name: str) -> bool:
    """Return whether a span of this name is the wait for the next batch of data."""
    return name.lower() in _INPUT_NAMES or name.startswith(_LOADER)


@dataclass(frozen=True)
class Use:
    """What one rank did from its first step to its last.

    `seconds[step, kind]` are the seconds of each kind; they add up to the length of the step.
    `items` are (row, transfer) in order of time. Without a transfer, the rank issues the operation
    `row`; otherwise it needs its result, which comes `transfer` seconds after the last rank's
    arrival. The row `BORDER` stands for the end of a step. `work[i, kind]` are the seconds of work
    before item i. `waits` are a row, the step, the seconds before the last rank arrived, and the
    seconds after that. `gaps` is the number of times per step that a GPU has nothing to do.
    """

    seconds: Floats
    items: list[tuple[int, float | None]]
    work: Floats
    waits: list[tuple[int, int, float, float]]
    begin: float
    gaps: float


def segments(use: Use) -> tuple[Ints, Ints]:
    """Return the step and the segment of each item.

    A segment is the work between two operations that the rank issues, or the border of a step.
    """
    issues = np.array([transfer is None and row != BORDER for row, transfer in use.items])
    ends = np.array([row == BORDER for row, _ in use.items])
    step = np.cumsum(ends) - ends
    issued = np.cumsum(issues) - issues
    at_start = np.concatenate(([0], (issued + issues)[ends]))
    return step, issued - at_start[step]


def uses(
    columns: Columns, matches: Meetings, ranks: Sequence[int], steps: Sequence[Floats]
) -> list[Use]:
    """Return what each of `ranks` did; `steps` has the times of the borders of its steps."""
    flags = _Flags(columns)
    return [
        _use(columns, matches, flags, int(rank), borders)
        for rank, borders in zip(ranks, steps, strict=True)
    ]


class _Flags:
    """Kinds of the events of a trace, as columns.

    A note is a span around other events, as the profiler's annotations are: it does not show that
    the rank is busy all that time.
    """

    def __init__(self, columns: Columns) -> None:
        is_span = np.isin(columns.role, (COMPUTE, MARK))
        inputs = np.array([is_input(name) for name in columns.names] or [False])
        steps = np.array([name.startswith(_STEP) for name in columns.names] or [False])
        self.is_span = is_span
        self.is_step = steps[columns.name]
        self.is_input = inputs[columns.name] & is_span
        self.is_note = np.zeros(len(columns.rank), dtype=bool)
        self.on_gpu = np.zeros(len(columns.rank), dtype=bool)
        for row in np.flatnonzero(is_span).tolist():
            extra = columns.extras[row]
            self.is_note[row] = bool(extra.get("annotation"))
            self.on_gpu[row] = "stream" in extra


@dataclass(frozen=True)
class _Waits:
    """Times in which a thread waits for the operation in `row`; the arrays have equal lengths."""

    row: Ints
    thread: Ints
    start: Floats
    end: Floats


def _use(columns: Columns, matches: Meetings, flags: _Flags, rank: int, borders: Floats) -> Use:
    begin, end = float(borders[0]), float(borders[-1])
    near = (columns.rank == rank) & (columns.end >= begin) & (columns.start <= end)
    comm = np.flatnonzero(near & ~flags.is_span)
    spans = np.flatnonzero(near & flags.is_span & ~flags.is_step)
    waits = _waits(columns, comm, spans[~flags.is_note[spans] & ~flags.on_gpu[spans]])
    times = [columns.start[comm], columns.end[comm], matches.ready[comm], waits.start, waits.end]
    times += [columns.start[spans], columns.end[spans], borders]
    grid = np.unique(np.clip(np.concatenate(times), begin, end))
    kind, row = _kinds(columns, flags, grid, comm, spans, waits)
    kind[(kind == WAITING) & (grid[:-1] >= matches.ready[row])] = EXPOSED
    length = np.diff(grid)
    gap = (kind == LAUNCH) & (length > _ROUNDING)
    totals = np.zeros((len(grid), 6))
    totals[np.arange(1, len(grid)), kind] = length
    totals = totals.cumsum(axis=0)
    items = _items(columns, matches, comm, _transfers(columns, matches, row, kind, grid), borders)
    at = np.searchsorted(grid, [begin, *(time for time, _, _, _ in items)])
    step = np.searchsorted(borders, grid[:-1], side="right") - 1
    return Use(
        seconds=np.diff(totals[np.searchsorted(grid, borders)], axis=0),
        items=[(which, transfer) for _, _, which, transfer in items],
        work=np.diff(totals[at, :WORK], axis=0),
        waits=_by_row(row, step, kind, length),
        begin=begin,
        gaps=float(np.diff(gap.astype(int), prepend=0).clip(0).sum()) / (len(borders) - 1),
    )


def _waits(columns: Columns, comm: Ints, spans: Ints) -> _Waits:
    """The waits that are known: those in Python, and those in C++ that a span contains."""
    mine = np.isin(columns.blocked_row, comm) & (columns.blocked_thread != NO_THREAD)
    table = np.column_stack((
        columns.blocked_row[mine], columns.blocked_thread[mine],
        columns.blocked_start[mine], columns.blocked_end[mine],
    ))  # fmt: skip
    silent = comm[~np.isin(comm, columns.blocked_row)]
    table = np.concatenate((table, _inside(columns, silent, spans)))
    table = table[np.argsort(table[:, 2], kind="stable")]
    row, thread = table[:, :2].astype(np.int64).T
    return _Waits(row, thread, table[:, 2], table[:, 3])


def _inside(columns: Columns, silent: Ints, spans: Ints) -> Floats:
    """Row, thread, start and end of waits in C++, as in DDP's backward, which are not recorded.

    No thread waited in Python for the operations `silent`. If some began and ended inside a span,
    the rank had nothing left to compute in it once the last of them had begun.
    """
    waits: list[tuple[float, float, float, float]] = []
    begins = np.sort(columns.start[silent])
    first, last = np.searchsorted(begins, [columns.start[spans], columns.end[spans]])
    spans = spans[first < last]
    lengths = columns.end[spans] - columns.start[spans]
    for span in spans[np.argsort(lengths, kind="stable")].tolist():  # innermost first
        if not len(silent):
            break
        begins, ends = columns.start[silent], columns.end[silent]
        within = (begins >= columns.start[span]) & (ends <= columns.end[span])
        at = float(begins[within].max(initial=-np.inf))
        for row in silent[within][np.argsort(ends[within], kind="stable")].tolist():
            if columns.end[row] > at:
                waits.append((row, columns.thread[span], at, columns.end[row]))
                at = float(columns.end[row])
        silent = silent[~within]
    return np.array(waits, dtype=np.float64).reshape(-1, 4)


def _kinds(
    columns: Columns, flags: _Flags, grid: Floats, comm: Ints, spans: Ints, waits: _Waits
) -> tuple[Ints, Ints]:
    """What the rank does in each cell of the grid, and the operation that it waits for, or -1."""

    def covered(which: Bools) -> Bools:
        return _covered(grid, columns.start[spans[which]], columns.end[spans[which]])

    def stuck(thread: int) -> Bools:
        mine = waits.thread == thread
        return _covered(grid, waits.start[mine], waits.end[mine])

    note, on_gpu, feeds = flags.is_note[spans], flags.on_gpu[spans], flags.is_input[spans]
    thread = columns.thread[spans]
    main = int(thread[~on_gpu].min(initial=np.iinfo(np.int64).max))
    computing = np.zeros(len(grid) - 1, dtype=bool)
    for each in np.unique(thread[~on_gpu]).tolist():
        computing |= covered(~note & ~on_gpu & ~feeds & (thread == each)) & ~stuck(each)
    fed = covered(feeds & (thread == main)) & ~stuck(main)
    fed_beside, noted = covered(feeds & (thread != main)), covered(note & ~feeds)
    has_gpu = bool(on_gpu.any())
    busy = covered(on_gpu) if has_gpu else computing | fed
    row = np.where(busy, -1, _known(grid, waits))
    unknown = columns.blocked_row[columns.blocked_thread == NO_THREAD]
    row = np.where(row < 0, _awaited(columns, grid, comm[np.isin(comm, unknown)], ~busy), row)
    choices = [(fed, INPUT), (computing, COMPUTING), (row >= 0, WAITING), (fed_beside, INPUT),
               (noted, COMPUTING)]  # fmt: skip
    if has_gpu:
        choices = [(busy, COMPUTING), (row >= 0, WAITING), (fed, INPUT)]
    idle = LAUNCH if has_gpu else OTHER
    kind = np.select([cells for cells, _ in choices], [kind for _, kind in choices], idle)
    return kind.astype(np.int64), row


def _covered(grid: Floats, starts: Floats, ends: Floats) -> Bools:
    """Which cells of the grid lie inside an interval; all borders inside the grid are in it."""
    depth = np.zeros(len(grid), dtype=np.int64)
    np.add.at(depth, np.searchsorted(grid, np.clip(starts, grid[0], grid[-1])), 1)
    np.add.at(depth, np.searchsorted(grid, np.clip(ends, grid[0], grid[-1])), -1)
    covered: Bools = np.cumsum(depth)[:-1] > 0
    return covered


def _known(grid: Floats, waits: _Waits) -> Ints:
    """The operation of the last wait that began before each cell, if it still waits there."""
    row = np.full(len(grid) - 1, -1, dtype=np.int64)
    if len(waits.row):
        last = np.searchsorted(waits.start, grid[:-1], side="right") - 1
        waiting = (last >= 0) & (waits.end[last] >= grid[1:])
        row[waiting] = waits.row[last[waiting]]
    return row


def _awaited(columns: Columns, grid: Floats, comm: Ints, free: Bools) -> Ints:
    """The operation that ends a time in which the rank does nothing, or -1.

    A rank that does nothing while an operation is in flight may also run code that no event shows.
    It waited if it did nothing until the operation's end.
    """
    row = np.full(len(grid) - 1, -1, dtype=np.int64)
    if not len(comm):
        return row
    comm = comm[np.argsort(columns.end[comm], kind="stable")]
    follows = np.searchsorted(columns.end[comm], grid[:-1], side="right")
    valid = free & (follows < len(comm))
    change = np.flatnonzero(~free)
    stop = np.append(change, len(free))[np.searchsorted(change, np.arange(len(free)))]
    next_ = comm[np.minimum(follows, len(comm) - 1)]
    valid &= (columns.start[next_] <= grid[:-1]) & (columns.end[next_] <= grid[stop])
    row[valid] = next_[valid]
    return row


def _transfers(
    columns: Columns, matches: Meetings, row: Ints, kind: Ints, grid: Floats
) -> dict[int, tuple[float, float]]:
    """The end of a rank's last wait for each operation, and the seconds that it was in progress.

    The end of a message is recorded when its rank waits for it. If the rank hardly waited then,
    the message was complete long before.
    """
    result: dict[int, tuple[float, float]] = {}
    cells = np.flatnonzero(kind >= WAITING)
    for each, end, length in zip(
        row[cells].tolist(), grid[cells + 1].tolist(), np.diff(grid)[cells].tolist(), strict=True
    ):
        result[each] = end, result.get(each, (0.0, 0.0))[1] + length
    for each, (end, waited) in result.items():
        complete, ready = min(end, float(columns.end[each])), float(matches.ready[each])
        partner = int(matches.partner[each])
        if partner >= 0:
            complete = min(complete, max(ready, float(columns.end[partner])))
        transfer = max(0.0, complete - ready)
        if partner >= 0 and waited < _OVERHEAD * transfer:
            transfer = waited
        result[each] = end, transfer
    return result


def _by_row(
    row: Ints, step: Ints, kind: Ints, length: Floats
) -> list[tuple[int, int, float, float]]:
    """The waits of a rank, by operation and step: seconds before and after all had arrived."""
    cells = np.flatnonzero(kind >= WAITING)
    pairs = np.column_stack((row[cells], step[cells]))
    rows, number = np.unique(pairs, axis=0, return_inverse=True)
    number = number.reshape(-1)
    late = np.bincount(number, length[cells] * (kind[cells] == WAITING), len(rows))
    exposed = np.bincount(number, length[cells] * (kind[cells] == EXPOSED), len(rows))
    return list(zip(*rows.T.tolist(), late.tolist(), exposed.tolist(), strict=True))


def _items(
    columns: Columns, matches: Meetings, comm: Ints, transfers: dict[int, tuple[float, float]],
    borders: Floats,
) -> list[tuple[float, int, int, float | None]]:  # fmt: skip
    """Time, order, row and transfer of each item of `Use.items`."""
    items: list[tuple[float, int, int, float | None]] = [
        (border, 2, BORDER, None) for border in borders[1:].tolist()
    ]
    for row in comm.tolist():
        start = float(columns.start[row])
        if borders[0] <= start <= borders[-1]:
            items.append((start, 0, row, None))
        if row in transfers:
            end, transfer = transfers[row]
            items.append((end, 1, row, transfer))
    return sorted(items, key=lambda item: item[:3])


def replay(
    columns: Columns,
    matches: Meetings,
    ranks: Sequence[Use],
    scales: Sequence[Floats],
    transfer: float,
) -> tuple[Floats, Floats]:
    """Return the seconds of each step, and those that a rank waits in it; means over the ranks.

    `scales[rank][item, kind]` multiply the seconds of work before each item, `transfer` those that
    operations are in progress. Only waiting for late ranks counts as waiting.
    """
    needs, arrived = _needs(columns, matches), columns.start.tolist()
    for use in ranks:
        for row, awaited in use.items:
            if awaited is None and row != BORDER:
                arrived[row] = None  # is known when the replay comes there
    works = [
        (use.work * scale).sum(axis=1).tolist() for use, scale in zip(ranks, scales, strict=True)
    ]
    clock, position, waited = [use.begin for use in ranks], [0] * len(ranks), [0.0] * len(ranks)
    borders: list[list[tuple[float, float]]] = [[(use.begin, 0.0)] for use in ranks]
    sleepers: dict[int, list[int]] = {}
    ready = deque(range(len(ranks)))
    while ready or sleepers:
        if not ready:  # the events contradict each other: ignore the missing ones
            row, waiting = sleepers.popitem()
            arrived[row] = min(clock[rank] for rank in waiting)
            ready.extend(waiting)
        rank = ready.popleft()
        items, work = ranks[rank].items, works[rank]
        while position[rank] < len(items):
            row, awaited = items[position[rank]]
            if awaited is not None:
                members = needs.get(row, [row])
                missing = next((each for each in members if arrived[each] is None), None)
                if missing is not None:
                    sleepers.setdefault(missing, []).append(rank)
                    break
            clock[rank] += work[position[rank]]
            position[rank] += 1
            if awaited is not None:
                together = max(arrived[each] for each in members)
                waited[rank] += max(0.0, together - clock[rank])
                clock[rank] = max(clock[rank], together + awaited * transfer)
            elif row == BORDER:
                borders[rank].append((clock[rank], waited[rank]))
            else:
                arrived[row] = clock[rank]
                ready.extend(sleepers.pop(row, ()))
    steps = np.diff(np.array(borders), axis=1).mean(axis=0)
    return steps[:, 0], steps[:, 1]


def _needs(columns: Columns, matches: Meetings) -> dict[int, list[int]]:
    """For each operation that waits for other ranks, the rows of all that take part."""
    rows = np.flatnonzero(matches.number >= 0)
    groups: dict[int, list[int]] = {}
    for row, number in zip(rows.tolist(), matches.number[rows].tolist(), strict=True):
        groups.setdefault(number, []).append(row)
    last = {number: columns.start[group].max() for number, group in groups.items()}
    return {
        row: group
        for number, group in groups.items()
        for row in group
        if last[number] <= columns.end[row]
    }
