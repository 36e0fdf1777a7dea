"""The journal of a recorder: compact entries while a rank runs, `Records` afterwards.

A training step issues dozens of operations, so recording one only appends a few integers; names,
members of groups and source files are looked up afterwards. The appends need no lock: each is one
call into C under the GIL, and written entries never change.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dtlab import torch_internals
from dtlab.ranks.emulate.interconnect import Wire
from dtlab.ranks.groups import ByGroup, forget_destroyed, members_of
from dtlab.ranks.protocol import Touch
from dtlab.ranks.record.layouts import Extra
from dtlab.ranks.record.operators import OPERATORS, Operator
from dtlab.ranks.watch.announcer import Announcer
from dtlab.ranks.watch.locate import is_learners
from dtlab.trace import Records

FORKED = (
    "was called in a process that this rank has forked, such as a DataLoader worker. That process "
    "has no connections to other ranks, so the call would never return. Communicate in the rank "
    "itself, and pass the result to the forked process."
)

__all__ = ["Journal"]

Ints = npt.NDArray[np.int64]
_BACKWARD = torch_internals.backward_code()
# Number of the group, bytes (-1: measure each call), number of the dtype, announcer's description.
_Kind = tuple[int, int, int, tuple[Any, ...]]
_now = time.perf_counter_ns  # CLOCK_MONOTONIC on Linux: the same in all processes of a machine


class Journal:
    """The records of a running rank. It stores at most `limit` operations and `limit` spans."""

    def __init__(
        self, world_size: int = 1, limit: int = 0, announcer: Announcer | None = None
    ) -> None:
        self.world_size = world_size
        self._announcer: Announcer | None = announcer
        self.limit = limit  # index of the first operation that is not stored
        self._room = limit
        self._first = 0  # index of the first operation that has not been taken
        self.wire: Wire | None = None  # for `dtlab.compute`
        self.look: Callable[[], None] | None = None  # notes operations that are complete
        self._count = itertools.count()
        self._issued: list[tuple[int, ...]] = []  # columns as in `issue`
        self._ended: list[tuple[int, int]] = []  # operation, time
        self._blocked: list[tuple[int, int, int, int]] = []  # operation, start, end, thread
        self._sources: list[tuple[int, int]] = []  # operation, rank in group: any-source receives
        self._spans: list[tuple[str, dict[str, Any], int, int, int]] = []
        self._spans_dropped = 0
        self._groups = ByGroup[int]()  # keeps groups alive, so that ids stay unique
        self._members: list[tuple[str, tuple[int, ...]]] = []
        self._dtypes: dict[torch.dtype, int] = {}
        self._files: dict[str, int] = {}  # number of each file; -1: not the learner's
        self._file_names = {-1: ""}
        self._backward = (-1, (-1, 0))  # id of a backward pass, and the line that called it
        self._forked: list[int] = []  # not empty in a fork of this process
        os.register_at_fork(after_in_child=partial(self._forked.append, os.getpid()))

    # --------------------------------------------------------------- while the rank is running

    def issuer(self, number: int, operator: Operator) -> Callable[..., tuple[int, bool]]:
        """A function that records the operations of one operator before they are issued.

        The operator's hook (interception.py) calls it with values from the operator's arguments.
        It returns the operation's index, and whether a wait for it must be announced. Because it
        runs for each operation, it uses local names, and one dictionary lookup for everything that
        equal operations have in common.
        """
        count, append = self._count, self._issued.append
        place, frame_of, names = self._place, sys._getframe, self._file_names
        ident = threading.get_ident
        announce = self._announcer.issuer(operator) if self._announcer else None
        kinds = ByGroup[_Kind]()
        forked, Tensor = self._forked, torch.Tensor
        is_collective = not operator.is_message

        def issue(
            group: Any, payload: Any, peer: int, tag: int, reduction: Any, root: Any,
            waits_later: bool, extra: Extra | None = None,
        ) -> tuple[int, bool]:  # fmt: skip
            if forked:
                raise RuntimeError(f"{operator.name} {FORKED}")
            index = next(count)
            if type(payload) is list and len(payload) == 1:
                payload = payload[0]
            shape: Any = None
            dtype = None
            if isinstance(payload, Tensor):
                shape, dtype = payload.shape, payload.dtype
            elif is_collective and type(payload) is list and payload:
                shape = tuple((x.shape, x.dtype) for x in payload if isinstance(x, Tensor))
                shape = ((torch.Size(), payload[0].dtype),) if operator.uneven else shape
            key: tuple[Any, ...] = (group, shape, dtype, reduction, root)
            told_tag = tag
            if extra is not None:
                key = (*key, extra.words) if extra.words else key
                told_tag = extra.each + 1
                if extra.sizes and self._announcer is not None:
                    self._announcer.sizes(index, extra.sizes)
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = self._kind(operator, key, payload)
            group_number, size, dtype_number, description = kind
            try:
                file, line = place(frame_of(2))  # the caller of the hook
            except ValueError:  # a C++ thread, which has no Python frames
                file, line = self._place(None)
            if announce is not None:
                waits_later = announce(
                    index, description, payload, peer, told_tag, waits_later, names[file], line
                )
            if index >= self.limit:
                return index, waits_later
            if size < 0:
                size, dtype_number = self._measure(payload)
            append((
                index, number, group_number, peer, tag, size, dtype_number,
                ident(), file, line, _now(),
            ))  # fmt: skip
            return index, waits_later

        return issue

    def _kind(self, operator: Operator, key: tuple[Any, ...], payload: Any) -> _Kind:
        """The values that operations with the same group, shape and dtype have in common."""
        group, _, dtype_of_one, *_ = key
        number = self._groups[group] if group in self._groups else self._add_group(group)
        size = dtype = -1
        if dtype_of_one is not None and payload.layout is torch.strided:
            size, dtype = self._measure(payload)
        description = self._announcer.describe(operator, *key) if self._announcer else ()
        return number, size, dtype, description

    def end(self, index: int, now: int) -> None:
        """Record that the operation was complete at `now`."""
        if self._first <= index < self.limit:
            self._ended.append((index, now))

    def block(self, index: int, start: int) -> None:
        """Record that this thread has waited for the operation since `start`; it is complete."""
        if self._first <= index < self.limit:
            self._blocked.append((index, start, _now(), threading.get_ident()))

    def source(self, index: int, source: int) -> None:
        """Record that an any-source receive got its message from `source`, a rank in its group."""
        if self._first <= index < self.limit:
            self._sources.append((index, source))

    def begin_span(self) -> None:
        """Note operations that are complete, so that they end before the span that begins.

        Called by `dtlab.span`.
        """
        if self.look is not None:
            self.look()

    def add_span(self, name: str, extra: dict[str, Any], start: int, end: int) -> None:
        """Record a finished span; called by `dtlab.span`."""
        if len(self._spans) < self._room:
            self._spans.append((name, extra, start, end, threading.get_ident()))
        else:
            self._spans_dropped += 1

    def _measure(self, payload: Any) -> tuple[int, int]:
        """Bytes of a tensor, a list, or the first list in a list; and the number of the dtype."""
        if isinstance(payload, torch.Tensor):
            payload = [payload]
        while payload and isinstance(payload[0], list):
            payload = payload[0]
        if not payload:
            return 0, -1
        dtype = self._dtypes.setdefault(payload[0].dtype, len(self._dtypes))
        return sum(_bytes(tensor) for tensor in payload), dtype

    def line_of(self, frame: FrameType | None) -> tuple[str, int]:
        """File and line of the learner's innermost frame; "" and 0 if there is none."""
        number, line = self._place(frame)
        return self._file_names[number], line

    def _place(self, frame: FrameType | None) -> tuple[int, int]:
        """File number and line of the learner's innermost frame; -1 and 0 if there is none.

        A thread may have no such frame, as in `Thread(target=dist.all_reduce)`. Then the main
        thread's frame is used. A call takes half a microsecond: the results for files are cached.
        """
        files = self._files
        while frame is not None:
            code = frame.f_code
            number = files.get(code.co_filename)
            if number is None:
                number = self._add_file(code.co_filename)
            if number >= 0:
                return number, frame.f_lineno
            if code is _BACKWARD:
                task, known = torch_internals.backward_number(), self._backward
                if task != known[0]:  # else the cached line called this backward pass
                    known = self._backward = (task, self._place(frame.f_back))
                return known[1]
            frame = frame.f_back
        main = threading.main_thread().ident
        if main is None or main == threading.get_ident():
            return -1, 0
        frame = sys._current_frames().get(main)
        while frame is not None and not is_learners(frame.f_code.co_filename):
            frame = frame.f_back
        return (-1, 0) if frame is None else self._place(frame)

    def _add_file(self, file: str) -> int:
        number = self._files[file] = len(self._files) if is_learners(file) else -1
        self._file_names[number] = file if number >= 0 else ""
        return number

    def _add_group(self, group: Any) -> int:
        self._members.append((group.group_name, members_of(group)))
        return self._groups.setdefault(group, len(self._members) - 1)

    # ------------------------------------------------------------------------------- afterwards

    def take(self, rank: int) -> Records:
        """Return the records and clear them; numbering continues."""
        taken = self.records(rank)
        forget_destroyed()
        for column in (self._issued, self._ended, self._blocked, self._sources, self._spans):
            column.clear()
        self._first = next(self._count)
        self.limit = self._first + self._room if self._room else 0
        self._spans_dropped = 0
        return taken

    def as_rows(self, touches: list[Touch]) -> list[Touch]:
        """The touches of recorded operations, whose indices are replaced by rows of `records`."""
        indices = sorted(entry[0] for entry in self._issued) if touches else []
        row_of = {index: row for row, index in enumerate(indices)}
        return [touch._replace(row=row_of[touch.row]) for touch in touches if touch.row in row_of]

    def records(self, rank: int) -> Records:
        """The records as columns of numbers. Operations that have not ended end now."""
        stopped = _now()
        # Other threads may still record. So entries that refer to operations are read first.
        sources, ended = _table(self._sources, 2), _table(self._ended, 2)
        blocked, issued = _table(self._blocked, 4), _table(self._issued, 11)
        issued = issued[np.argsort(issued[:, 0])]
        first = int(issued[0, 0]) if len(issued) else 0
        issued[:, 0] -= first
        index, operator, group, peer, tag, size, dtype, thread, file, line, start = issued.T
        row_of = np.zeros(int(index.max(initial=-1)) + 1, dtype=np.int64)
        row_of[index] = np.arange(len(issued))
        peer = self._global_peers(row_of, first, sources, group, peer)
        size = self._whole_sizes(operator, group, size)
        blocked[:, 0] = row_of[blocked[:, 0] - first]
        end = np.full(len(issued), stopped)
        np.minimum.at(end, blocked[:, 0], blocked[:, 2])
        np.minimum.at(end, row_of[ended[:, 0] - first], ended[:, 1])
        names = [operator.name for operator in OPERATORS]
        names += sorted({span[0] for span in self._spans})
        spans = np.array(
            [(names.index(name), *rest) for name, _, *rest in self._spans], dtype=np.int64
        ).reshape(-1, 4)
        _number_threads(thread, blocked[:, 3], spans[:, 3])
        columns = (operator, group, peer, tag, size, dtype, start, end, thread, file, line)
        return Records(
            rank,
            self.world_size,
            np.column_stack(columns),
            blocked,
            spans,
            [_plain(extra) for _, extra, *_ in self._spans],
            names,
            self._members,
            [(str(dtype).removeprefix("torch."), dtype.itemsize) for dtype in self._dtypes],
            list(self._files),
            max(0, next(self._count) - self.limit) + self._spans_dropped,
        )

    def _global_peers(
        self, row_of: Ints, first: int, sources: Ints, group: Ints, peer: Ints
    ) -> Ints:
        """Convert peers from ranks in their group to global ranks; -1 stays -1."""
        peer[row_of[sources[:, 0] - first]] = sources[:, 1]
        widest = max((len(ranks) for _, ranks in self._members), default=0)
        world = np.full((len(self._members) + 1, widest + 1), -1, dtype=np.int64)
        for number, (_, ranks) in enumerate(self._members):
            world[number, : len(ranks)] = ranks
        return world[group, np.clip(peer, -1, widest)]

    def _whole_sizes(self, operator: Ints, group: Ints, size: Ints) -> Ints:
        """Bytes of the whole message, if only one member's share was measured."""
        is_part = np.array([operator.part for operator in OPERATORS])
        members = np.array([len(ranks) for _, ranks in self._members] or [0])
        return np.where(is_part[operator], size * members[group], size)


def _bytes(tensor: torch.Tensor) -> int:
    if tensor.layout is torch.sparse_coo:
        parts = torch_internals.sparse_indices(tensor), torch_internals.sparse_values(tensor)
        return sum(part.nbytes for part in parts)
    return int(tensor.nbytes)


def _table(rows: Sequence[tuple[int, ...]], width: int) -> Ints:
    return np.array([*rows], dtype=np.int64).reshape(-1, width)


def _number_threads(*columns: Ints) -> None:
    """Replace thread identifiers by small numbers in place; the main thread's number is 0."""
    main = threading.main_thread().ident
    known = [main, *sorted({int(ident) for column in columns for ident in np.unique(column)})]
    numbers = {ident: number for number, ident in enumerate(dict.fromkeys(known))}
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        column[:] = np.array([numbers[int(value)] for value in values], dtype=np.int64)[inverse]


def _plain(extra: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a span as plain values, which can be sent to another process."""
    plain = (bool, int, float, str, type(None))
    return {key: value if type(value) in plain else str(value) for key, value in extra.items()}
