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

__all__ = ["IMPORT_LIMIT", "Output", "Visit", "pip_install"]

IMPORT_LIMIT = 120.0  # seconds to import torch from a slow disk, as in the server of ranks
_SMI_LIMIT = 20.0  # seconds: loading the driver takes several seconds for each GPU
_PROBE = Path(__file__).with_name("probe.py")
_QUERY = "index,uuid,memory.total,compute_mode,mig.mode.current,driver_version,name"


@dataclass(frozen=True)
class Output:
    """The output of a program; `trouble` says why it failed, "" if it succeeded."""

    out: str
    trouble: str = ""


class Visit:
    """A cache of results that several checks need; `end` kills the subprocesses it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def ask(self, command: Sequence[str], limit: float) -> Output:
        """Run a program and return its output; after `limit` s, kill it and its children."""
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Output("", f"{command[0]} cannot be started: {error.strerror}")
        with self._lock:
            self._running.add(process)
            if self._ended:
                _kill(process)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            with suppress(subprocess.TimeoutExpired):  # a program stuck in the kernel stays there
                process.communicate(timeout=1.0)
            return Output("", f"no answer within {limit:g} s")
        finally:
            with self._lock:
                self._running.discard(process)
        return Output(out, _trouble(process.returncode, out, err))

    def end(self) -> None:
        """Kill the subprocesses that are still running."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)

    def probe(self, what: str, limit: float = IMPORT_LIMIT) -> dict[str, Any]:
        """Return probe.py's facts about a module, with "trouble" if it cannot be imported."""
        output = self.ask([sys.executable, "-P", str(_PROBE), what], limit)
        if output.trouble:
            return {"trouble": output.trouble}
        try:
            facts = json.loads(output.out.splitlines()[-1])
        except (IndexError, ValueError):
            facts = None
        if not isinstance(facts, dict):
            return {"trouble": f"the output cannot be parsed: {output.out[-200:]!r}"}
        return facts

    @cached_property
    def torch(self) -> dict[str, Any]:
        """Facts about torch and the GPUs that it sees; see probe.py for the keys."""
        return self.probe("torch")

    @cached_property
    def nbgrader(self) -> dict[str, Any]:
        """Facts about the installed nbgrader."""
        return self.probe("nbgrader")

    @cached_property
    def smi(self) -> tuple[list[Gpu], str]:
        """The GPUs that the driver lists, and the reason if it lists none."""
        query = self.ask(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], _SMI_LIMIT
        )
        if query.trouble:
            return [], query.trouble
        listing = self.ask(["nvidia-smi", "-L"], _SMI_LIMIT)
        return gpus_from(query.out, listing.out), listing.trouble


def pip_install(*requirements: str) -> str:
    """Return the command that installs packages for the Python that runs this dtlab."""
    quoted = " ".join(map(shlex.quote, requirements))
    return f"{shlex.quote(sys.executable)} -m pip install {quoted}"


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a program and its children; the caller of `communicate` reaps it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _trouble(status: int, out: str, err: str) -> str:
    """Return the last lines that a failed program wrote; "" for a program that succeeded."""
    if status == 0:
        return ""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    lines = (err.strip() or out.strip()).splitlines()
    return "; ".join(map(str.strip, lines[-3:])) or f"exit status {status}"
