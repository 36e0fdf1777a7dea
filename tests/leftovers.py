"""Processes, files and ports that a test could leave behind.

Other programs on this machine are none of our business: only descendants of this process are
looked at, shared memory, and a temporary folder that only this run of the tests uses.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path

import psutil

from dtlab.ranks.record import counters

STAYING: set[int] = set()  # process ids: these and what is below them stay from test to test

_LISTEN = 1 << 10  # among the states of a TCP socket
_LINUX = Path("/proc/self/task").exists()  # asked directly: this is done twice for each test


def descendants() -> dict[int, str]:
    """Living processes below this one, the idle warm server left out."""
    found = {}
    for process in _below():
        try:
            title = " ".join(process.cmdline()) or process.name()
            if process.status() != psutil.STATUS_ZOMBIE and "dtlab-rank-server" not in title:
                found[process.pid] = title
        except psutil.NoSuchProcess:
            pass
    return found


def files() -> set[Path]:
    """Files in shared memory and in the temporary folder, pytest's own left out.

    And those of other programs that live: canaries of another run of the tests, which have its
    process id, and semaphores.
    """
    return {
        path
        for folder in (Path("/dev/shm"), Path(tempfile.gettempdir()))
        if folder.exists()
        for path in folder.iterdir()
        if not path.name.startswith(("pytest-", "ipykernel_")) and not _of_others(path)
        if _is_mine(path)
    }


def _is_mine(path: Path) -> bool:
    try:
        return path.stat(follow_symlinks=False).st_uid == os.getuid()
    except FileNotFoundError:  # gone since it was listed: another worker's, as a rule
        return False


def _of_others(path: Path) -> bool:
    name, _, pid = path.name.rpartition("-")
    if name == "sem.mp":  # of Python's multiprocessing, in memory as long as a process uses it
        ours = {os.getpid(), *(process.pid for process in _below())}
        # Its first owner made it under another name, so the number of the file is compared.
        with contextlib.suppress(FileNotFoundError):
            number = f" {path.stat().st_ino} "
            return any(number in _mapped(pid) for pid in psutil.pids() if pid not in ours)
    return name == ".dtlab-hostile" and int(pid) != os.getpid() and psutil.pid_exists(int(pid))


def _mapped(pid: int) -> str:
    """The files of shared memory that a process has mapped, as the kernel tells."""
    with contextlib.suppress(OSError):  # it has ended, or is none of ours
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return "\n".join(line for line in lines if "/dev/shm/" in line)
    return ""


def listening() -> set[int]:
    """Ports on which this process or one below it listens."""
    processes = [psutil.Process(), *_below()]
    if not _LINUX:
        connections = [one for process in processes for one in process.net_connections("tcp")]
        return {one.laddr.port for one in connections if one.status == "LISTEN"}
    ports = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, counters._NETLINK_SOCK_DIAG) as netlink:
        for family in (socket.AF_INET, socket.AF_INET6):
            counters._ask(netlink, family, states=_LISTEN)
            for body in counters._replies(netlink):
                ports[counters._inode(body)] = counters._PORTS.unpack_from(body, 4)[0]
    inodes = {inode for process in processes for inode in counters._inodes(process.pid)}
    return {port for inode, port in ports.items() if inode in inodes}


def _below() -> list[psutil.Process]:
    """All processes below this one, except those that stay from test to test."""
    if not _LINUX:
        below = psutil.Process().children(recursive=True)
        return [process for process in below if process.pid not in STAYING]
    pids, found = [os.getpid()], []
    while pids:
        with contextlib.suppress(OSError):  # it has ended
            for children in list(Path(f"/proc/{pids.pop()}/task").glob("*/children")):
                for pid in map(int, children.read_text().split()):
                    if pid in STAYING:
                        continue
                    pids.append(pid)
                    with contextlib.suppress(psutil.NoSuchProcess):
                        found.append(psutil.Process(pid))
    return found
