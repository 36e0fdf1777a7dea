"""A record on a rank's board is read completely or not at all."""

from __future__ import annotations

import mmap
import os
import time

import pytest

from dtlab.ranks.watch.board import _RECORD, CAPACITY, Board, Record


def _record(number: int) -> Record:
    """A record whose fields all follow from its number, and differ from lap to lap."""
    return Record._make(number * 100 + field for field in range(len(Record._fields)))


def test_a_record_of_which_a_part_is_not_there_yet_is_not_read() -> None:
    board = Board(1)
    memory: mmap.mmap = board._memories[0]
    board.writer(0).write(*_record(1))
    whole = memory[64 : 64 + _RECORD.size]
    for field in range(len(Record._fields)):
        at = 64 + 8 * field
        memory[at : at + 8] = bytes(8)  # as another processor may see it for a while
        assert board.readers[0].read() == []
        memory[64 : 64 + _RECORD.size] = whole
    assert board.readers[0].read() == [_record(1)]
    assert board.readers[0].read() == []


@pytest.mark.proof
@pytest.mark.slow
def test_nothing_is_lost_or_mixed_up_while_it_is_being_written() -> None:
    """A reader that is interrupted in the middle of a record, lap after lap."""
    count = 40 * CAPACITY
    board = Board(1)
    pid = os.fork()
    if pid == 0:
        writer = board.writer(0)
        for number in range(count):
            writer.write(*_record(number))
        os._exit(0)
    read: list[Record] = []
    deadline = time.monotonic() + 60
    while len(read) < count and time.monotonic() < deadline:
        read += board.readers[0].read()
    os.waitpid(pid, 0)
    assert read == [_record(number) for number in range(count)]
