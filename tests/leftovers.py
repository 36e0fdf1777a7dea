"""What a test could leave behind: processes, files, ports.

Other programs on this machine are none of our business: only descendants of this process are
looked at, shared memory, and a temporary folder that only this run of the tests uses.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import psutil


def descendants() -> dict[int, str]:
    """Living processes below this one, the idle warm server left out."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline()) or process.name()
            if process.status() != psutil.STATUS_ZOMBIE and "dtlab-rank-server" not in title:
                found[process.pid] = title
        except psutil.NoSuchProcess:
            pass
    return found


def files() -> set[Path]:
    """Files in shared memory and in the temporary folder, pytest's own left out."""
    return {
        path
        for folder in (Path("/dev/shm"), Path(tempfile.gettempdir()))
        if folder.exists()
        for path in folder.iterdir()
        if not path.name.startswith(("pytest-", "ipykernel_"))
        and path.stat(follow_symlinks=False).st_uid == os.getuid()
    }


def listening() -> set[int]:
    """Ports on which this process or one below it listens."""
    ports = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            ports |= {c.laddr.port for c in process.net_connections() if c.status == "LISTEN"}
    return ports
