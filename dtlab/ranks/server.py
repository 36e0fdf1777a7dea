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
from typing import Any

import setproctitle

from dtlab.ranks import protocol, supervisor, system
from dtlab.ranks.transport import Closed, receive_fds

IDLE_LIMIT = 600.0  # seconds without a launch after which the server ends
CHECK_PARENT_EVERY = 0.5  # seconds
QUIET_BEFORE_PRELOAD = 0.3  # seconds

WARM = ("torch.distributed", "numpy", "dtlab.collectives", "dtlab.ranks.process")
# What ranks often import and what takes long. Loaded while nobody waits, after the first launch.
PRELOAD = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.pipelining")


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
    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there now is never collected, so its pages stay shared with the ranks


def _silence() -> None:
    """Errors before this point went to the kernel; from here on nobody reads them."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def _serve(sock: socket.socket, parent: int) -> None:
    child_ended = system.wake_on_child()
    supervisors: set[int] = set()
    to_preload = list(PRELOAD)
    served_at = time.monotonic()
    served = False
    while os.getppid() == parent:
        quiet = served and not supervisors and to_preload
        wait = QUIET_BEFORE_PRELOAD if quiet else CHECK_PARENT_EVERY
        watched: list[Any] = [sock, child_ended]
        ready, _, _ = select.select(watched, [], [], wait)
        if child_ended in ready:
            os.read(child_ended, 4096)
        supervisors -= set(system.reap())
        for orphan in set(system.children()) - supervisors:
            system.kill(orphan)  # left by a supervisor that was itself killed
        if sock in ready:
            supervisors.add(_fork_supervisor(sock))
            served, served_at = True, time.monotonic()
        elif quiet and not ready:
            _preload(to_preload.pop(0))
        elif not supervisors and time.monotonic() - served_at > IDLE_LIMIT:
            return


def _preload(name: str) -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


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
