"""The warm server: one process per kernel, which has imported PyTorch and forks ranks.

Importing torch takes a second; forking a process that has imported it takes milliseconds. The
server has one thread and no CUDA context, and runs no code of the learner. For each launch it
forks a supervisor and passes it the file descriptors that came with the request. For a grader it
forks the outer process of a sandbox (outer_process.py), in which a server works in the same way.

The server ends after ten idle minutes, or when its kernel ends: the socket closes, or the server's
parent changes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import setproctitle

from dtlab.ranks import protocol, system
from dtlab.ranks.launch import supervisor
from dtlab.ranks.record import recorder
from dtlab.ranks.sandbox import kernel_calls
from dtlab.ranks.transport import Closed, Packed, receive_frame, receive_request, send_frame

if TYPE_CHECKING:
    from dtlab.ranks.sandbox.isolation import Isolation

IDLE_LIMIT = 600.0  # seconds without a launch after which the server ends
SHORT_LIMIT, SHORT = 30.0, 0.1  # the same limit if less than this fraction of memory is free
CHECK_PARENT_EVERY = 0.5  # seconds
QUIET = 0.3  # seconds without a request after which chores are done
MANY = 4  # requests after which memory is tidied even if the server is not idle
A_MOMENT = 100  # milliseconds that such a request waits for the last launch's ranks to end

# Prefixes of the environment variables that a grader's server keeps.
KEPT = ("PATH", "HOME", "LANG", "LC_", "TMPDIR", "LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV",
        "CONDA_PREFIX", "OPENBLAS_", "OMP_", "MKL_", "TORCHINDUCTOR_", "MPL", "XDG_")  # fmt: skip

WARM = ("torch.distributed", "numpy.ma", "numpy.random", "dtlab.collectives")


def main(fd: int, soon: Sequence[str], *modules: str) -> None:
    """Serve launches on the socket `fd` until the kernel ends.

    Imports `modules` first, and the modules in `soon` while the server is idle.
    """
    if modules:
        _forget_environment()
    parent = os.getppid()
    sock = socket.socket(fileno=fd)
    _prepare(modules)
    sock.sendall(protocol.READY)
    _silence()
    serve(sock, parent, soon=soon)


def serve(
    sock: socket.socket, parent: int, isolation: Isolation | None = None, soon: Sequence[str] = ()
) -> None:
    """Fork the processes requested on `sock` until it is closed; then end all of them.

    `isolation` is set if this process runs in a sandbox; its ranks then confine themselves too.
    """
    with contextlib.suppress(Closed, ConnectionError):
        _serve(sock, parent, isolation, _Chores(soon, tidies=system.LINUX and isolation is None))
    _end()


def _forget_environment() -> None:
    """Re-execute this process without the keys and passwords in a grader's environment.

    Forked processes, which run learners' code, inherit this process's memory.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _prepare(modules: Sequence[str]) -> None:
    setproctitle.setproctitle(protocol.SERVER_TITLE)
    system.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import((*WARM, *modules))
    recorder.rehearse()
    if modules:  # a grader's server, which will fork processes of notebooks
        from dtlab.ranks.sandbox import notebook_process

        notebook_process.rehearse()
    gc.freeze()


def _silence() -> None:
    """Redirect stderr to /dev/null; the kernel reads it only until the server is ready."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


class _Chores:
    """Work that the server does while it is idle, one piece at a time.

    It imports modules, and "tidies" memory: moves it to huge pages, so that forks take less time.
    """

    def __init__(self, modules: Sequence[str], tidies: bool) -> None:
        self.modules = list(modules)  # to import
        self.tidies = tidies
        self.tidy = not tidies
        self.requests = 0  # since memory was last tidied
        self._waited = 0  # milliseconds

    def __bool__(self) -> bool:
        return bool(self.modules) or not self.tidy

    def do_one(self) -> None:
        if not self.tidy:
            self._tidy()
        else:
            self.have([self.modules.pop(0)])

    def have(self, modules: Sequence[str]) -> None:
        """Import `modules` now."""
        _import(modules)
        self.tidy = not self.tidies

    def _tidy(self) -> None:
        with contextlib.suppress(OSError):  # if /proc is hidden, launches stay slower
            kernel_calls.huge_pages()  # 0.2 s of CPU, once; launches then take 40 % less time
        self.tidy, self.requests, self._waited = True, 0, 0

    def had_better_wait(self) -> bool:
        """Whether to wait a millisecond before the next request, so that memory can be tidied.

        Pages that the last launch's ranks still share with the server cannot be moved.
        """
        if self.tidy or self.requests < MANY or self._waited >= A_MOMENT:
            return False
        self._waited += 1
        return True

    def note_request(self) -> None:
        """Count a request; tidies memory if the server has not been idle for many requests."""
        self.requests += 1
        if self.requests > MANY and not self.tidy:
            self._tidy()


def _serve(sock: socket.socket, parent: int, isolation: Isolation | None, chores: _Chores) -> None:
    child_ended = system.wake_on_child()
    forked: set[int] = set()
    requested = False
    served_at = time.monotonic()
    while os.getppid() == parent:
        watched: list[Any] = [sock, child_ended]
        patience = QUIET if chores else CHECK_PARENT_EVERY
        ready, _, _ = select.select(watched, [], [], patience)
        if child_ended in ready:
            os.read(child_ended, 4096)
        for pid, status in system.reap().items():
            forked.discard(pid)
            if os.waitstatus_to_exitcode(status) == protocol.ASKED_FOR_SLOW_MODULES:
                slow = protocol.SLOW_MODULES
                chores.modules = [name for name in slow if name not in sys.modules]
                requested = True
        for orphan in set(system.children()) - forked:
            system.kill(orphan)  # left behind by a supervisor that was killed
        if requested and chores.modules:  # at once, or else all ranks of later launches import it
            chores.have([chores.modules.pop(0)])
            requested = False
        if sock in ready and forked and chores.had_better_wait():
            time.sleep(0.001)
        elif sock in ready:
            chores.note_request()
            forked |= _answer(sock, isolation, chores)
            served_at = time.monotonic()
        elif chores and not ready and not forked:
            chores.do_one()
        elif not forked and _long_enough(time.monotonic() - served_at):
            return


def _long_enough(idle: float) -> bool:
    """Whether a server should end after being idle for `idle` seconds."""
    if idle > IDLE_LIMIT:
        return True
    return idle > SHORT_LIMIT and system.free_memory() < SHORT


def _import(names: Sequence[str]) -> None:
    """Import modules for the ranks of later launches; "module:function" also calls a function."""
    for name in names:
        module, _, function = name.partition(":")
        # The file may be half written now. If the error persists, the ranks report it better.
        with contextlib.suppress(ImportError, SyntaxError):
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
    gc.collect()
    gc.freeze()  # these objects are never collected, so their pages stay shared with the ranks


def _answer(sock: socket.socket, isolation: Isolation | None, chores: _Chores) -> set[int]:
    """Fork the requested process; only it keeps the descriptors of the request."""
    kind, fds = receive_request(sock)
    if kind == protocol.MODULES:
        names = b"".join(_read(fd) for fd in fds).decode().split()
        if isolation is None:  # in a sandbox, a learner's code can send this request
            known = protocol.SLOW_MODULES
            chores.have([name for name in names if name.startswith("dtlab.") or name in known])
            sock.sendall(protocol.READY)
        return set()
    pid = os.fork()
    if pid == 0:
        sock.close()
        _become(kind, fds, isolation)
    for fd in fds:
        os.close(fd)
    return {pid}


def _read(fd: int) -> bytes:
    with open(fd, "rb") as pipe:
        return pipe.read()


def _become(kind: bytes, fds: list[int], isolation: Isolation | None) -> NoReturn:
    if kind == protocol.SANDBOX:
        from dtlab.ranks.sandbox import outer_process

        outer_process.main(fds, serve)
    if kind == protocol.NOTEBOOK and isolation is not None:
        from dtlab.ranks.sandbox import notebook_process

        notebook_process.main(fds, isolation, serve)
    _supervise(fds, isolation)


def _supervise(fds: list[int], isolation: Isolation | None) -> NoReturn:
    """Run one launch. `fds`: the control socket, then (channel, stdout, stderr) of each rank.

    With `isolation`, the ranks confine themselves to the sandbox; the supervisor does not.
    """
    code = 1
    try:
        setproctitle.setproctitle(protocol.SUPERVISOR_TITLE)
        os.setsid()
        system.adopt_orphans()
        signal.signal(signal.SIGTERM, _end_at_once)
        control = socket.socket(fileno=fds[0])
        _, body = receive_frame(control)
        spec: protocol.Spec = pickle.loads(body)
        if spec.stays:
            from dtlab.ranks.session.supervisor import SessionSupervisor

            SessionSupervisor(spec, control, None).serve(fds[1:])
        _, body = receive_frame(control)
        call = Packed.receive(control, body)
        launch = supervisor.Supervisor(spec, control, isolation)
        outcome = launch.run(call, fds[1:])
        send_frame(control, protocol.OUTCOME, pickle.dumps(outcome))
        if outcome.reason == "returned" and not spec.graded:
            launch.wait_until_gone()
        imported = any(rank.has(protocol.IMPORTED) for rank in launch.ranks)
        code = protocol.ASKED_FOR_SLOW_MODULES if imported else 0
    except (Closed, ConnectionError):
        pass  # the notebook has ended, or has closed the launch
    finally:
        system.kill_children()
        os._exit(code)


def _end_at_once(*_: object) -> None:
    system.kill_children()
    os._exit(1)


def _end() -> None:
    """Give the supervisors a second to clean up, then kill the remaining processes."""
    deadline = time.monotonic() + 1.0
    for pid in system.children():
        system.kill(pid, signal.SIGTERM)
    while system.children():
        if time.monotonic() > deadline:
            for pid in system.children():
                system.kill(pid)
        system.reap()
        time.sleep(0.01)
