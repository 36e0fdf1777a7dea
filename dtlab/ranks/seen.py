"""One rank as its supervisor sees it: a process, and the letters that it sends."""

from __future__ import annotations

import contextlib
import socket

from dtlab.ranks import protocol, resident, stacks
from dtlab.ranks.protocol import RankEnd

__all__ = ["Rank"]


class Rank:
    """What the supervisor knows of one rank."""

    def __init__(self, rank: int, status: socket.socket, stack: stacks.StackPipe) -> None:
        self.rank = rank
        self.cutter: socket.socket | None = None
        self.pid = -1
        self.status = status
        self.stack = stack
        self.end = RankEnd()
        self.letters: set[int] = set()  # every status letter so far
        self.resident: list[int | None] = []  # bytes of memory, each time that it asked
        self.alive = True  # until it has been reaped
        self.talks = True  # until its end of `status` is closed

    def has(self, *letters: bytes) -> bool:
        return any(letter[0] in self.letters for letter in letters)

    def tell(self, letter: bytes) -> None:
        """Send it a letter, if it is there."""
        if self.talks:
            with contextlib.suppress(OSError):  # it just died, and is reaped in a moment
                self.status.send(letter)

    def cut(self, what: bytes = protocol.CUT) -> None:
        """Have it cut its connections to other ranks, or to the store; for ranks that stay."""
        if self.cutter is not None:
            with contextlib.suppress(OSError):
                self.cutter.send(what)

    def read_letters(self) -> bytes:
        """The letters that have come, noted too; notes when there will be no more."""
        try:
            letters = self.status.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""  # it has ended, and a child of its own still has the line
        except ConnectionError:
            letters = b""
        if not letters:
            self.status.close()
            self.talks = False
        self.letters.update(letters)
        for _ in range(letters.count(protocol.COUNT)):
            if len(self.resident) < resident.MOST:
                self.resident.append(resident.bytes_of(self.pid))
            self.tell(protocol.COUNTED)
        return letters
