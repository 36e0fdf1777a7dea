"""The machine: system, processors, memory, shared memory, loopback, /proc."""

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
_UNLIMITED = 2**62  # bytes; version 1 of control groups writes about 2^63 for no limit
_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")  # versions 2 and 1
# NCCL's User Guide, Troubleshooting, Docker: --shm-size=1g. Docker's own default is 64 MiB.
ENOUGH_SHARED = 2**30  # bytes
_CHUNK = 2**20  # bytes written to try it
_CONNECT_LIMIT = 5.0  # seconds


def operating_system(_: Visit) -> Iterator[Finding]:
    """Linux, WSL2, macOS, or what dtlab does not run on."""
    name, release = platform.system(), platform.release()
    value = {"system": name, "release": release, "architecture": platform.machine()}
    told = f"{name} {release}, {platform.machine()}"
    if system.WINDOWS:
        yield wrong(AREA, "system", f"{told}: dtlab runs inside WSL2 only", "wsl --install",
                    **value)  # fmt: skip
    elif system.LINUX:
        wsl = "microsoft" in release.lower()
        yield ok(AREA, "system", told + (" (WSL2)" if wsl else ""), **value, wsl=wsl)
    else:
        yield note(AREA, "system", f"{told}: no memory limits, no counting of bytes", **value)


def cpus(_: Visit) -> Iterator[Finding]:
    """What may be used, after affinity and the quotas of control groups."""
    usable, there = system.usable_cpus(), os.cpu_count() or 1
    value = {"usable_cpus": usable, "cpus": there}
    told = f"{usable:g} of {there} may be used"
    if usable < 2:
        yield note(AREA, "CPUs", f"{told}: ranks take turns, so times mean little", **value)
    else:
        yield ok(AREA, "CPUs", told, **value)


def memory(_: Visit) -> Iterator[Finding]:
    """What is there, what is free, and the limit of this control group."""
    import psutil

    seen = psutil.virtual_memory()
    limit = memory_limit()
    free = seen.available if limit is None else min(seen.available, limit)
    told = f"{in_gb(seen.available)} of {in_gb(seen.total)} are free"
    if limit is not None and limit < seen.total:
        told += f"; this control group may use {in_gb(limit)}"
    value = {
        "total_bytes": seen.total, "available_bytes": seen.available, "limit_bytes": limit,
    }  # fmt: skip
    mend = "ps -eo rss,pid,args --sort=-rss | head"
    if free < TOO_LITTLE_MEMORY:
        told += ", too little for a notebook with ranks: end what takes most, or raise the limit"
        yield wrong(AREA, "memory", told, mend, **value)
    elif free < LITTLE_MEMORY:
        yield note(AREA, "memory", f"{told}, which is little for many ranks", mend, **value)
    else:
        yield ok(AREA, "memory", told, **value)


def memory_limit(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int | None:
    """The tightest memory limit of this process's control groups in bytes, None without one."""
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
            limits += [one for name in _MEMORY_FILES if (one := _limit(folder / name))]
            if folder == base:
                break
    return min(limits, default=None)


def _limit(file: Path) -> int | None:
    try:
        number = int(file.read_text())
    except (OSError, ValueError):  # no such group seen from here, or "max"
        return None
    return number if 0 < number < _UNLIMITED else None


def shared(_: Visit) -> Iterator[Finding]:
    """Shared memory, which NCCL and the workers of DataLoader need; dtlab's own ranks do not."""
    if not SHARED.is_dir():
        yield note(AREA, "shared memory", f"this system has no {SHARED}", there=False)
        return
    seen = os.statvfs(SHARED)
    value = {"size_bytes": seen.f_blocks * seen.f_frsize, "free_bytes": seen.f_bavail
             * seen.f_frsize}  # fmt: skip
    told = f"{SHARED} has {in_gb(value['free_bytes'])} of {in_gb(value['size_bytes'])} free"
    try:
        with tempfile.TemporaryFile(dir=SHARED, prefix="dtlab-doctor-") as file:
            file.write(bytes(_CHUNK))
    except OSError as error:
        told = f"{SHARED} cannot be written: {error.strerror}; NCCL and DataLoader workers fail"
        mend = f"sudo mount -o remount,rw,mode=1777,size=2g {SHARED}"
        yield wrong(AREA, "shared memory", told, mend, **value, writable=False)
        return
    if value["size_bytes"] < ENOUGH_SHARED:
        told += ", which is little for NCCL. In a container, start that with more"
        mend = "docker run --shm-size=1g --ulimit memlock=-1 ..."
        yield note(AREA, "shared memory", told, mend, **value, writable=True)
    else:
        yield ok(AREA, "shared memory", told, **value, writable=True)


def loopback(_: Visit) -> Iterator[Finding]:
    """A port of 127.0.0.1 can be bound, and reached: ranks meet there."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_CONNECT_LIMIT)
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), _CONNECT_LIMIT) as client:
                client.sendall(b"d")
                with server.accept()[0] as peer:
                    peer.settimeout(_CONNECT_LIMIT)
                    came = peer.recv(1)
    except OSError as error:
        told = f"127.0.0.1 cannot be used: {error.strerror or error}; ranks could not meet"
        yield wrong(AREA, "loopback", told, "sudo ip link set lo up", reachable=False)
        return
    if came == b"d":
        yield ok(AREA, "loopback", "ports can be bound and reached", reachable=True)
    else:
        yield wrong(AREA, "loopback", "127.0.0.1 does not carry what is sent: a firewall, perhaps",
                    "sudo iptables -S | grep -w lo", reachable=False)  # fmt: skip


def proc(_: Visit, folder: Path = Path("/proc")) -> Iterator[Finding]:
    """What the watcher reads of ranks, to see that none of them can move any more."""
    if not system.LINUX:
        yield note(AREA, "watcher", "sees less than on Linux: there is no /proc", readable=False)
        return
    files = [folder / "self/stat", *(folder / "self/task").glob("*/stat"), folder / "self/cgroup"]
    missing = [str(file) for file in files if not os.access(file, os.R_OK)]
    if missing or len(files) < 3:
        first = missing[0] if missing else f"{folder}/self/task"
        told = f"{first} cannot be read: a deadlock lasts until the timeout"
        mend = "sudo mount -o remount,hidepid=0 /proc"
        yield wrong(AREA, "watcher", told, mend, readable=False)
    else:
        yield ok(AREA, "watcher", "/proc can be read: deadlocks are told at once", readable=True)
