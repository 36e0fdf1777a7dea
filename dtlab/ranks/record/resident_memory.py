"""Resident memory of a rank, read from the kernel by the supervisor.

    rank                         supervisor
    count()  ── COUNT ────────►  reads /proc/PID/status, and keeps the number
             ◄── COUNTED ──────

Tensors that a rank counts itself can be hidden from that count. Pages of memory cannot.
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

TIMES = 3  # a thread of gloo's may hold a tensor a moment longer than its operation lasts
PAUSE = 0.02  # seconds between two of them
_M_MMAP_THRESHOLD = -3  # malloc.h
MOST = 1000  # numbers that are kept of one rank


def count() -> None:
    """In a rank: have its memory counted now, `TIMES` times. Elsewhere it does nothing."""
    if protocol.STATUS_FD not in os.environ:
        return
    gc.collect()
    with socket.socket(fileno=os.dup(int(os.environ[protocol.STATUS_FD]))) as line:
        for number in range(TIMES):
            if number:
                time.sleep(PAUSE)
            with suppress(OSError, AttributeError):  # a system without it
                ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the kernel
            line.send(protocol.COUNT)
            line.recv(1)


def give_back_at_once() -> None:
    """In a rank: have each large tensor's memory go back to the kernel when it is freed.

    Left alone, glibc keeps up to 32 MB at the end of each thread's heap for later.
    """
    with suppress(OSError, AttributeError):  # a system without it
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


def bytes_of(pid: int) -> int | None:
    """Bytes of memory that a process has pages for, files aside; None where it is not known."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return 1024 * sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    return None
