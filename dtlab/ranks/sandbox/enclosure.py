"""The grader's interface to a sandbox: its ranks and its notebook cells.

    with Enclosure(server, walls) as enclosure:      # some 30 ms, once the server is warm
        room = enclosure.open_room()
        room.run(1, "x = 6 * 7", limit=30)           # outputs as nbformat has them
        room.take("x")                               # [42]
        Conversation(spec, call, output, inputs, enclosure).run()     # ranks, as client.py does
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
from dataclasses import replace
from typing import Any

from dtlab.errors import LaunchError
from dtlab.ranks import protocol
from dtlab.ranks.launch.client import Server
from dtlab.ranks.plain import NotPlain, decode, encode
from dtlab.ranks.sandbox.cgroups import Group
from dtlab.ranks.sandbox.time_limits import FOR_CELLS, Patience
from dtlab.ranks.sandbox.untrusted import TooMuch, opened, spoken
from dtlab.ranks.sandbox.walls import HOME, Walls
from dtlab.ranks.transport import HEADER, Closed, receive_frame, send_frame, send_request

__all__ = ["Enclosure", "Room", "RoomGone", "RoomHung"]

START_LIMIT = 20.0  # seconds
END_LIMIT = 60.0  # seconds until everything behind the walls has ended: it may be a lot
TAKE_LIMIT = 10.0  # seconds to pickle a function
TOLD_LIMIT = 3.0  # seconds from the end of a room until its doorkeeper has told of it
DONE_BYTES, TAKEN_BYTES = 8 * 2**20, 64 * 2**20  # that an answer may be long; see room.py
STATUS_BYTES = 16
_ENDS = {
    signal.SIGSEGV: "it crashed: memory was used that is not there",
    signal.SIGABRT: "it aborted",
    signal.SIGBUS: "it crashed: a file was used beyond its end",
    signal.SIGFPE: "it crashed: a calculation that cannot be done",
    signal.SIGILL: "it crashed: no such instruction",
    signal.SIGSYS: "it was ended for a system call that nobody needs",
}


class RoomGone(Exception):
    """The notebook's process has ended, or speaks no sense any more: what happened, in words."""


class RoomHung(Exception):
    """A cell was still running at its limit."""


class Enclosure:
    """Walls, and a server behind them. Closing it ends all that runs there."""

    def __init__(self, server: Server, walls: Walls) -> None:
        """Raises `LaunchError` where nothing comes up. `missing` names walls that were refused."""
        self._sock, theirs = socket.socketpair()
        try:
            server.request(protocol.WARDEN, [theirs.fileno()])
        finally:
            theirs.close()
        try:
            self._sock.settimeout(START_LIMIT)
            send_frame(self._sock, protocol.WALLS, pickle.dumps(walls))
            _, body = receive_frame(self._sock)
        except (OSError, Closed) as error:
            self._sock.close()
            raise LaunchError(f"no walls came up around a submission: {error!r}") from error
        self._sock.settimeout(None)
        missing, group = decode(body)
        self.missing: list[str] = missing
        self._walls = replace(walls, missing=tuple(missing))
        self._group = Group(group)

    @property
    def folder(self) -> str:
        """The working folder of ranks: one of their own, where files have walls."""
        return HOME if self._walls.stand("files") else "/"

    def request(self, kind: bytes, fds: list[int]) -> None:
        """Ask the server behind the walls; see `client.Door`."""
        send_request(self._sock, kind, fds)

    def open_room(self) -> Room:
        """A fresh process for a notebook's cells."""
        (line, its_line), (ends, its_ends) = socket.socketpair(), socket.socketpair()
        try:
            self.request(protocol.ROOM, [its_line.fileno(), its_ends.fileno()])
        finally:
            its_line.close()
            its_ends.close()
        return Room(line, ends, self)

    def come_last(self, last: bool) -> None:
        """Give everything here a tenth of its usual share of busy CPUs, or all of it again."""
        self._group.come_last(last)

    def patience(self, seconds: float) -> Patience:
        """A time limit that begins now; see `Patience`."""
        return Patience(seconds, self._group.pids, FOR_CELLS, self._group.used)

    def out_of_memory(self) -> bool:
        """Whether the kernel has ended something here because all together took too much."""
        return self._group.killed() > 0

    def close(self) -> None:
        """End everything behind the walls; returns when it has ended."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(END_LIMIT)
            while self._sock.recv(4096):
                pass
        self._sock.close()

    def __enter__(self) -> Enclosure:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Room:
    """One notebook's process, at the other end of `line`; `ends` tells how it ended."""

    def __init__(self, line: socket.socket, ends: socket.socket, enclosure: Enclosure) -> None:
        self._line, self._ends, self._enclosure = line, ends, enclosure

    def run(self, number: int, source: str, limit: float) -> list[dict[str, Any]]:
        """Runs a cell; its outputs, as nbformat has them, an error last.

        Raises `RoomHung` after `limit` seconds (see `Patience`) and `RoomGone` where the process
        has ended; the room is of no use then.
        """
        outputs = self._ask(protocol.CELL, (number, source), protocol.DONE, DONE_BYTES, limit)
        if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
            raise RoomGone("its answer was no outputs")
        return [{str(key): spoken(value) for key, value in one.items()} for one in outputs]

    def take(self, name: str) -> list[Any]:
        """What the notebook has under a name, in a list; an empty one where it has nothing.

        Functions come sealed, other objects as `Opaque`. Raises as `run` does.
        """
        taken = self._ask(protocol.TAKE, name, protocol.TAKEN, TAKEN_BYTES, TAKE_LIMIT)
        if not isinstance(taken, list) or len(taken) > 1:
            raise RoomGone("its answer was no answer")
        return taken

    def close(self) -> None:
        """Have it end."""
        self._line.close()
        self._ends.close()

    def _ask(self, tag: bytes, words: Any, wanted: bytes, most: int, limit: float) -> Any:
        """The answer within `limit` seconds for all of it, however slowly it trickles."""
        patience = self._enclosure.patience(limit)
        try:
            self._line.settimeout(limit)
            send_frame(self._line, tag, encode(words))
            answered, size = HEADER.unpack(self._receive(HEADER.size, patience))
            if answered != wanted or size > most:
                raise RoomGone("its answer was no answer, or too long for one")
            return opened(self._receive(size, patience))
        except TimeoutError:
            raise RoomHung(f"still running after {limit:g} s") from None
        except OSError:
            raise RoomGone(self._how_it_ended()) from None
        except (NotPlain, TooMuch) as error:
            raise RoomGone(f"its answer makes no sense: {error}") from None

    def _receive(self, size: int, patience: Patience) -> bytearray:
        """The next `size` bytes. Raises OSError once the room has ended without them."""
        data, poller = bytearray(), select.poll()
        for sock in (self._line, self._ends):
            poller.register(sock, select.POLLIN)
        while len(data) < size:
            ready = [fd for fd, _ in poller.poll(1000 * max(0.0, patience.left))]
            if not ready:
                if patience.left > 0:
                    continue
                raise TimeoutError
            if self._line.fileno() not in ready:
                raise Closed("the room has ended")
            part = self._line.recv(min(size - len(data), 2**20))
            if not part:
                raise Closed("the line is closed")
            data += part
        return data

    def _how_it_ended(self) -> str:
        """In words, as far as anybody knows."""
        try:
            self._ends.settimeout(TOLD_LIMIT)
            _, body = receive_frame(self._ends, STATUS_BYTES)
            status = decode(body)
        except (OSError, NotPlain):
            return "it closed its line to the grader"
        if os.WIFSTOPPED(status):
            return "it stopped itself"
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"it ended by itself, with exit status {code}"
        if code == -signal.SIGKILL and self._enclosure.out_of_memory():
            most = self._enclosure._walls.memory
            return f"it was ended for want of memory: there are {most / 1e9:.1f} GB for all of it"
        return _ENDS.get(signal.Signals(-code), f"it was ended by {signal.Signals(-code).name}")


def first_user(slot: int) -> int:
    """The first of 512 user ids for the submission in `slot` of this process, unlike others."""
    return 2_000_000 + (os.getpid() * 16 + slot % 16) * 512 % 1_000_000_000
