"""The warm server: one process per notebook kernel that has imported torch, and only forks.

Importing torch takes a second; forking a process that has done so takes milliseconds. The server
has one thread, no CUDA context, and runs no code of the learner. For each launch it forks a
supervisor and hands it the file descriptors that came with the request.

It ends when its kernel does (its socket closes, or its parent changes), or after ten idle minutes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import setproctitle

from dtlab.ranks import protocol, recorder, supervisor, system
from dtlab.ranks.transport import Closed, receive_fds

IDLE_LIMIT = 600.0  # seconds without a launch after which the server ends
CHECK_PARENT_EVERY = 0.5  # seconds
QUIET = 0.3  # seconds without a request before slow modules are imported

WARM = ("torch.distributed", "numpy.ma", "numpy.random", "dtlab.collectives")


def main(fd: int) -> None:
    """Serve launches on the socket `fd` until the kernel goes."""
    parent = os.getppid()
    sock = socket.socket(fileno=fd)
    _prepare()
    sock.sendall(b"R")
    _silence()
    with contextlib.suppress(Closed, ConnectionError):
        _serve(sock, parent)
    _end()


def _prepare() -> None:
    setproctitle.setproctitle(protocol.SERVER_TITLE)
    system.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import(WARM)
    recorder.rehearse()
    gc.freeze()


def _silence() -> None:
    """Errors before this point went to the kernel; from here on nobody reads them."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def _serve(sock: socket.socket, parent: int) -> None:
    child_ended = system.wake_on_child()
    supervisors: set[int] = set()
    to_import: list[str] = []
    served_at = time.monotonic()
    while os.getppid() == parent:
        watched: list[Any] = [sock, child_ended]
        patience = QUIET if to_import else CHECK_PARENT_EVERY
        ready, _, _ = select.select(watched, [], [], patience)
        if child_ended in ready:
            os.read(child_ended, 4096)
        for pid, status in system.reap().items():
            supervisors.discard(pid)
            if os.waitstatus_to_exitcode(status) == protocol.ASKED_FOR_SLOW_MODULES:
                to_import = [name for name in protocol.SLOW_MODULES if name not in sys.modules]
        for orphan in set(system.children()) - supervisors:
            system.kill(orphan)  # left by a supervisor that was itself killed
        if sock in ready:
            supervisors.add(_fork_supervisor(sock))
            served_at = time.monotonic()
        elif to_import and not ready and not supervisors:
            _import([to_import.pop(0)])
        elif not supervisors and time.monotonic() - served_at > IDLE_LIMIT:
            return


def _import(names: Sequence[str]) -> None:
    """Have modules ready for the ranks to come."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there now is never collected, so its pages stay shared with the ranks


def _fork_supervisor(sock: socket.socket) -> int:
    """Fork the supervisor of one launch; the descriptors of the request go to it alone."""
    fds = receive_fds(sock)
    pid = os.fork()
    if pid == 0:
        sock.close()
        supervisor.main(fds)
    for fd in fds:
        os.close(fd)
    return pid


def _end() -> None:
    """Give the supervisors a moment to clean up, then kill whatever is still there."""
    deadline = time.monotonic() + 1.0
    for pid in system.children():
        system.kill(pid, signal.SIGTERM)
    while system.children():
        if time.monotonic() > deadline:
            for pid in system.children():
                system.kill(pid)
        system.reap()
        time.sleep(0.01)


if __name__ == "__main__":
    main(int(sys.argv[1]))
