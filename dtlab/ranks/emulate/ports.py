"""The emulated interconnect's shared state: matching operations, and busy times of ports.

           intra out ──►┌────────┐──► intra in            every rank has four ports, each of which
    rank 0  inter out ─►│switches│──► inter in   rank 1    carries one message at a time
                        └────────┘

A message occupies its two ports for size / bandwidth. It uses the first time, after both ranks
have posted it, in which both ports are free, in several pieces if necessary. It arrives one
latency after the last piece. A collective starts when all members have posted it, the previous
collective of its group has ended, and the ports of its messages are free from then on. It
occupies these ports until it ends (predict/built_in.py gives the duration).

The memory is anonymous and is created before the ranks are forked. All times are nanoseconds of
CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import heapq
import itertools
import mmap
import multiprocessing
import time
from collections.abc import Iterable, Sequence

import numpy as np

from dtlab.predict import Cluster, Route

__all__ = ["Ports"]

# A hash table of posted operations (open addressing). An entry may be dropped once its end has
# passed; a missing entry therefore means that the operation is over.
_KEY, _ARRIVED, _LATEST, _BYTES, _END = range(5)
_WIDTH = 8  # words per entry, 8 bytes each
_ENTRIES = 1 << 16
_MOST = _ENTRIES // 2  # so that lookups stay fast
_QUIET_AT, _COUNT_AT, _PORTS_AT = 0, 1, 2  # words before the table
_PORTS = 4  # per rank
_INTERVALS = 31  # busy intervals that are stored of a port
_PORT = 1 + 2 * _INTERVALS  # words: the number of intervals, then begin and end of each
_OLD = 200_000_000  # nanoseconds; no rank posts so late that an older interval matters
_NEVER = 1 << 62
_INTRA, _INTER, _OUT, _IN = 0, 2, 0, 1


class Ports:
    """The state of all emulated links: one object, created before the fork, used by all ranks."""

    def __init__(self, cluster: Cluster, world_size: int) -> None:
        self.cluster = cluster
        self._table = _PORTS_AT + _PORT * _PORTS * world_size
        memory = mmap.mmap(-1, 8 * (self._table + _ENTRIES * _WIDTH))
        self._words = memoryview(memory).cast("q")
        rows = np.frombuffer(memory, dtype=np.int64)[self._table :]
        self._rows = rows.reshape(_ENTRIES, _WIDTH)
        self._lock = multiprocessing.get_context("fork").Lock()
        self._nanoseconds = cluster.slowdown * 1e9

    def busy_until(self) -> int:
        """The latest end of an operation that all its ranks have posted, in nanoseconds."""
        return self._words[_QUIET_AT]

    def end(self, key: int) -> int | None:
        """The end of an operation; 0 if it is no longer in the table, None if it is not known.

        The end is known when all ranks of the operation have posted it.
        """
        with self._lock:
            at = self._find(key)
            if self._words[at + _KEY] == 0:
                return 0
            return self._words[at + _END] or None

    def message(self, key: int, src: int, dst: int, nbytes: int, posted: int) -> int | None:
        """Post a send or its receive; return the arrival time, None until both are posted.

        `key` is the same for the send and its receive, and for no other message. Once both have
        been posted, posting again changes nothing.
        """
        link = self.cluster.link(src, dst)
        ports = self.ports_between(src, dst)
        with self._lock:
            at = self._arrive(key, nbytes, posted)
            words = self._words
            if words[at + _END] == 0:
                if words[at + _ARRIVED] < 2:
                    return None
                needed = int(words[at + _BYTES] / link.bandwidth * self._nanoseconds)
                gone = self._transfer(ports, words[at + _LATEST], needed)
                self._settle(at, gone + int(link.latency * self._nanoseconds))
            return words[at + _END]

    def collective(
        self, key: int, group: int, route: Route, ports: Sequence[int], nbytes: int, posted: int
    ) -> int | None:
        """Post one member's part of a collective; return its end, None until all have posted.

        `key` is the same for all members and for no other operation. `group` is the key of all
        collectives of the group. `ports` is the result of `ports_on` for the route's pairs.
        """
        with self._lock:
            at = self._arrive(key, nbytes, posted)
            words = self._words
            if words[at + _ARRIVED] < route.ranks:
                return None
            last = self._find(group)
            free = [ends for port in ports for _, ends in self._taken(port)[-1:]]
            start = max(words[at + _LATEST], words[last + _END], *free)
            end = start + int(route.seconds(words[at + _BYTES]) * self._nanoseconds)
            for port in ports:
                self._take(port, [(start, end)])
            self._settle(at, end)
            if words[last + _KEY] == 0:
                last = self._insert(group)
            words[last + _END] = end
            return end

    def withdraw(self, key: int) -> None:
        """Undo one posting of an operation that raised when it was issued."""
        with self._lock:
            at = self._find(key)
            if self._words[at + _KEY]:
                self._words[at + _ARRIVED] -= 1

    def ports_between(self, src: int, dst: int) -> tuple[int, int]:
        """The positions of the two ports that a message from `src` to `dst` uses."""
        level = _INTRA if self.cluster.node_of(src) == self.cluster.node_of(dst) else _INTER
        out, into = _PORTS * src + level + _OUT, _PORTS * dst + level + _IN
        return _PORTS_AT + _PORT * out, _PORTS_AT + _PORT * into

    def ports_on(self, pairs: Iterable[tuple[int, int]]) -> list[int]:
        """The positions of all ports that messages between `pairs` use."""
        return sorted({port for pair in pairs for port in self.ports_between(*pair)})

    # ------------------------------------------------------------------ ports, under the lock

    def _taken(self, port: int) -> list[tuple[int, int]]:
        """The intervals in which a port is busy, sorted and disjoint."""
        words = self._words[port + 1 : port + 1 + 2 * self._words[port]].tolist()
        return list(zip(words[::2], words[1::2], strict=True))

    def _transfer(self, ports: Sequence[int], start: int, needed: int) -> int:
        """Occupy the first `needed` nanoseconds in which all ports are free; return their end."""
        pieces, at = [], start
        taken = heapq.merge(*(self._taken(port) for port in ports), [(_NEVER, _NEVER)])
        for begin, end in taken:
            if begin > at:
                pieces.append((at, min(begin, at + needed)))
                needed -= pieces[-1][1] - at
                if needed == 0:
                    break
            at = max(at, end)
        for port in ports:
            self._take(port, pieces)
        return pieces[-1][1]

    def _take(self, port: int, pieces: list[tuple[int, int]]) -> None:
        """Mark a port as busy in `pieces`, and join intervals that touch."""
        joined: list[tuple[int, int]] = []
        for begin, end in sorted(self._taken(port) + pieces):
            if joined and begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            elif begin < end:
                joined.append((begin, end))
        joined = [interval for interval in joined if interval[1] > pieces[0][0] - _OLD]
        if len(joined) > _INTERVALS:  # drop the earliest gaps
            joined[: -_INTERVALS + 1] = [(joined[0][0], joined[-_INTERVALS][1])]
        self._words[port] = len(joined)
        for place, number in enumerate(itertools.chain(*joined)):
            self._words[port + 1 + place] = number

    # ------------------------------------------------------------------ the table, under the lock

    def _arrive(self, key: int, nbytes: int, posted: int) -> int:
        """Count one posting of the operation; return the position of its entry."""
        words, at = self._words, self._find(key)
        if words[at + _KEY] == 0:
            at = self._insert(key)
        if words[at + _END] == 0:
            words[at + _ARRIVED] += 1
            words[at + _LATEST] = max(words[at + _LATEST], posted)
            words[at + _BYTES] = max(words[at + _BYTES], nbytes)
        return at

    def _settle(self, at: int, end: int) -> None:
        self._words[at + _END] = end
        self._words[_QUIET_AT] = max(self._words[_QUIET_AT], end)

    def _find(self, key: int) -> int:
        """The position of the entry with this key, or the free position for it."""
        words, entry = self._words, key % _ENTRIES
        while words[at := self._table + entry * _WIDTH] not in (0, key):
            entry = (entry + 1) % _ENTRIES
        return at

    def _insert(self, key: int) -> int:
        if self._words[_COUNT_AT] >= _MOST:
            self._forget()
        at = self._find(key)
        self._words[at + _KEY] = key
        self._words[_COUNT_AT] += 1
        return at

    def _forget(self) -> None:
        """Drop all operations that are over from the table."""
        ends = self._rows[:, _END]
        stay = (self._rows[:, _KEY] != 0) & ((ends == 0) | (ends > time.monotonic_ns()))
        rows = self._rows[stay]
        if len(rows) >= _MOST:
            raise RuntimeError(
                f"More than {_MOST} operations are in flight on the emulated interconnect at the "
                "same time. Wait for some before you post more."
            )
        self._rows[:] = 0
        self._words[_COUNT_AT] = len(rows)
        for row in rows:
            at = self._find(int(row[_KEY])) - self._table
            self._rows[at // _WIDTH] = row
