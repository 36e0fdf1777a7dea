"""Shared memory in which each rank publishes the state of its communication.

Each rank has a ring buffer of fixed-size records, which it writes and the supervisor reads, and a
table of strings for names. Writing a record takes a microsecond and no system call. The memory is
anonymous: it has no file, and is freed with the last process that maps it. A rank maps only its
own part. An untrusted rank may write anything there, so reading takes bounded time and never
raises.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import time
import zlib
from typing import NamedTuple

# The kinds of record.
ISSUE = 1  # an operation is about to be issued; the rank continues
CALL = 2  # an operation is about to be issued, and the rank waits until it is complete
WAIT = 3  # the rank waits for an operation that it has issued
SOURCE = 4  # an any-source receive (`recv` without src) is complete; `peer` is the sender
STRANGER = 5  # an operation on a group that this rank is not in: torch only warns
LEFT = 6  # the function has returned
QUEUE = 7  # an operation is about to enter a GPU queue; neither it nor a wait blocks the rank
POLL = 8  # is_completed() has returned False; only the first one of an operation
SIZES = 9  # sizes of the all-to-all that is announced next, in all fields from `group` on
SIZES_AT_ONCE = 8

# How an operation is matched with those of other ranks.
COLLECTIVE, SEND, RECV, NEW_GROUP = range(4)

# The last field is a checksum, from which the reader sees whether the record is complete.
_RECORD = struct.Struct("<12q")
_HEADER = struct.Struct("<qq")  # records read, bytes of text
CAPACITY = 4096  # records; a rank that is so far ahead of the reader waits
_TEXT_ROOM = 1 << 18  # bytes
_SIZE = 64 + CAPACITY * _RECORD.size + _TEXT_ROOM
_TEXT_AT = 64 + CAPACITY * _RECORD.size


class Record(NamedTuple):
    """One event of a rank, for instance an operation that it issues.

    `number` is the operation's index. Equal groups have the same `group`, and equal descriptions
    the same `signature`, on all ranks. `group_text`, `text` and the file are indices into the
    rank's own table of strings. `peer` is a global rank, -1 for none. The `tag` of an all-to-all
    is one more than the elements that go from each rank to each, 0 if sizes were announced.
    """

    kind: int
    number: int
    thread: int
    group: int
    group_text: int
    signature: int
    text: int
    peer: int
    tag: int
    place: int  # file number x 2^24 + line
    role: int  # how the operation is matched


def checksum(slot: int, *fields: int) -> int:
    """The checksum of a record in this slot; the same in all processes forked from one.

    A process may see another's writes late and in another order. With a simple counter instead,
    a reader that is interrupted could combine a new count with old fields.
    """
    return hash((slot, *fields))


def number_of(text: str) -> int:
    """A hash of a string, which is the same in every process."""
    return zlib.crc32(text.encode())


class Board:
    """The shared memory of all ranks; created before the ranks are forked."""

    def __init__(self, world_size: int) -> None:
        self._maker = os.getpid()
        self._memories = [mmap.mmap(-1, _SIZE) for _ in range(world_size)]
        self.readers = [Reader(memory) for memory in self._memories]

    def writer(self, rank: int) -> Writer:
        """The writer of a rank; in the rank's process, this unmaps the memory of other ranks."""
        if os.getpid() != self._maker:
            for other, memory in enumerate(self._memories):
                if other != rank:
                    memory.close()
        return Writer(self._memories[rank])


class Writer:
    """The side of the rank, which writes records."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._count = itertools.count()
        self._seen = 0  # number of records that the reader is known to have read
        self._texts: dict[str, int] = {}
        self._text_length = 0

    def write(
        self, kind: int, number: int, thread: int, group: int = 0, group_text: int = 0,
        signature: int = 0, text: int = 0, peer: int = -1, tag: int = 0, place: int = 0,
        role: int = COLLECTIVE,
    ) -> None:  # fmt: skip
        """Add a record. Any thread may call this: each call uses a different slot."""
        slot = next(self._count)
        if slot - self._seen >= CAPACITY:
            self._wait_for_reader(slot)
        fields = (
            kind, number, thread, group, group_text, signature, text, peer, tag, place, role,
        )  # fmt: skip
        at = 64 + slot % CAPACITY * _RECORD.size
        _RECORD.pack_into(self._memory, at, *fields, checksum(slot, *fields))

    def text(self, text: str) -> int:
        """The index of a string in this rank's table; 0 if the table is full."""
        number = self._texts.get(text)
        if number is None:
            data = text.encode() + b"\0"
            if self._text_length + len(data) > _TEXT_ROOM:
                return 0
            number = self._texts[text] = len(self._texts) + 1
            start = _TEXT_AT + self._text_length
            self._memory[start : start + len(data)] = data
            self._text_length += len(data)
            struct.pack_into("<q", self._memory, 8, self._text_length)
        return number

    def _wait_for_reader(self, slot: int) -> None:
        while slot - self._seen >= CAPACITY:
            self._seen = struct.unpack_from("<q", self._memory)[0]
            if slot - self._seen >= CAPACITY:
                time.sleep(0.0005)


class Reader:
    """The supervisor's side of one rank, which reads records."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._read = 0
        self._texts: list[str] = []

    def read(self) -> list[Record]:
        """The records written since the last call, at most `CAPACITY`."""
        records: list[Record] = []
        while len(records) < CAPACITY:
            at = 64 + self._read % CAPACITY * _RECORD.size
            *fields, stored = _RECORD.unpack_from(self._memory, at)
            if stored != checksum(self._read, *fields):
                break  # not written yet, or not complete
            records.append(Record._make(fields))
            self._read += 1
        if records:
            struct.pack_into("<q", self._memory, 0, self._read)
        return records

    def text(self, number: int) -> str:
        """A string of the rank's table; "" for 0."""
        if number > len(self._texts):
            length = min(max(0, _HEADER.unpack_from(self._memory)[1]), _TEXT_ROOM)
            texts = self._memory[_TEXT_AT : _TEXT_AT + length].decode(errors="replace")
            self._texts = texts.split("\0")[:-1]
        return self._texts[number - 1] if 0 < number <= len(self._texts) else ""
