"""The grader's side of a launch of untrusted ranks in a sandbox.

Whatever the ranks send, the launch ends at its time limit, and the data stay within a size limit.
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
from dtlab.ranks.sandbox import untrusted_data
from dtlab.ranks.sandbox.time_limits import STRETCH
from dtlab.ranks.transport import HEADER

__all__ = ["GradedConversation"]

MOST_BYTES = 128 * 2**20  # limit for all ranks of a launch together
MOST_PRINTED = 2 * 2**20  # bytes of each stream of a rank that are processed
START_LIMIT, END_LIMIT = 30.0, 15.0  # seconds in addition to the time limit, on a busy machine
_AT_ONCE = 1 << 20  # bytes


class GradedConversation(Conversation):
    """A conversation that reads data of any rank as they arrive, and never waits for one rank."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._came: dict[socket.socket, bytearray] = {}
        self._received: set[tuple[int, bytes]] = set()  # frames received, each allowed once
        self._printed: dict[tuple[int, Stream], int] = {}
        self._left = MOST_BYTES
        limit = START_LIMIT + STRETCH * (self.spec.timeout or 0.0) + END_LIMIT
        self._deadline = time.monotonic() + limit

    def run(self) -> Collected:
        """Run the launch as `Conversation.run` does. Also raises `RankTimeoutError`."""
        collected = super().run()
        if collected.outcome is not None:
            collected.outcome = untrusted_data.cleaned(collected.outcome, self.spec.world_size)
        return collected

    def _read_some(self, patience: float | None) -> bool:
        left = self._deadline - time.monotonic()
        if left <= 0:
            text = "the ranks did not finish in time, and their stacks could not be read."
            raise RankTimeoutError(text, running=[])
        return super()._read_some(left if patience is None else min(patience, left))

    def _read_pipe(self, reader: int) -> None:
        """Read printed text; after `MOST_PRINTED` bytes of a stream, drop the rest."""
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
        received = self._came.setdefault(channel, bytearray())
        received += data
        at = 0
        while len(received) >= at + HEADER.size:
            tag, size = HEADER.unpack_from(received, at)
            if len(received) < at + HEADER.size + size:
                break
            at += HEADER.size + size
            self._take(channel, rank, tag, received[at - size : at])
        del received[:at]

    def _take(self, channel: socket.socket, rank: int, tag: bytes, body: bytearray) -> None:
        if (rank, tag) in self._received and tag != protocol.ASK:
            return
        self._received.add((rank, tag))
        try:
            if tag == protocol.ASK:
                channel.settimeout(END_LIMIT)  # a rank that does not read must not stop the grader
                self.answer(channel, rank, untrusted_data.opened(body))
                channel.settimeout(None)
                return
            self._open(rank, tag, body, None)
        except Exception as error:  # noqa: BLE001  invalid data of the rank may raise anything
            self._fail(rank, f"sent data that cannot be read: {type(error).__name__}")

    def _open(self, rank: int, tag: bytes, body: bytearray, value: Any) -> None:
        collected, world_size = self.collected, self.spec.world_size
        content = untrusted_data.opened(body)
        if tag == protocol.VALUE:
            collected.values[rank] = content
        elif tag == protocol.FAILURE:
            collected.failures[rank] = untrusted_data.failure(content)
        elif tag == protocol.THREAD_FAILURE:
            collected.thread_failures[rank] = untrusted_data.failure(content)
        elif tag == protocol.RECORDS:
            collected.records.append(untrusted_data.records(content, rank, world_size))

    def _fail(self, rank: int, message: str) -> None:
        self.collected.failures.setdefault(rank, RemoteFailure("result", message, []))
