"""What a submission could leave behind, seen from outside the sandbox.

Other programs on this machine are none of our business: what counts are this process's
descendants, whatever belongs to the users that graded code runs as, and control groups.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from dtlab.ranks.sandbox.sandbox import first_user

__all__ = ["Outside", "left_behind"]

_USERS = 512  # of one submission
_PATIENCE = 2.0  # seconds that a process may need to end


@dataclass(frozen=True)
class Outside:
    """The processes, control groups and files at one moment."""

    processes: frozenset[str]
    groups: frozenset[str]
    files: frozenset[str]

    @classmethod
    def now(cls) -> Outside:
        """A look around."""
        users = range(first_user(0), first_user(0) + _USERS)
        return cls(
            frozenset(_processes(users)),
            frozenset(_groups()),
            frozenset(_files(users)),
        )


def left_behind(before: Outside) -> list[str]:
    """The processes, files and control groups that are new since `before`, and stay."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        now = Outside.now()
        new = [
            f"{one.name}: {thing}"
            for one in fields(Outside)
            for thing in sorted(getattr(now, one.name) - getattr(before, one.name))
        ]
        if not new or time.monotonic() > deadline:
            return new
        time.sleep(0.05)


def _processes(users: range) -> list[str]:
    """Descendants of this process, and all that run as the users of graded code.

    Not its children: that is the server, which stays.
    """
    here = psutil.Process()
    ours = {one.pid for one in here.children(recursive=True)}
    ours -= {one.pid for one in here.children()}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            concerned = process.pid in ours or process.uids().real in users
            if concerned and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline()).strip()[:60]}")
    return found


def _groups() -> list[str]:
    """Control groups whose outer process has ended: a living one removes its own."""
    root = Path("/sys/fs/cgroup")
    found = [*root.glob("dtlab-*"), *root.glob("[!d]*/dtlab-*")]
    return [str(path) for path in found if not psutil.pid_exists(_number(path.name))]


def _number(name: str) -> int:
    """The process whose group it is: dtlab-4711."""
    digits = name.split("-")[1]
    return int(digits) if digits.isdecimal() else -1


def _files(users: range) -> list[str]:
    """Files of the users of graded code, and all in this process's own temporary folder."""
    found = []
    for folder in ("/tmp", "/var/tmp", "/dev/shm", os.environ.get("TMPDIR", "/tmp")):
        for path in Path(folder).iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat(follow_symlinks=False).st_uid in users or folder not in _SHARED:
                    found.append(str(path))
    return found


_SHARED = ("/tmp", "/var/tmp", "/dev/shm")
