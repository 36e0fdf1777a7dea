"""The connection between the notebook and the ranks of a session."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from dtlab.errors import LaunchError
from dtlab.ranks import protocol
from dtlab.ranks.launch import client
from dtlab.ranks.launch.output import Output
from dtlab.ranks.plain import decode
from dtlab.ranks.protocol import Spec, Turn
from dtlab.ranks.transport import Closed, Packed, pack, send_frame
from dtlab.ranks.watch import explain

__all__ = ["Line"]

MOST_LOOKS = 1000  # reads of data that is still in the sockets
LOOK_EVERY = 0.1  # seconds between two checks for Ctrl-C
GATHER = 0.3  # seconds for which figures are collected
STOP_LIMIT = 8.0  # seconds within which an interrupted turn must end


class Line(client.Conversation):
    """The sockets and pipes between the notebook and the ranks of a session."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec, pack(None), Output(spec.world_size))
        self._opened = self._hung_up = False
        self._shown: list[tuple[int, dict[str, Any], Any]] = []  # rich output, not displayed yet
        self._show_at = 0.0

    def open(self) -> Exception | None:
        """Start the ranks; return the error if they could not start, or None."""
        self.control, theirs = socket.socketpair()
        self._ask(theirs)
        while not self._opened and self.collected.outcome is None:
            self._read_some(self.output.patience())
            self.output.show_if_due()
        if self._opened:
            return None
        text = self.output.kept
        error = explain.error_of(self.collected, self.spec, text("out"), text("err"))
        return error or LaunchError("the ranks did not form a process group within a minute.")

    def turn(self, turn: Turn, call: Packed, output: Output) -> bool:
        """Run a call on ranks; return whether Ctrl-C was pressed. `collected` has the results."""
        self.output = output
        self.collected = client.Collected([None] * self.spec.world_size)
        with _ctrl_c() as pressed:
            try:
                send_frame(self.control, protocol.TURN, pickle.dumps(turn))
                by_rank = {rank: channel for channel, rank in self.channels.items()}
                for rank in turn.ranks:
                    if rank in by_rank:
                        with contextlib.suppress(ConnectionError):  # died; the outcome reports it
                            call.send(by_rank[rank], protocol.CALL)
                self._read_all(pressed)
            except (Closed, ConnectionError) as error:
                if self._hung_up:
                    raise LaunchError("the session was closed during this call.") from None
                raise LaunchError(
                    "the supervisor process of the ranks has ended; it was probably killed. "
                    "The session is closed; session.restart() starts new ranks."
                ) from error
            finally:
                self._show_gathered()
                self.output.finish()
        return bool(pressed)

    def _read_all(self, pressed: list[float]) -> None:
        with self.running(time.monotonic()):
            self._read_until_the_end(pressed)
        for _ in range(MOST_LOOKS):  # bounded, because a rank's thread may print without end
            if not self._read_some(0):  # data that was in the sockets when the last rank ended
                break

    def _read_until_the_end(self, pressed: list[float]) -> None:
        stopping = False
        while self.collected.outcome is None:
            patience = self.output.patience()
            self._read_some(LOOK_EVERY if patience is None else min(patience, LOOK_EVERY))
            self.show_progress()
            if self._shown and time.monotonic() > self._show_at:
                self._show_gathered()
            if pressed and not stopping:
                stopping = True
                send_frame(self.control, protocol.STOP)
            if pressed and (len(pressed) > 1 or time.monotonic() > pressed[0] + STOP_LIMIT):
                raise KeyboardInterrupt

    def _take_control(self, tag: bytes, body: bytearray) -> None:
        if tag == protocol.OPENED:
            self._opened = True
        else:
            super()._take_control(tag, body)

    def _open(self, rank: int, tag: bytes, body: bytearray, value: Packed | None) -> None:
        if tag == protocol.SHOWN:
            self._read_printed(rank)
            self._shown.append((rank, *decode(body)))
            if len(self._shown) == 1:
                self._show_at = time.monotonic() + GATHER
        else:
            super()._open(rank, tag, body, value)

    def _show_gathered(self) -> None:
        """Display the collected rich output, rank by rank."""
        for shown in sorted(self._shown, key=lambda entry: entry[0]):
            _show(*shown, self.output)
        self._shown.clear()

    def _read_printed(self, rank: int) -> None:
        """Read the text that the rank has printed before its rich output."""
        for _ in range(MOST_LOOKS):
            readers = [reader for reader, (source, _) in self.pipes.items() if source == rank]
            ready = select.select(readers, [], [], 0)[0]
            if not ready:
                break
            for reader in ready:
                self._read_pipe(reader)

    def hang_up(self) -> None:
        """Tell the supervisor to end the session; can be called from any thread."""
        self._hung_up = True
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the ranks, and close all sockets and pipes."""
        self.hang_up()
        with contextlib.suppress(OSError):
            self.control.settimeout(client.STOP_LIMIT)
            while self.control.recv(65536):
                pass
        for sock in [self.control, *self.channels]:
            sock.close()
        for reader in self.pipes:
            os.close(reader)
        self.channels.clear()
        self.pipes.clear()


@contextlib.contextmanager
def _ctrl_c() -> Iterator[list[float]]:
    """Record the times of Ctrl-C instead of raising, so that each message is read completely."""
    pressed: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(time.monotonic()))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _show(rank: int, data: dict[str, Any], metadata: Any, output: Output) -> None:
    """Display rich output of one rank below the rank's name; in a terminal, print its text."""
    if "IPython" not in sys.modules:
        output.feed(rank, "out", (str(data.get("text/plain", "")) + "\n").encode())
        return
    from IPython.display import display

    output.feed(rank, "out", b"\n")
    output.show_now()
    display(data, metadata=metadata, raw=True)
