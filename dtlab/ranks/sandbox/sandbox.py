"""The grader's interface to a sandbox: launches ranks and runs notebook cells in it.

    with Sandbox(server, isolation) as sandbox:      # about 30 ms, once the server is warm
        notebook = sandbox.start_notebook()          # a process for the cells of one notebook
        notebook.run(1, "x = 6 * 7", limit=30)       # outputs in the format of nbformat
        notebook.take("x")                           # [42]
        Conversation(spec, call, output, inputs, sandbox).run()     # ranks, as client.py does
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
from dtlab.ranks.sandbox.isolation import HOME, Isolation
from dtlab.ranks.sandbox.time_limits import Patience
from dtlab.ranks.sandbox.untrusted_data import TooMuch, opened, spoken
from dtlab.ranks.transport import HEADER, Closed, receive_frame, send_frame, send_request

__all__ = ["NotebookEnded", "NotebookHung", "NotebookProcess", "Sandbox"]

START_LIMIT = 20.0  # seconds
END_LIMIT = 60.0  # seconds until all processes in the sandbox have ended: there may be many
TAKE_LIMIT = 10.0  # seconds to pickle a function
TOLD_LIMIT = 3.0  # seconds from the end of a notebook's process until its parent has reported it
DONE_BYTES, TAKEN_BYTES = 8 * 2**20, 64 * 2**20  # maximum lengths of answers
STATUS_BYTES = 16
_ENDS = {
    signal.SIGSEGV: "it crashed: it accessed invalid memory",
    signal.SIGABRT: "it aborted",
    signal.SIGBUS: "it crashed: it accessed a mapped file beyond its end",
    signal.SIGFPE: "it crashed: invalid arithmetic, such as an integer division by zero",
    signal.SIGILL: "it crashed: invalid machine instruction",
    signal.SIGSYS: "it was ended for a forbidden system call",
}


class NotebookEnded(Exception):
    """The notebook's process has ended, or sent an invalid answer; the message says which."""


class NotebookHung(Exception):
    """A cell was still running at its time limit."""


class Sandbox:
    """A sandbox with a server in it. Closing it ends all processes in the sandbox."""

    def __init__(self, server: Server, isolation: Isolation) -> None:
        """Start the sandbox. Raises `LaunchError`.

        `missing` then names the kinds of isolation that the system does not support.
        """
        self._sock, theirs = socket.socketpair()
        try:
            server.request(protocol.SANDBOX, [theirs.fileno()])
        finally:
            theirs.close()
        try:
            self._sock.settimeout(START_LIMIT)
            send_frame(self._sock, protocol.ISOLATION, pickle.dumps(isolation))
            _, body = receive_frame(self._sock)
        except (OSError, Closed) as error:
            self._sock.close()
            raise LaunchError(f"the sandbox of a submission did not start: {error!r}") from error
        self._sock.settimeout(None)
        missing, group = decode(body)
        self.missing: list[str] = missing
        self._isolation = replace(isolation, missing=tuple(missing))
        self._group = Group(group)

    @property
    def folder(self) -> str:
        """The ranks' working folder: the sandbox's home, or "/" if its files are not isolated."""
        return HOME if self._isolation.has("files") else "/"

    def request(self, kind: bytes, fds: list[int]) -> None:
        """Send a request to the server in the sandbox; see `client.Door`."""
        send_request(self._sock, kind, fds)

    def start_notebook(self) -> NotebookProcess:
        """Start a new process for the cells of one notebook."""
        (line, its_line), (ends, its_ends) = socket.socketpair(), socket.socketpair()
        try:
            self.request(protocol.NOTEBOOK, [its_line.fileno(), its_ends.fileno()])
        finally:
            its_line.close()
            its_ends.close()
        return NotebookProcess(line, ends, self)

    def come_last(self, last: bool) -> None:
        """Reduce the sandbox's share of busy CPUs to a tenth, or restore the usual share."""
        self._group.come_last(last)

    def patience(self, seconds: float) -> Patience:
        """Start a time limit of `seconds`; see `Patience`."""
        group = self._group
        return Patience(seconds, group.pids, group.used, group.waited)

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed a process, because the sandbox exceeded its memory."""
        return self._group.killed() > 0

    def close(self) -> None:
        """End all processes in the sandbox; return when they have ended."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(END_LIMIT)
            while self._sock.recv(4096):
                pass
        self._sock.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NotebookProcess:
    """The process of one notebook, connected by `line`; its wait status arrives on `ends`."""

    def __init__(self, line: socket.socket, ends: socket.socket, sandbox: Sandbox) -> None:
        self._line, self._ends, self._sandbox = line, ends, sandbox

    def run(self, number: int, source: str, limit: float) -> list[dict[str, Any]]:
        """Run a cell, and return its outputs in the format of nbformat, an error last.

        Raises `NotebookHung` after `limit` seconds (see `Patience`), and `NotebookEnded` if the
        process has ended. After either of them the process cannot be used again.
        """
        outputs = self._ask(protocol.CELL, (number, source), protocol.DONE, DONE_BYTES, limit)
        if not isinstance(outputs, list) or not all(isinstance(item, dict) for item in outputs):
            raise NotebookEnded("its answer was not a list of outputs")
        return [{str(key): spoken(value) for key, value in item.items()} for item in outputs]

    def take(self, name: str) -> list[Any]:
        """Return `[value]` for a variable of the notebook, and `[]` if it is not defined.

        Functions come as `PickledFunction`; other objects that are not plain data as `Opaque`.
        Raises the errors of `run`.
        """
        taken = self._ask(protocol.TAKE, name, protocol.TAKEN, TAKEN_BYTES, TAKE_LIMIT)
        if not isinstance(taken, list) or len(taken) > 1:
            raise NotebookEnded("its answer was not a variable's value")
        return taken

    def close(self) -> None:
        """Close the connections, which ends the process."""
        self._line.close()
        self._ends.close()

    def _ask(self, tag: bytes, request: Any, expected: bytes, most: int, limit: float) -> Any:
        """Send a request and return the answer; `limit` is in seconds for the whole answer."""
        patience = self._sandbox.patience(limit)
        try:
            self._line.settimeout(limit)
            send_frame(self._line, tag, encode(request))
            answered, size = HEADER.unpack(self._receive(HEADER.size, patience))
            if answered != expected or size > most:
                raise NotebookEnded("its answer was of the wrong kind, or too long")
            return opened(self._receive(size, patience))
        except TimeoutError:
            raise NotebookHung(f"still running after {limit:g} s") from None
        except OSError:
            raise NotebookEnded(self._how_it_ended()) from None
        except (NotPlain, TooMuch) as error:
            raise NotebookEnded(f"its answer is invalid: {error}") from None

    def _receive(self, size: int, patience: Patience) -> bytearray:
        """Receive `size` bytes. Raises TimeoutError, or OSError if the process has ended."""
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
                raise Closed("the notebook's process has ended")
            part = self._line.recv(min(size - len(data), 2**20))
            if not part:
                raise Closed("the line is closed")
            data += part
        return data

    def _how_it_ended(self) -> str:
        """How the process ended, as a text."""
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
        if code == -signal.SIGKILL and self._sandbox.out_of_memory():
            most = self._sandbox._isolation.memory
            return f"it was killed because its memory limit of {most / 1e9:.1f} GB was exceeded"
        return _ENDS.get(signal.Signals(-code), f"it was ended by {signal.Signals(-code).name}")


def first_user(slot: int) -> int:
    """The first of 512 user ids for a submission, different for each process and slot."""
    return 2_000_000 + (os.getpid() * 16 + slot % 16) * 512 % 1_000_000_000
