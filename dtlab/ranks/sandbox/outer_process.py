"""The outer process of a sandbox: starts the server in it, and ends all its processes.

    server ── fork ──► outer process         removes the control group at the end
                          └── fork ──► the server in the sandbox; it is the first process of its
                                       PID namespace, so the kernel ends all others with it

The outer process trusts requests of the grader, but none of its child processes. It keeps the
grader's socket open until all of these have ended.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import setproctitle

from dtlab.ranks import protocol, system
from dtlab.ranks.plain import encode
from dtlab.ranks.sandbox import kernel_calls as kernel
from dtlab.ranks.sandbox.cgroups import Group
from dtlab.ranks.sandbox.isolation import Isolation, isolate
from dtlab.ranks.sandbox.untrusted_ranks import come_first
from dtlab.ranks.transport import receive_frame, send_frame


def main(fds: list[int], serve: Callable[[socket.socket, int, Isolation], None]) -> NoReturn:
    """Set up the isolation that the grader sends on the socket `fds[0]`, and run `serve` in it.

    Reports to the grader which kinds of isolation are missing.
    """
    inside, group = -1, Group(f"dtlab-{os.getpid()}")

    def end(*_: object) -> None:
        if inside > 0:
            system.kill(inside)

    try:
        setproctitle.setproctitle(protocol.OUTER_TITLE)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, end)
        system.die_with_parent(signal.SIGTERM)
        close_all_but(fds[0])
        sock = socket.socket(fileno=fds[0])
        isolation: Isolation = pickle.loads(receive_frame(sock)[1])
        refused = _new_processes()
        missing = [f"processes ({refused})"] if refused else []
        try:
            group.make(isolation.memory, isolation.processes)
        except OSError as error:
            missing.append(f"memory and processes together ({error})")
        inside = os.fork()
        if inside == 0:
            _serve(sock, isolation, group, missing, serve)
        _wait(sock, inside, takes_all=not refused)
    finally:
        group.remove()
        os._exit(0)


def close_all_but(*keep: int) -> None:
    """Close all inherited file descriptors but `keep`, so that untrusted code cannot use them."""
    start = 3
    for fd in sorted(keep):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def _wait(sock: socket.socket, inside: int, takes_all: bool) -> None:
    """Wait until the sandbox's server has ended; kill it when the grader closes the socket.

    If `takes_all`, the kernel ends all other processes in the sandbox before it reports the end
    of the server. Otherwise the server ends them itself.
    """
    if takes_all:
        poller = select.poll()
        poller.register(sock, select.POLLRDHUP)
        poller.register(os.pidfd_open(inside), select.POLLIN)
        poller.poll()
        system.kill(inside)
    os.waitpid(inside, 0)


def _new_processes() -> str:
    """Put later forks into a new PID namespace; return the reason if that fails, or ""."""
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):
            _create_user_namespace()
    try:
        kernel.unshare(kernel.NEW_PROCESSES)
    except OSError as error:
        return str(error)
    return ""


def _create_user_namespace() -> None:
    """Create a user namespace with only this user, as its root."""
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEW_USERS)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _serve(
    sock: socket.socket,
    isolation: Isolation,
    group: Group,
    missing: list[str],
    serve: Callable[[socket.socket, int, Isolation], None],
) -> NoReturn:
    try:
        system.die_with_parent()
        system.adopt_orphans()
        come_first()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # there is no group, as `missing` reports
            group.enter()
        missing += isolate(isolation)
        send_frame(sock, protocol.MISSING, encode((missing, group.name)))
        serve(sock, os.getppid(), replace(isolation, missing=tuple(missing)))
    finally:
        os._exit(0)
