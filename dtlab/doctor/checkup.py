"""Runner of all checks, one after the other; a failed check does not stop the next one.

A check is a function from a `Visit` to findings. Each runs in a thread, so a check that hangs, for
example in a driver or on a network disk, costs only its time limit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dtlab.doctor import backends, course, gpus, machine, software
from dtlab.doctor.finding import Finding, wrong
from dtlab.doctor.visit import IMPORT_LIMIT, Visit

__all__ = ["CHECKS", "PATIENCE", "Check", "examine"]

NEEDED = ("torch", "psutil")  # a Python that has neither is not the course's Python
PATIENCE = 2.0  # seconds until a message says that a check takes a while
_ON_TORCH = IMPORT_LIMIT + 10.0  # seconds: the import of torch has its own limit
_ON_RANKS = IMPORT_LIMIT + 90.0  # seconds: import of torch in the server, and the time of ranks


@dataclass(frozen=True)
class Check:
    """A check: its function `look`, and its time `limit` in seconds."""

    area: str
    name: str
    look: Callable[[Visit], Iterator[Finding]]
    limit: float = 10.0
    on_ranks: bool = False


CHECKS = (
    Check("machine", "system", machine.operating_system),
    Check("machine", "CPUs", machine.cpus),
    Check("machine", "memory", machine.memory),
    Check("machine", "shared memory", machine.shared),
    Check("machine", "loopback", machine.loopback, 20.0),
    Check("machine", "watcher", machine.proc),
    Check("software", "Python", software.python),
    Check("software", "dtlab", software.packages),
    Check("software", "torch", software.torch, _ON_TORCH),
    Check("software", "matplotlib", software.matplotlib, _ON_TORCH),
    Check("software", "JupyterLab", software.jupyterlab, _ON_TORCH),
    Check("gpus", "GPUs", gpus.cards, 50.0),
    Check("gpus", "usable", gpus.usable, _ON_TORCH + 50.0),
    Check("gpus", "links", gpus.links, 70.0),
    Check("gpus", "peer access", gpus.peers, _ON_TORCH),
    Check("ranks", "gloo", backends.gloo, _ON_RANKS, on_ranks=True),
    Check("ranks", "nccl", backends.nccl, _ON_RANKS, on_ranks=True),
    Check("course", "nbgrader", course.nbgrader, _ON_TORCH),
    Check("course", "alembic", course.alembic),
    Check("course", "settings", course.settings, 60.0),
    Check("course", "sandbox", course.sandbox, _ON_RANKS, on_ranks=True),
    Check("course", "disk", course.disk),
)


def examine(
    quick: bool = False,
    progress: Callable[[str], None] | None = None,
    checks: Sequence[Check] = CHECKS,
) -> list[Finding]:
    """Run all checks, and return their findings, area by area.

    `quick` leaves out the checks that launch ranks. `progress` is called with a message for a
    check that takes over two seconds. Exceptions in checks are caught, and their output is
    discarded.
    """
    if all(importlib.util.find_spec(name) is None for name in NEEDED):
        return [_elsewhere()]
    visit, findings = Visit(), []
    report = progress or (lambda text: None)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for check in checks:
                if not (quick and check.on_ranks):
                    findings += _carried_out(check, visit, report)
    finally:
        visit.end()
    return findings


def _elsewhere() -> Finding:
    """Return the finding for a Python that has none of the required packages."""
    message = f"{sys.executable} has no {' and no '.join(NEEDED)}: it is not the course's Python"
    repair = "make lab   # creates .venv; then: .venv/bin/python -m dtlab doctor"
    return wrong("software", "Python", message, repair, executable=sys.executable)


def _carried_out(check: Check, visit: Visit, progress: Callable[[str], None]) -> list[Finding]:
    """Run a check; return its findings until it ended, failed, or reached its time limit."""
    findings: list[Finding] = []
    failed: list[Finding] = []

    def look() -> None:
        try:
            for finding in check.look(visit):
                findings.append(finding)
        except BaseException as error:  # noqa: BLE001  settings are programs; they may even exit
            failed.append(_failure(check, error))

    thread = threading.Thread(target=look, name=f"doctor {check.name}", daemon=True)
    begun = time.monotonic()
    thread.start()
    thread.join(min(PATIENCE, check.limit))
    if thread.is_alive() and check.limit > PATIENCE:
        progress(f"{check.name} takes a while; {check.limit:g} s at most ...")
        thread.join(max(0.0, begun + check.limit - time.monotonic()))
    if thread.is_alive():
        message = f"no answer within {check.limit:g} s"
        failed.append(wrong(check.area, check.name, message, _report(), limit_seconds=check.limit))
    return [*findings, *failed]


def _failure(check: Check, error: BaseException) -> Finding:
    message = (
        f"this check itself failed: {type(error).__name__}: {error}. Please report the output:"
    )
    lines = "".join(traceback.format_exception(error))
    return wrong(check.area, check.name, message, _report(), traceback=lines)


def _report() -> str:
    return f"{shlex.quote(sys.executable)} -m dtlab doctor --json"
