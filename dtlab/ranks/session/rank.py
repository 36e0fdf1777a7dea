"""A rank of a session: joins the process group, then runs turns until it is told to exit."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import socket
import sys
import threading
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from dtlab.ranks import cells, protocol
from dtlab.ranks.emulate.interconnect import Wire
from dtlab.ranks.launch import process
from dtlab.ranks.launch.init_calls import InitCalls
from dtlab.ranks.plain import encode
from dtlab.ranks.record.recorder import RECORD_LIMIT, Recorder
from dtlab.ranks.transport import Packed, receive_frame, send_frame
from dtlab.ranks.watch.announcer import Announcer
from dtlab.torch_internals import abort_process_groups

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["run_cell", "set_name", "stay", "value_of"]

_STAYING: list[Staying] = []  # the object of this process, for `run_cell`


def stay(rank: int, spec: protocol.Spec, ends: process.Ends, outcome: process.RankResult) -> None:
    """Run rank `rank` of a session until the supervisor ends, or tells it to exit."""
    staying = Staying(rank, spec, ends, outcome)
    _STAYING.append(staying)
    staying.serve()


class Staying:
    """The state of a session's rank, from the first turn to the last."""

    def __init__(
        self, rank: int, spec: protocol.Spec, ends: process.Ends, outcome: process.RankResult
    ) -> None:
        self.rank, self.spec, self.outcome = rank, spec, outcome
        self.in_turn = False
        self.shell: InteractiveShell | None = None
        self._init_calls = InitCalls(rank, spec, process.init_group)
        self.store = process.join(rank, spec, ends.store)  # kept alive: rank 0's store is a server
        self._init_calls.store = self.store
        self._times_joined = 1
        self._limits = process.MemoryLimit(spec.memory_limit)
        self._announcer = Announcer(ends.board.writer(rank), spec.world_size)
        self._wire = Wire(rank, ends.ports) if ends.ports else None
        outcome.recorder = self._recorder = self._new_recorder()
        assert ends.cutter is not None
        self._cutter = Cutter(ends.cutter, int(os.environ["MASTER_PORT"]), "nccl" in spec.backend)
        self._cutter.start()
        signal.signal(signal.SIGINT, self._interrupted)

    def _new_recorder(self) -> Recorder:
        limit = RECORD_LIMIT if self.spec.trace else 0
        return Recorder(
            self.rank,
            limit=limit,
            announcer=self._announcer,
            wire=self._wire,
            watch_buffers=self.spec.looks_at_buffers,
        )

    def _interrupted(self, *_: object) -> None:
        """Raise KeyboardInterrupt for a signal, but only while a turn runs."""
        if self.in_turn:
            raise KeyboardInterrupt

    def serve(self) -> None:
        """Run turns until the supervisor sends another letter."""
        self._recorder.start()
        self.outcome.status.send(protocol.READY)
        while True:
            letter = self.outcome.status.recv(1)
            if letter == protocol.GO:
                self._take_turn()
            elif letter == protocol.REJOIN:
                self._rejoin()
            else:
                return

    def _take_turn(self) -> None:
        outcome = self.outcome
        _, body = receive_frame(outcome.channel)
        packed = Packed.receive(outcome.channel, body)
        outcome.value, outcome.failure = None, None
        self._limits.impose()
        try:
            with outcome.catching():
                function, args = packed.load()
                function = at_home(function)
                self.in_turn = True
                outcome.value = function(*args)
                self.in_turn = False
        except KeyboardInterrupt as error:  # raised while another exception was being described
            outcome.failure = process.describe(error)
        self.in_turn = False
        self._announcer.left()
        outcome.deliver(last=False)

    def _rejoin(self) -> None:
        """Replace the process group, whose connections have been cut, by a new one."""
        self._recorder.stop()
        # References to the old group, as in frames of errors, keep its ports and threads alive.
        self.outcome.recorder = self._recorder = self._new_recorder()
        self._announcer.forget_groups()
        with contextlib.suppress(Exception):  # the group is broken
            dist.destroy_process_group()
        gc.collect()
        self._times_joined += 1
        c10d: Any = dist  # has no complete type stubs
        port, ranks = int(os.environ["MASTER_PORT"]), self.spec.world_size
        client = c10d.TCPStore("127.0.0.1", port, ranks, False, wait_for_workers=False)
        store = c10d.PrefixStore(f"{self._times_joined}", client)
        process.init_group(self.rank, self.spec, store)
        self._init_calls.store = store
        self._cutter.speak()
        self._recorder.start()
        self.outcome.status.send(protocol.READY)

    def show(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Send rich output to the notebook, after the text that was printed before."""
        if {*data} == {"text/plain"}:
            print(data["text/plain"])
            return
        process.flush()
        plain = {kind: _plain(content) for kind, content in data.items()}
        with self.outcome.sending:
            send_frame(self.outcome.channel, protocol.SHOWN, encode((plain, _plain(metadata))))


def run_cell(source: str, name: str) -> None:
    """In a rank: run the source of a cell, whose file is `name`."""
    staying = _STAYING[0]
    if staying.shell is None:
        staying.shell = cells.new_shell(sys.modules["__main__"])
        # Without this, line numbers would differ from those in the notebook.
        staying.shell.input_transformer_manager.cleanup_transforms.pop(0)
    error = cells.run(staying.shell, source, name, staying.show)
    if error is not None:
        raise error


def set_name(name: str, value: Any) -> None:
    """In a rank: set a variable."""
    vars(sys.modules["__main__"])[name] = value


def value_of(expression: str) -> Any:
    """In a rank: the value of a variable or expression."""
    code = compile(expression, f"pull({expression!r})", "eval")
    return eval(code, vars(sys.modules["__main__"]))


def at_home(function: Any) -> Any:
    """A copy of a notebook's function, whose globals are the variables of this rank.

    Global names that the notebook defines are copied to this rank first. All other names are
    this rank's own variables; `global` in the function creates them here.
    """
    main, brought = vars(sys.modules["__main__"]), getattr(function, "__globals__", {})
    if not isinstance(function, FunctionType) or function.__module__ != "__main__":
        return function
    moved: dict[Any, Any] = {}

    def move(obj: Any) -> Any:
        if not isinstance(obj, FunctionType) or obj.__globals__ is not brought:
            return obj
        if obj not in moved:
            new = FunctionType(obj.__code__, main, obj.__name__, obj.__defaults__, obj.__closure__)
            new.__kwdefaults__ = obj.__kwdefaults__
            moved[obj] = functools.update_wrapper(new, obj)
            del new.__wrapped__  # type: ignore[attr-defined]
        return moved[obj]

    if brought is not main:
        names = {name: value for name, value in brought.items() if not name.startswith("__")}
        main.update({name: move(value) for name, value in names.items()})
    return move(function)


class Cutter(threading.Thread):
    """A thread that cuts this rank's connections to its peers on request.

    A signal cannot interrupt a thread that waits for a collective in C++. When its connection is
    cut, the collective raises an exception.
    """

    def __init__(self, line: socket.socket, store_port: int, has_nccl: bool) -> None:
        super().__init__(name="dtlab-cutter", daemon=True)
        self._line, self._store_port, self._has_nccl = line, store_port, has_nccl
        self._stderr = -1

    def silence(self) -> None:
        """Drop the messages that C++ writes to stderr when its store connection is cut."""
        if self._stderr < 0:
            self._stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)

    def speak(self) -> None:
        """Restore stderr after `silence`."""
        if self._stderr >= 0:
            os.dup2(self._stderr, 2)
            os.close(self._stderr)
            self._stderr = -1

    def run(self) -> None:
        """Cut connections whenever the supervisor sends a letter (see `protocol`)."""
        while letter := self._line.recv(1):
            if letter == protocol.CUT and self._has_nccl:
                with contextlib.suppress(Exception):
                    abort_process_groups()
            elif letter == protocol.CUT_STORE:
                self.silence()
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    self._cut(int(name), letter == protocol.CUT_STORE)

    def _cut(self, fd: int, of_store: bool) -> None:
        sock = socket.socket(fileno=fd)  # raises OSError if `fd` is not a socket
        try:
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                return
            ports = {sock.getpeername()[1], sock.getsockname()[1]}
            local = sock.getpeername()[0] in ("127.0.0.1", "::1", "::ffff:127.0.0.1")
            if local and (self._store_port in ports) == of_store:
                sock.shutdown(socket.SHUT_RDWR)
        finally:
            sock.detach()  # its owner closes it


def _plain(content: Any) -> Any:
    """Convert an object's rich output to plain data; other values become text."""
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_plain(value) for value in content]
    known = isinstance(content, (str, bytes, int, float, bool, type(None)))
    return content if known else str(content)
