"""The rank process: joins the group, runs the function, returns the result.

A rank is forked from its supervisor and never returns into the supervisor's code. It ends by
`os._exit`, which is fast and cannot hang on a thread that is still running.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

import numpy as np
import setproctitle
import torch
import torch.distributed as dist

from dtlab.ranks import asking, protocol, system
from dtlab.ranks.emulate.interconnect import Wire
from dtlab.ranks.emulate.ports import Ports
from dtlab.ranks.launch.init_calls import InitCalls
from dtlab.ranks.launch.known_errors import frames_in_text, in_words
from dtlab.ranks.plain import encode
from dtlab.ranks.protocol import Frame, RemoteFailure, Spec
from dtlab.ranks.record.recorder import RECORD_LIMIT, Recorder
from dtlab.ranks.sandbox.isolation import Isolation, confine
from dtlab.ranks.transport import Packed, pack, receive_frame, send_frame
from dtlab.ranks.watch import stacks
from dtlab.ranks.watch.announcer import Announcer
from dtlab.ranks.watch.board import Board
from dtlab.trace import Records

_init_process_group = dist.init_process_group  # PyTorch's function; init_calls.py replaces it

GROUP_PATIENCE = timedelta(days=1)  # dtlab's time limit ends a rank long before the backend's does
THREAD_STACKS = 64 * 2**20  # bytes added to the memory limit, for stacks of helper threads


class Ends(NamedTuple):
    """A rank's ends of the sockets and pipes to other processes, and the memory shared with them.
    """

    notebook: list[int]  # descriptors: the channel for results, stdout, stderr
    status: socket.socket  # to the supervisor, for letters
    store: socket.socket  # where rank 0 listens for the rendezvous
    stack_writer: int  # pipe for its stack trace, when the supervisor requests it
    board: Board
    ports: Ports | None  # of the emulated interconnect
    cutter: socket.socket | None = None  # for a session: requests to cut its connections


def run_rank(
    rank: int,
    spec: Spec,
    call: Packed | None,
    ends: Ends,
    isolation: Isolation | None = None,
    stay: Callable[[int, Spec, Ends, RankResult], None] | None = None,
) -> NoReturn:
    """Run rank `rank`, from the fork to the end of the process.

    Without a `call`, the rank runs `stay`, which executes many calls in turn (session/rank.py).
    """
    code = 1
    try:
        system.die_with_parent()
        channel, out, err = ends.notebook
        sockets = [sock.fileno() for sock in (ends.status, ends.store, ends.cutter) if sock]
        _close_all_but({*ends.notebook, *sockets, ends.stack_writer})
        if isolation:
            confine(isolation, rank)
        _become_ordinary(rank, spec, out, err, ends.stack_writer)
        os.environ[protocol.STATUS_FD] = str(ends.status.fileno())
        outcome = RankResult(socket.socket(fileno=channel), ends.status, spec.graded)
        threading.excepthook = outcome.thread_failed
        asking.connect(outcome.channel, outcome.sending)
        try:
            if call is None:
                assert stay is not None
                stay(rank, spec, ends, outcome)
                os._exit(0)
            _take_part(rank, spec, call, ends, outcome)
        except BaseException as error:  # noqa: BLE001  an error of dtlab, for instance while joining the group
            outcome.failure = describe(error)
            outcome.recorder = None  # the recorder may have raised the error
            outcome.deliver()
        ends.status.recv(1)  # LEAVE: peers may still need this rank's connections
        code = 0
    finally:
        os._exit(code)


def _take_part(rank: int, spec: Spec, call: Packed, ends: Ends, outcome: RankResult) -> None:
    """Join the process group, wait for the other ranks, run the function, deliver the result."""
    init_calls = InitCalls(rank, spec, init_group)
    with outcome.catching():
        function, args = call.load()
        if spec.inputs:
            _, body = receive_frame(outcome.channel)
            args = (*args, Packed.receive(outcome.channel, body).load())
        fill_main(function)
    init_calls.store = join(rank, spec, ends.store)
    outcome.status.send(protocol.READY)
    if outcome.status.recv(1) != protocol.GO:
        return
    announcer = Announcer(ends.board.writer(rank), spec.world_size)
    wire = Wire(rank, ends.ports) if ends.ports else None
    watched = spec.trace or protocol.UNWATCHED not in os.environ
    if watched or wire:
        limit = RECORD_LIMIT if spec.trace else 0
        announced_by = announcer if watched else None
        looks = spec.looks_at_buffers
        outcome.recorder = Recorder(
            rank, limit=limit, announcer=announced_by, wire=wire, watch_buffers=looks
        )
    MemoryLimit(spec.memory_limit).impose()
    if not outcome.failure:
        if outcome.recorder:
            outcome.recorder.start()
        with outcome.catching():
            outcome.value = function(*args)
            announcer.left()
    outcome.deliver()


class RankResult:
    """The result of the function, and its delivery to the notebook."""

    def __init__(self, channel: socket.socket, status: socket.socket, graded: bool) -> None:
        self.channel = channel
        self.status = status
        self.graded = graded
        self.sending = threading.Lock()  # threads may fail while results are being sent
        self.recorder: Recorder | None = None  # kept alive: it holds sends that are not complete
        self.value: Any = None
        self.failure: RemoteFailure | None = None
        self.not_warm = [name for name in protocol.SLOW_MODULES if name not in sys.modules]

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001  every exception is reported to the learner
            self.failure = describe(error)

    def thread_failed(self, args: threading.ExceptHookArgs) -> None:
        """Report an exception that ended a thread: it may explain why other ranks wait.

        It is not printed here, because it may be a consequence of what the launch's error reports.
        """
        if args.exc_value is not None and args.exc_type is not SystemExit:
            with self.sending:
                self._send(protocol.THREAD_FAILURE, describe(args.exc_value))

    def deliver(self, last: bool = True) -> None:
        """Send the value or the failure, and the records; `last` also stops the recorder."""
        with self.sending:
            self._deliver(last)

    def _deliver(self, last: bool) -> None:
        recorder = self.recorder
        flush()
        self.status.send(protocol.RAISED if self.failure else protocol.RETURNED)
        resource.setrlimit(resource.RLIMIT_DATA, _UNLIMITED)
        if recorder:
            self._send(protocol.RECORDS, recorder.stop() if last else recorder.take())
            send_frame(self.channel, protocol.TOUCHES, encode(recorder.touches))
        if not self.failure:
            try:
                self._send_value()
            except Exception as error:  # noqa: BLE001  pickling may run any code
                self.failure = describe(error, kind="result", value=self.value)
                self.status.send(protocol.RAISED)
        if self.failure:
            self._send(protocol.FAILURE, self.failure)
        if any(name in sys.modules for name in self.not_warm):
            self.status.send(protocol.IMPORTED)
        self.status.send(protocol.DELIVERED)

    def _send(self, tag: bytes, record: RemoteFailure | Records) -> None:
        """Send the fields of a record."""
        send_frame(self.channel, tag, encode(tuple(vars(record).values())))

    def _send_value(self) -> None:
        if self.graded:
            send_frame(self.channel, protocol.VALUE, encode(self.value))
        else:
            pack(self.value).send(self.channel, protocol.VALUE)


_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


# ---------------------------------------------------------------------------- becoming a rank


def _close_all_but(keep: set[int]) -> None:
    start = 3
    for fd in sorted(keep):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def _become_ordinary(rank: int, spec: Spec, out: int, err: int, stack_writer: int) -> None:
    """Undo the supervisor's settings, and set the notebook's environment and import paths."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no core file
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout = open(1, "w", 1, "utf-8", "replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "replace", closefd=False)  # noqa: SIM115
    stacks.report_on_signal(stack_writer)
    stacks.report_before_ending(stack_writer)
    setproctitle.setproctitle(f"{protocol.RANK_TITLE} {rank}")
    os.environ.clear()
    os.environ.update(spec.environment)
    os.environ.update(_rank_environment(rank, spec))
    os.chdir(spec.folder)
    sys.path[:] = spec.path
    torch.set_num_threads(spec.threads)
    _seed(spec.seed_of(rank))


def _seed(seed: int) -> None:
    """Seed the global generators of torch, NumPy and random."""
    if system.has_nvidia_driver():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)  # same effect, and saves 2 ms for devices
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


def _rank_environment(rank: int, spec: Spec) -> dict[str, str]:
    loopback = "lo" if system.LINUX else "lo0"
    per_node = spec.cluster.gpus_per_node if spec.cluster else spec.world_size
    node, local_rank = divmod(rank, per_node)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(min(per_node, spec.world_size - node * per_node)),
        "GROUP_RANK": str(node),
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        **system.compiler_cache(spec.environment),
        protocol.IN_RANK: str(rank),
    }


def fill_main(function: Any) -> None:
    """Copy the notebook's names into `__main__` of this process.

    When ranks exchange objects of a class that a cell defines, pickle looks up the class there.
    """
    main = sys.modules["__main__"]
    names = getattr(function, "__globals__", {})
    vars(main).update({k: v for k, v in names.items() if not k.startswith("__")})


def join(rank: int, spec: Spec, listener: socket.socket) -> Any:
    """Initialise the default process group, and return its store.

    The supervisor created the listening socket before it forked the ranks.
    """
    port = listener.getsockname()[1]
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        port,
        spec.world_size,
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=listener.detach() if rank == 0 else None,
    )
    if rank != 0:
        listener.close()
    if "nccl" in spec.backend:
        torch.cuda.set_device(rank)
    init_group(rank, spec, store)
    return store


def init_group(rank: int, spec: Spec, store: Any) -> None:
    """Initialise the default process group with a store that no other group has used."""
    _init_process_group(
        spec.backend, store=store, rank=rank, world_size=spec.world_size, timeout=GROUP_PATIENCE
    )


class MemoryLimit:
    """A limit on private memory: `limit` bytes more than are in use at construction."""

    def __init__(self, limit: int | None) -> None:
        self._ceiling: int | None = None
        if limit is not None:
            with open("/proc/self/status") as lines:
                used = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
            self._ceiling = used * 1024 + limit + THREAD_STACKS

    def impose(self) -> None:
        """Set the limit, which holds until `RankResult.deliver`."""
        if self._ceiling is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (self._ceiling, resource.RLIM_INFINITY))


def flush() -> None:
    """Flush stdout and stderr of this rank."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


# ---------------------------------------------------------------------------- failures


class RaisedApart(Exception):
    """An exception of a fork of this rank (apart.py), which `describe` returns as it was there."""

    def __init__(self, failure: RemoteFailure) -> None:
        super().__init__(failure.message)
        self._failure = failure

    def described(self) -> RemoteFailure:
        """The failure, with the notes that were added to this exception."""
        notes = "".join(f"\n{note}" for note in getattr(self, "__notes__", ()))
        (frames, text), *causes = self._failure.chain
        chain = [(frames, text + notes), *causes]
        return RemoteFailure(self._failure.kind, self._failure.message + notes, chain)


def describe(error: BaseException, kind: str = "", value: Any = None) -> RemoteFailure:
    """An exception as plain data, with its causes."""
    if isinstance(error, RaisedApart):
        return error.described()
    chain: list[tuple[list[Frame], str]] = []
    cause: BaseException | None = error
    while cause is not None and len(chain) < 5:
        frames = [
            Frame(f.filename, f.lineno or 0, f.name)
            for f in traceback.extract_tb(cause.__traceback__)
        ]
        frames = [f for f in frames if f.file != __file__]
        inner, text = frames_in_text("".join(traceback.format_exception_only(cause)).strip())
        chain.append((frames + inner, text))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    message = in_words(error, chain[0][1])
    if kind == "result":
        message = f"returned a {type(value).__name__}, which cannot be sent back: {message}"
    return RemoteFailure(kind or _kind(error), message, chain)  # type: ignore[arg-type]


def _kind(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "exit"
    text = str(error)
    out_of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError)
        and ("can't allocate memory" in text or "bad_alloc" in text)
    )
    return "memory" if out_of_memory else "exception"
