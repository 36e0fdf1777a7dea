"""The notebook's side of a launch: starts the server, requests ranks, collects their results."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dtlab.errors import LaunchError
from dtlab.ranks import notices, protocol, system
from dtlab.ranks.asking import answered, current_reply
from dtlab.ranks.launch.output import STREAMS, Output, Stream
from dtlab.ranks.plain import decode
from dtlab.ranks.protocol import Outcome, RemoteFailure, Spec, Touch
from dtlab.ranks.transport import Closed, Packed, receive_frame, send_frame, send_request
from dtlab.ranks.words import count_ranks
from dtlab.trace import Records

START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2])\n"
    "from dtlab.ranks.launch.server import main\n"
    "main(int(sys.argv[1]), json.loads(sys.argv[3]), *sys.argv[4:])"
)
FIRST_LAUNCH = "The first launch imports PyTorch; later launches start at once"
LATER_IMPORT = "Modules are imported for the ranks; later launches start at once"
START_LIMIT = 120.0  # seconds that the server may take to import modules
GRADED_FRAME = 256 * 2**20  # bytes: limit of one message of a rank that is not trusted
NOT_FOR_RANKS = ("dtlab.show", "dtlab.cli", "dtlab.magics", "dtlab.__main__")
STOP_LIMIT = 2.0  # seconds to wait until all processes of a launch have ended


class Door(Protocol):
    """The interface of a server that forks ranks."""

    def request(self, kind: bytes, fds: list[int]) -> None:
        """Request a process of this kind, and pass it the file descriptors."""
        ...


class Server:
    """A handle on the warm server of this process; starts the server when it is first needed.

    The server imports `modules` in addition to the modules that every rank needs.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._owner = 0  # id of the process that started the server; its forks must not use it
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._ready = False
        self._shared: set[str] = set()  # modules of dtlab that the server has imported
        self._wanted: set[str] = set()  # modules that it should import, from `share`

    def start(self) -> None:
        """Start the server if it is not running, without waiting until it is ready."""
        with self._lock:
            self._start_if_needed()

    def wait(self) -> None:
        """Wait until the server can fork ranks. Raises LaunchError if it does not start."""
        with self._lock:
            self._wait_until_ready(self._start_if_needed())

    def include(self, *modules: str) -> None:
        """Import these modules in the server too; a server that runs without them is replaced."""
        with self._lock:
            if not {*modules} <= {*self._modules}:
                self._modules = (*dict.fromkeys([*self._modules, *modules]),)
                self._forget()

    def share(self, *modules: str) -> None:
        """Import modules of dtlab, or slow ones, in the server before the next launch."""
        with self._lock:
            self._wanted |= {*modules}

    def adopt(self, sock: socket.socket) -> None:
        """Use a running server, which another process has forked for this one."""
        with self._lock:
            self._socket, self._owner, self._ready = sock, os.getpid(), True

    def request(self, kind: bytes, fds: list[int]) -> None:
        """Send a request with its file descriptors to the server; restart it if it has ended.

        Raises LaunchError if the server does not start.
        """
        with self._lock:
            for last_try in (False, True):
                sock = self._start_if_needed()
                try:
                    self._wait_until_ready(sock)
                    self._share_modules(sock)
                    send_request(sock, kind, fds)
                    return
                except ConnectionError:
                    self._forget()
                    if last_try:
                        raise

    def stop(self) -> None:
        """End the server and the ranks that it still runs."""
        with self._lock:
            self._forget()

    def _start_if_needed(self) -> socket.socket:
        alive = self._process is None or self._process.poll() is None
        if alive and self._socket is not None and self._owner == os.getpid():
            return self._socket
        self._forget()
        ours, theirs = socket.socketpair()
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        # Most notebooks train a model, and creating the first optimizer should not take seconds.
        soon = json.dumps(protocol.SLOW_MODULES[:1] if system.in_a_kernel() else [])
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs.fileno()), path, soon, *self._modules],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **system.compiler_cache(os.environ), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        self._socket, self._owner, self._ready = ours, os.getpid(), False
        return ours

    def _wait_until_ready(self, sock: socket.socket) -> None:
        self._ready = self._ready or self._tells_ready(sock, FIRST_LAUNCH)
        if not self._ready:
            stderr = self._last_words()
            raise LaunchError(f"the server that forks ranks did not start. It printed:\n{stderr}")

    def _tells_ready(self, sock: socket.socket, words: str) -> bool:
        """Wait, with a notice of these words, until the server has imported its modules."""
        deadline = time.monotonic() + START_LIMIT
        sock.settimeout(notices.PATIENCE)
        try:
            with notices.notice(words):
                while time.monotonic() < deadline:
                    try:
                        return sock.recv(1) == protocol.READY
                    except TimeoutError:
                        notices.tick()
        finally:
            sock.settimeout(None)
        return False

    def _share_modules(self, sock: socket.socket) -> None:
        """Make the server import this process's dtlab modules, so that ranks need not import them.

        Ranks draw no figures, so the drawing modules, which take long to import, are left out.
        """
        ours = {name for name in list(sys.modules) if name.startswith("dtlab.")}
        ours = {name for name in ours if not name.startswith(NOT_FOR_RANKS)} | self._wanted
        fresh = ours - self._shared
        if fresh:
            reader, writer = os.pipe()
            with open(writer, "wb") as pipe, open(reader, "rb"):
                pipe.write("\n".join(sorted(fresh)).encode())
                pipe.flush()
                send_request(sock, protocol.MODULES, [reader])
            self._shared |= fresh
            if not self._tells_ready(sock, LATER_IMPORT):  # so no time limit includes it
                raise ConnectionError("the server ended while it imported modules")

    def _last_words(self) -> str:
        process = self._process
        if process is None or process.stderr is None:
            return ""
        process.kill()
        text = process.stderr.read().decode(errors="replace").strip()[-2000:]
        self._forget()
        return text

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None and self._owner == os.getpid():
            try:
                self._process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stderr:
                self._process.stderr.close()
        self._process = self._socket = None
        self._shared = set()


SERVER = Server()  # one warm server per process: one of dtlab's two pieces of global state
atexit.register(SERVER.stop)


@dataclass
class Collected:
    """Everything that one launch has sent back."""

    values: list[Any]
    failures: dict[int, RemoteFailure] = field(default_factory=dict)
    thread_failures: dict[int, RemoteFailure] = field(default_factory=dict)
    records: list[Any] = field(default_factory=list)
    touches: dict[int, list[Touch]] = field(default_factory=dict)  # by rank
    outcome: Outcome | None = None


class Conversation:
    """The notebook's side of one launch: requests ranks, and reads until they have ended."""

    def __init__(
        self,
        spec: Spec,
        call: Packed,
        output: Output,
        inputs: Sequence[Packed] = (),
        server: Door = SERVER,
    ) -> None:
        self.spec, self.call, self.output = spec, call, output
        self.inputs, self.server = inputs, server
        self.collected = Collected([None] * spec.world_size)
        self.channels: dict[socket.socket, int] = {}
        self.pipes: dict[int, tuple[int, Stream]] = {}

    def run(self) -> Collected:
        """Run the launch; return when the ranks have ended or are about to exit."""
        begun = time.monotonic()
        self.control, theirs = socket.socketpair()
        try:
            self._ask(theirs)
            self.call.send(self.control, protocol.CALL)
            self._send_inputs()
            with self.running(begun):
                while self.collected.outcome is None:
                    self._read_some(notices.patience(self.output.patience()))
                    self.show_progress()
            while self._read_some(0):
                pass  # data that was still in the sockets when the ranks ended
        except (Closed, ConnectionError) as error:
            raise LaunchError(
                "the supervisor process of the ranks has ended; it was probably killed. "
                "Run the cell again."
            ) from error
        finally:
            self._close()
        return self.collected

    def running(self, begun: float) -> contextlib.AbstractContextManager[None]:
        """In a notebook, a notice for ranks that show nothing for two seconds.

        `begun` is the time at which the notebook began to wait for them.
        """
        if not system.in_a_kernel():
            return contextlib.nullcontext()
        now = time.monotonic()
        since = begun if now - begun < notices.SILENCE else now  # else the server had a notice
        words = f"{count_ranks(self.spec.world_size)} running"
        return notices.notice(words, if_silent=True, since=since)

    def show_progress(self) -> None:
        """Show the output that is due, or the notice of a launch that shows nothing."""
        if self.output.show_if_due():
            notices.heard()
        notices.tick()

    def _ask(self, theirs: socket.socket) -> None:
        """Request the ranks; `theirs` is the supervisor's end of the control socket."""
        fds = [theirs.detach(), *self._open_ends()]
        try:
            self.server.request(protocol.LAUNCH, fds)
        finally:
            for fd in fds:
                os.close(fd)
        send_frame(self.control, protocol.SPEC, pickle.dumps(self.spec))

    def _send_inputs(self) -> None:
        for channel, packed in zip(self.channels, self.inputs, strict=False):
            with contextlib.suppress(ConnectionError):  # the rank has died; the outcome reports it
                packed.send(channel, protocol.INPUT)

    def _open_ends(self) -> list[int]:
        """Open a channel and two pipes per rank; keep this side, and return the ranks' side."""
        theirs = []
        for rank in range(self.spec.world_size):
            channel, far = socket.socketpair()
            self.channels[channel] = rank
            theirs.append(far.detach())
            writers: dict[Stream, int] = {}
            for stream in STREAMS:
                reader, writers[stream] = os.pipe()
                self.pipes[reader] = (rank, stream)
            theirs += [writers["out"], writers["err"]]
        return theirs

    def _read_some(self, patience: float | None) -> bool:
        """Read all available data, in the order of the ranks; False if there was none."""
        poller = select.poll()
        for fd in [*self.pipes, *(sock.fileno() for sock in [*self.channels, self.control])]:
            poller.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(None if patience is None else patience * 1000)}
        for reader in [reader for reader in self.pipes if reader in ready]:
            self._read_pipe(reader)
        for channel in [channel for channel in self.channels if channel.fileno() in ready]:
            self._read_channel(channel)
        if self.control.fileno() in ready and self.collected.outcome is None:
            self._take_control(*receive_frame(self.control))
            return True
        return bool(ready - {self.control.fileno()})

    def _take_control(self, tag: bytes, body: bytearray) -> None:
        """Handle a message of the supervisor; in a launch it is the outcome."""
        self.collected.outcome = pickle.loads(body)

    def _read_pipe(self, reader: int) -> None:
        data = os.read(reader, 65536)
        if data:
            self.output.feed(*self.pipes[reader], data)
        else:
            os.close(reader)
            del self.pipes[reader]

    def _read_channel(self, channel: socket.socket) -> None:
        rank = self.channels[channel]
        try:
            tag, body = receive_frame(channel, GRADED_FRAME if self.spec.graded else None)
            value = None
            if tag == protocol.VALUE and not self.spec.graded:
                value = Packed.receive(channel, body)
        except (Closed, ConnectionError):
            channel.close()
            del self.channels[channel]
            return
        try:
            if tag == protocol.ASK:
                self.answer(channel, rank, decode(body))
            else:
                self._open(rank, tag, body, value)
        except Exception as error:  # noqa: BLE001  unpickling may run any code
            self.collected.failures[rank] = cannot_be_unpickled(error)

    def answer(self, channel: socket.socket, rank: int, message: Any) -> None:
        """Answer a question of a rank (asking.py)."""
        with contextlib.suppress(OSError):  # the rank has died; the outcome reports it
            send_frame(channel, protocol.REPLY, answered(current_reply(), rank, message))

    def _open(self, rank: int, tag: bytes, body: bytearray, value: Packed | None) -> None:
        collected = self.collected
        if tag == protocol.VALUE:
            collected.values[rank] = value.load() if value else decode(body)
            return
        fields = decode(body)
        if tag == protocol.FAILURE:
            collected.failures[rank] = RemoteFailure.of(fields)
        elif tag == protocol.THREAD_FAILURE:
            collected.thread_failures.setdefault(rank, RemoteFailure.of(fields))
        elif tag == protocol.RECORDS:
            collected.records.append(Records.of(fields, rank, self.spec.world_size))
        elif tag == protocol.TOUCHES:
            collected.touches[rank] = [Touch(*touch) for touch in fields]

    def _ended_well(self) -> bool:
        """Whether the ranks end by themselves, so that the notebook need not wait for them."""
        outcome = self.collected.outcome
        return outcome is not None and outcome.reason == "returned"

    def _close(self) -> None:
        """Close the control socket; wait until the supervisor has killed remaining processes."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
            self.control.settimeout(STOP_LIMIT)
            while not self._ended_well() and self.control.recv(65536):
                pass
        for sock in [self.control, *self.channels]:
            sock.close()
        for reader in self.pipes:
            os.close(reader)
        self.pipes.clear()
        self.output.finish()


def cannot_be_unpickled(error: Exception) -> RemoteFailure:
    """The failure of a rank whose results raise `error` when they are unpickled."""
    text = f"returned something that cannot be unpickled here: {type(error).__name__}: {error}"
    return RemoteFailure("result", text, [])
