"""Checks of the machine: system, processors, memory, shared memory, loopback, /proc."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dtlab.doctor.finding import Finding, in_gb, note, ok, wrong
from dtlab.doctor.visit import Visit
from dtlab.ranks import system

__all__ = ["cpus", "loopback", "memory", "memory_limit", "operating_system", "proc", "shared"]

AREA = "machine"
SHARED = Path("/dev/shm")
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 4e9, 1e9  # bytes: a notebook with ranks; one import of torch
_UNLIMITED = 2**62  # bytes; cgroups v1 writes about 2^63 if there is no limit
_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")  # versions 2 and 1
# NCCL's User Guide, Troubleshooting, Docker: --shm-size=1g. Docker's own default is 64 MiB.
ENOUGH_SHARED = 2**30  # bytes
_CHUNK = 2**20  # bytes written as a test
_CONNECT_LIMIT = 5.0  # seconds


def operating_system(_: Visit) -> Iterator[Finding]:
    """Report the operating system, and whether dtlab runs on it."""
    name, release = platform.system(), platform.release()
    value = {"system": name, "release": release, "architecture": platform.machine()}
    message = f"{name} {release}, {platform.machine()}"
    if system.WINDOWS:
        yield wrong(AREA, "system", f"{message}: dtlab runs inside WSL2 only", "wsl --install",
                    **value)  # fmt: skip
    elif system.LINUX:
        wsl = "microsoft" in release.lower()
        yield ok(AREA, "system", message + (" (WSL2)" if wsl else ""), **value, wsl=wsl)
    else:
        yield note(AREA, "system", f"{message}: no memory limits, no count of bytes sent", **value)


def cpus(_: Visit) -> Iterator[Finding]:
    """Report the usable CPUs, after affinity and the quotas of control groups."""
    usable, total = system.usable_cpus(), os.cpu_count() or 1
    value = {"usable_cpus": usable, "cpus": total}
    message = f"{usable:g} of {total} are usable"
    if usable < 2:
        yield note(AREA, "CPUs", f"{message}: ranks take turns, so times mean little", **value)
    else:
        yield ok(AREA, "CPUs", message, **value)


def memory(_: Visit) -> Iterator[Finding]:
    """Check total memory, free memory, and the limit of this control group."""
    import psutil

    usage = psutil.virtual_memory()
    limit = memory_limit()
    free = usage.available if limit is None else min(usage.available, limit)
    message = f"{in_gb(usage.available)} of {in_gb(usage.total)} are free"
    if limit is not None and limit < usage.total:
        message += f"; this control group may use {in_gb(limit)}"
    value = {
        "total_bytes": usage.total, "available_bytes": usage.available, "limit_bytes": limit,
    }  # fmt: skip
    repair = "ps -eo rss,pid,args --sort=-rss | head"
    if free < TOO_LITTLE_MEMORY:
        message += ", too little for a notebook with ranks: end large processes or raise the limit"
        yield wrong(AREA, "memory", message, repair, **value)
    elif free < LITTLE_MEMORY:
        yield note(AREA, "memory", f"{message}, which is not much for many ranks", repair, **value)
    else:
        yield ok(AREA, "memory", message, **value)


def memory_limit(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int | None:
    """Return the lowest memory limit of this process's control groups in bytes, or None."""
    try:
        lines = Path(proc).read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = Path(root) / controllers
        inner = base / group.lstrip("/")
        for folder in (inner, *inner.parents):
            limits += [limit for name in _MEMORY_FILES if (limit := _limit(folder / name))]
            if folder == base:
                break
    return min(limits, default=None)


def _limit(file: Path) -> int | None:
    try:
        number = int(file.read_text())
    except (OSError, ValueError):  # the group is not visible from here, or the file says "max"
        return None
    return number if 0 < number < _UNLIMITED else None


def shared(_: Visit) -> Iterator[Finding]:
    """Check the shared memory that NCCL and DataLoader workers need; dtlab's ranks do not."""
    if not SHARED.is_dir():
        yield note(AREA, "shared memory", f"this system has no {SHARED}", there=False)
        return
    stat = os.statvfs(SHARED)
    value = {"size_bytes": stat.f_blocks * stat.f_frsize, "free_bytes": stat.f_bavail
             * stat.f_frsize}  # fmt: skip
    message = f"{SHARED} has {in_gb(value['free_bytes'])} of {in_gb(value['size_bytes'])} free"
    try:
        with tempfile.TemporaryFile(dir=SHARED, prefix="dtlab-doctor-") as file:
            file.write(bytes(_CHUNK))
    except OSError as error:
        message = f"{SHARED} is not writable: {error.strerror}; NCCL and DataLoader workers fail"
        repair = f"sudo mount -o remount,rw,mode=1777,size=2g {SHARED}"
        yield wrong(AREA, "shared memory", message, repair, **value, writable=False)
        return
    if value["size_bytes"] < ENOUGH_SHARED:
        message += ", which is not much for NCCL. If this is a container, start it with more"
        repair = "docker run --shm-size=1g --ulimit memlock=-1 ..."
        yield note(AREA, "shared memory", message, repair, **value, writable=True)
    else:
        yield ok(AREA, "shared memory", message, **value, writable=True)


def loopback(_: Visit) -> Iterator[Finding]:
    """Check that a port of 127.0.0.1 can be bound and reached, which ranks need to connect."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_CONNECT_LIMIT)
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), _CONNECT_LIMIT) as client:
                client.sendall(b"d")
                with server.accept()[0] as peer:
                    peer.settimeout(_CONNECT_LIMIT)
                    received = peer.recv(1)
    except OSError as error:
        message = f"127.0.0.1 cannot be used: {error.strerror or error}; ranks cannot connect"
        yield wrong(AREA, "loopback", message, "sudo ip link set lo up", reachable=False)
        return
    if received == b"d":
        yield ok(AREA, "loopback", "ports can be bound and reached", reachable=True)
    else:
        yield wrong(AREA, "loopback", "127.0.0.1 does not deliver data; perhaps a firewall is on",
                    "sudo iptables -S | grep -w lo", reachable=False)  # fmt: skip


def proc(_: Visit, folder: Path = Path("/proc")) -> Iterator[Finding]:
    """Check the files in /proc that the watcher reads to detect a deadlock of the ranks."""
    if not system.LINUX:
        yield note(AREA, "watcher", "detects less than on Linux: there is no /proc",
                   readable=False)  # fmt: skip
        return
    files = [folder / "self/stat", *(folder / "self/task").glob("*/stat"), folder / "self/cgroup"]
    missing = [str(file) for file in files if not os.access(file, os.R_OK)]
    if missing or len(files) < 3:
        first = missing[0] if missing else f"{folder}/self/task"
        message = f"{first} cannot be read: a deadlock is noticed only at the timeout"
        repair = "sudo mount -o remount,hidepid=0 /proc"
        yield wrong(AREA, "watcher", message, repair, readable=False)
    else:
        yield ok(AREA, "watcher", "/proc is readable: deadlocks are noticed at once",
                 readable=True)  # fmt: skip
