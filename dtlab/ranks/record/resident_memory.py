"""Measures the resident memory of a rank: its supervisor reads the kernel's count.

    rank                         supervisor
    count()  ── COUNT ────────►  reads /proc/PID/status, and keeps the number
             ◄── COUNTED ──────

A rank can hide tensors from a count that it makes itself. It cannot hide pages of memory.
"""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from dtlab.ranks import protocol

__all__ = ["MOST", "TIMES", "bytes_of", "count", "give_back_at_once"]

TIMES = 3  # a thread of gloo may hold a tensor slightly longer than its operation lasts
PAUSE = 0.02  # seconds between two measurements
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
            with suppress(OSError, AttributeError):  # a system without this function
                ctypes.CDLL(None).malloc_trim(0)  # returns free memory to the kernel
            line.send(protocol.COUNT)
            line.recv(1)


def give_back_at_once() -> None:
    """Have the allocator return a large tensor's memory to the kernel as soon as it is freed.

    By default, glibc keeps up to 32 MB at the end of each thread's heap for later use.
    """
    with suppress(OSError, AttributeError):  # a system without this function
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


def bytes_of(pid: int) -> int | None:
    """Bytes of a process's resident memory without files; None if they are not known."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return 1024 * sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    return None
