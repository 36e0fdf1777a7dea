"""Launches ranks in a sandbox, as the grader uses them.

Whatever they send, the conversation ends at its limit, and takes no more memory than it may.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from dtlab.errors import RankTimeoutError
from dtlab.ranks import protocol
from dtlab.ranks.launch.client import Collected, Conversation
from dtlab.ranks.launch.output import Stream
from dtlab.ranks.protocol import RemoteFailure
from dtlab.ranks.sandbox import untrusted as strangers
from dtlab.ranks.sandbox.time_limits import FOR_RANKS
from dtlab.ranks.transport import HEADER

__all__ = ["SealedConversation"]

MOST_BYTES = 128 * 2**20  # that all ranks of a launch may send together
MOST_PRINTED = 2 * 2**20  # bytes of each stream of a rank that are looked at
START_LIMIT, END_LIMIT = 30.0, 15.0  # seconds beside the time limit, on a machine that is busy
_AT_ONCE = 1 << 20  # bytes


class SealedConversation(Conversation):
    """Reads what comes, from whom it comes, as it comes: nobody is waited for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._came: dict[socket.socket, bytearray] = {}
        self._told: set[tuple[int, bytes]] = set()  # what is told once
        self._printed: dict[tuple[int, Stream], int] = {}
        self._left = MOST_BYTES
        limit = START_LIMIT + FOR_RANKS * (self.spec.timeout or 0.0) + END_LIMIT
        self._deadline = time.monotonic() + limit

    def run(self) -> Collected:
        """As `Conversation.run`; also raises `RankTimeoutError`."""
        collected = super().run()
        if collected.outcome is not None:
            collected.outcome = strangers.cleaned(collected.outcome, self.spec.world_size)
        return collected

    def _read_some(self, patience: float | None) -> bool:
        left = self._deadline - time.monotonic()
        if left <= 0:
            text = "the ranks did not come back, and could not be asked where they are."
            raise RankTimeoutError(text, running=[])
        return super()._read_some(left if patience is None else min(patience, left))

    def _read_pipe(self, reader: int) -> None:
        """Of what is printed without end, only the beginning is looked at."""
        source = self.pipes[reader]
        if self._printed.get(source, 0) <= MOST_PRINTED:
            self._printed[source] = self._printed.get(source, 0) + 65536
            super()._read_pipe(reader)
        elif not os.read(reader, _AT_ONCE):
            os.close(reader)
            del self.pipes[reader]

    def _read_channel(self, channel: socket.socket) -> None:
        try:
            data = channel.recv(_AT_ONCE, socket.MSG_DONTWAIT)
        except OSError:
            data = b""
        rank = self.channels[channel]
        self._left -= len(data)
        if not data or self._left < 0:
            channel.close()
            del self.channels[channel]
            self._came.pop(channel, None)
            if data:
                self._fail(rank, f"sent back more than {MOST_BYTES // 2**20} MiB")
            return
        came = self._came.setdefault(channel, bytearray())
        came += data
        at = 0
        while len(came) >= at + HEADER.size:
            tag, size = HEADER.unpack_from(came, at)
            if len(came) < at + HEADER.size + size:
                break
            at += HEADER.size + size
            self._take(rank, tag, came[at - size : at])
        del came[:at]

    def _take(self, rank: int, tag: bytes, body: bytearray) -> None:
        if (rank, tag) in self._told:
            return
        self._told.add((rank, tag))
        try:
            self._open(rank, tag, body, None)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the rank's doing
            self._fail(rank, f"sent what cannot be read: {type(error).__name__}")

    def _open(self, rank: int, tag: bytes, body: bytearray, value: Any) -> None:
        collected, world_size = self.collected, self.spec.world_size
        told = strangers.opened(body)
        if tag == protocol.VALUE:
            collected.values[rank] = told
        elif tag == protocol.FAILURE:
            collected.failures[rank] = strangers.failure(told)
        elif tag == protocol.THREAD_FAILURE:
            collected.thread_failures[rank] = strangers.failure(told)
        elif tag == protocol.RECORDS:
            collected.records.append(strangers.records(told, rank, world_size))
        elif tag == protocol.CHANGED:
            ops = [strangers.op(one, world_size) for one in told[: strangers.MOST_OPS]]
            collected.changed_sends += ops

    def _fail(self, rank: int, what: str) -> None:
        self.collected.failures.setdefault(rank, RemoteFailure("result", what, []))
