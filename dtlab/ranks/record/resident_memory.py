"""Measures the resident memory of a rank: its supervisor reads the kernel's count.

    rank                         supervisor
    count()  ── COUNT ────────►  reads /proc/PID/status, and keeps the number
             ◄── COUNTED ──────
    (end)                        reads it once more: `Count.later`

A rank can hide tensors from a count that it makes itself. It cannot hide pages of memory. Files in
memory that it has open or has written to its own scratch folders count too, and so do the
processes that it has started. Each `Count` has the peak since the count before it, so a rank gains
nothing if it has its memory counted at other moments than the check meant: memory that it held
between two counts, or after the last one, shows in a peak.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dtlab.ranks import protocol

__all__ = ["MOST", "TIMES", "Count", "bytes_of", "count", "counted", "give_back_at_once",
           "until_now"]  # fmt: skip

TIMES = 3  # a thread of gloo may hold a tensor slightly longer than its operation lasts
PAUSE = 0.02  # seconds between two measurements
_LONGEST = 2.0  # seconds to wait for such a thread, which on a busy machine waits for a CPU
_MOMENT = 0.005  # seconds of a CPU, in which it gives a tensor back
_M_MMAP_THRESHOLD = -3  # malloc.h
MOST = 1000  # measurements that are stored for one rank


def count() -> None:
    """Have this rank's memory measured `TIMES` times now. Outside a rank it does nothing."""
    if protocol.STATUS_FD not in os.environ:
        return
    gc.collect()
    with socket.socket(fileno=os.dup(int(os.environ[protocol.STATUS_FD]))) as line:
        for number in range(TIMES):
            if number:
                time.sleep(PAUSE)
            if number == TIMES - 1:
                _let_other_threads_run()
            with suppress(OSError, AttributeError):  # a system without this function
                ctypes.CDLL(None).malloc_trim(0)  # returns free memory to the kernel
            line.send(protocol.COUNT)
            line.recv(1)


def _let_other_threads_run() -> None:
    """Wait until each thread of this process that waits for a CPU has had one for a moment.

    A thread of gloo that has not had a CPU since an operation ended still holds its tensors.
    """
    end = time.monotonic() + _LONGEST
    waiting = {thread: _seconds(thread) for thread in _other_threads() if _wants_cpu(thread)}
    while waiting and time.monotonic() < end:
        time.sleep(_MOMENT)
        waiting = {
            thread: begun
            for thread, begun in waiting.items()
            if _wants_cpu(thread) and _seconds(thread) < begun + _MOMENT
        }


def _other_threads() -> list[str]:
    return [name for name in _names("/proc/self/task") if name != str(threading.get_native_id())]


def _wants_cpu(thread: str) -> bool:
    """Whether a thread runs or waits for a CPU."""
    with suppress(OSError, IndexError):
        text = Path(f"/proc/self/task/{thread}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "R"
    return False


def _seconds(thread: str) -> float:
    """The time that a thread has had a CPU."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    return math.inf  # it has ended


def give_back_at_once() -> None:
    """Have the allocator return a large tensor's memory to the kernel as soon as it is freed.

    By default, glibc keeps up to 32 MB at the end of each thread's heap for later use.
    """
    with suppress(OSError, AttributeError):  # a system without this function
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


# In the supervisor ------------------------------------------------------------------------------

_SCRATCH = "tmp", "home/learner", "dev/shm"  # as in sandbox/filesystem.py


class Count(int):
    """Bytes of memory that a rank holds: without files on a disk, with files in memory.

    `peak` is the most that it has held since the count before; None if it is not known. `later` is
    the peak after this count until the end of the run, and is known for the last count only.
    """

    peak: int | None = None
    later: int | None = None
    files: int = 0  # bytes of mapped files on a disk


def counted(pid: int, before: int | None = None) -> Count | None:
    """Counts the memory of a rank, and starts a new peak; None if it cannot be counted."""
    fields = _status(pid)
    if fields is None:
        return None
    elsewhere = _bytes_elsewhere(pid, fields["RssShmem"])
    result = Count(fields["RssAnon"] + fields["RssShmem"] + elsewhere)
    result.files = fields["RssFile"]
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        return result
    # The kernel's peak includes mapped files, such as the code of libraries that ran for the first
    # time. Of these, some are allowed; a rank cannot hide a peak by mapping large files later.
    files = fields["RssFile"]
    if isinstance(before, Count):
        files = min(files, before.files + _NEW_FILES)
    result.peak = max(int(result), fields["VmHWM"] - files + elsewhere)
    return result


_NEW_FILES = 4_000_000  # bytes: measured are below 3 MB in the second use of a function


def until_now(counts: list[int | None], pid: int) -> list[int | None]:
    """The counts of a rank, the last one with its peak `later`; call it at the end of a run."""
    last = counts[-1] if counts else None
    if isinstance(last, Count):
        now = counted(pid, last)
        last.later = now.peak if now is not None else None
    return counts


def bytes_of(pid: int) -> int | None:
    """Bytes of a process's resident memory without files; None if they are not known."""
    fields = _status(pid)
    return None if fields is None else fields["RssAnon"] + fields["RssShmem"]


def _status(pid: int) -> dict[str, int] | None:
    """Bytes of a process by kind; None if they are not known."""
    with suppress(OSError, ValueError, IndexError, KeyError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        names = "RssAnon", "RssShmem", "RssFile", "VmHWM"
        return {name: 1024 * int(fields[name].split()[0]) for name in names}
    return None


def _bytes_elsewhere(pid: int, mapped: int) -> int:
    """Bytes in files in memory that are not `mapped`, and in processes that `pid` has started."""
    files: dict[tuple[int, int], int] = {}
    for fd in _names(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found = os.stat(f"/proc/{pid}/fd/{fd}")
            name = os.readlink(f"/proc/{pid}/fd/{fd}")
            if stat.S_ISREG(found.st_mode) and name.startswith("/memfd:"):
                files[found.st_dev, found.st_ino] = 512 * found.st_blocks
    children = sum(bytes_of(child) or 0 for child in _descendants(pid))
    return max(0, sum(files.values()) + _scratch(pid) - mapped) + children


def _scratch(pid: int) -> int:
    """Bytes in the scratch folders that are a rank's own; 0 if it has none."""
    with suppress(OSError):
        if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return 0
        used = {}
        for name in _SCRATCH:
            folder = f"/proc/{pid}/root/{name}"
            room = os.statvfs(folder)
            used[os.stat(folder).st_dev] = (room.f_blocks - room.f_bfree) * room.f_frsize
        return sum(used.values())
    return 0


def _descendants(pid: int) -> Iterator[int]:
    for thread in _names(f"/proc/{pid}/task"):
        with suppress(OSError, ValueError):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []
