"""Results that several checks share, and subprocesses with a time limit."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dtlab.doctor.smi import Gpu, gpus_from

__all__ = ["IMPORT_LIMIT", "Said", "Visit", "pip_install"]

IMPORT_LIMIT = 120.0  # seconds for torch from a slow disk, as the server of ranks has
_SMI_LIMIT = 20.0  # seconds: a driver that is not kept loaded takes several for each GPU
_PROBE = Path(__file__).with_name("probe.py")
_QUERY = "index,uuid,memory.total,compute_mode,mig.mode.current,driver_version,name"


@dataclass(frozen=True)
class Said:
    """What a program printed; `trouble` says why it came to nothing, "" where it did not."""

    out: str
    trouble: str = ""


class Visit:
    """Asks each thing once. What it has started ends with `end`, whatever happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def ask(self, command: Sequence[str], limit: float) -> Said:
        """What a program says, which has `limit` seconds; then it and its children are killed."""
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Said("", f"{command[0]} cannot be started: {error.strerror}")
        with self._lock:
            self._running.add(process)
            if self._ended:
                _kill(process)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            with suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is left there
                process.communicate(timeout=1.0)
            return Said("", f"no answer within {limit:g} s")
        finally:
            with self._lock:
                self._running.discard(process)
        return Said(out, _trouble(process.returncode, out, err))

    def end(self) -> None:
        """Kill what is still running."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)

    def probe(self, what: str, limit: float = IMPORT_LIMIT) -> dict[str, Any]:
        """What a module says of itself (probe.py), with "trouble" where it cannot be imported."""
        said = self.ask([sys.executable, "-P", str(_PROBE), what], limit)
        if said.trouble:
            return {"trouble": said.trouble}
        try:
            told = json.loads(said.out.splitlines()[-1])
        except (IndexError, ValueError):
            told = None
        if not isinstance(told, dict):
            return {"trouble": f"no answer that can be read: {said.out[-200:]!r}"}
        return told

    @cached_property
    def torch(self) -> dict[str, Any]:
        """What torch says of itself and of the GPUs that it sees; see probe.py for the keys."""
        return self.probe("torch")

    @cached_property
    def nbgrader(self) -> dict[str, Any]:
        """Which nbgrader there is."""
        return self.probe("nbgrader")

    @cached_property
    def smi(self) -> tuple[list[Gpu], str]:
        """The GPUs of this machine as its driver lists them, and why it lists none."""
        query = self.ask(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], _SMI_LIMIT
        )
        if query.trouble:
            return [], query.trouble
        listing = self.ask(["nvidia-smi", "-L"], _SMI_LIMIT)
        return gpus_from(query.out, listing.out), listing.trouble


def pip_install(*requirements: str) -> str:
    """The command that installs packages where this dtlab runs."""
    quoted = " ".join(map(shlex.quote, requirements))
    return f"{shlex.quote(sys.executable)} -m pip install {quoted}"


def _kill(process: subprocess.Popen[str]) -> None:
    """End a program with its children. Whoever asked it collects it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _trouble(status: int, out: str, err: str) -> str:
    """Why a program failed, in the last lines that it wrote; "" for one that did not."""
    if status == 0:
        return ""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    lines = (err.strip() or out.strip()).splitlines()
    return "; ".join(map(str.strip, lines[-3:])) or f"exit status {status}"
