"""`dtlab doctor`: a diagnosis of this machine: what it can do, and how to repair what is wrong.

This file has the checks in one table, the function that runs them, and findings as text and JSON.

    checks.py    the functions of the table
    probe.py     what runs in other processes: imports of torch and others, and an all-reduce

This process imports neither torch nor NumPy, so the doctor also works if they are broken.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import shlex
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from dtlab.doctor import checks
from dtlab.doctor.checks import RANKS_LIMIT, Finding, importable
from dtlab.doctor.probe import IMPORT_LIMIT, Facts

__all__ = ["CHECKS", "FORMAT", "Check", "Finding", "as_json", "as_text", "examine"]

FORMAT = 2  # is increased when a key of the JSON changes or is removed
REQUIRED = ("torch", "psutil")  # a Python that has neither is not the course's Python
PATIENCE = 2.0  # seconds until a message says that a check takes a while
ON_IMPORT = IMPORT_LIMIT + 10.0  # seconds
ON_RANKS = IMPORT_LIMIT + RANKS_LIMIT + 30.0  # seconds: import of torch in the server, and ranks


@dataclass(frozen=True)
class Check:
    """A row of the table: a function of checks.py, and its time `limit` in seconds."""

    area: str
    name: str
    function: Callable[[Facts], Finding | None]
    limit: float = 20.0
    on_ranks: bool = False


MATPLOTLIB = partial(importable, "matplotlib", "matplotlib>=3.9")
JUPYTERLAB = partial(importable, "jupyterlab", "jupyterlab>=4.2")
CHECKS = (
    Check("machine", "system", checks.operating_system),
    Check("machine", "CPUs", checks.cpus),
    Check("machine", "memory", checks.memory),
    Check("machine", "shared memory", checks.shared_memory),
    Check("machine", "loopback", checks.loopback),
    Check("machine", "watcher", checks.watcher),
    Check("software", "Python", checks.python),
    Check("software", "dtlab", checks.packages),
    Check("software", "torch", checks.torch, ON_IMPORT),
    Check("software", "matplotlib", MATPLOTLIB, ON_IMPORT),
    Check("software", "JupyterLab", JUPYTERLAB, ON_IMPORT),
    Check("gpus", "GPUs", checks.cards, ON_IMPORT),
    Check("gpus", "compute mode", checks.compute_mode, ON_IMPORT),
    Check("gpus", "MIG", checks.mig, ON_IMPORT),
    Check("gpus", "usable", checks.usable, 2 * ON_IMPORT),
    Check("gpus", "links", checks.links, ON_IMPORT),
    Check("gpus", "peer access", checks.peer_access, ON_IMPORT),
    Check("ranks", "gloo", checks.gloo, ON_RANKS, on_ranks=True),
    Check("ranks", "nccl", checks.nccl, ON_RANKS, on_ranks=True),
    Check("course", "nbgrader", checks.nbgrader, ON_IMPORT),
    Check("course", "settings", checks.settings, 60.0),
    Check("course", "gradebook", checks.gradebook, 60.0),
    Check("course", "sandbox", checks.sandbox, ON_RANKS, on_ranks=True),
    Check("course", "disk", checks.disk),
)


def examine(
    quick: bool = False,
    progress: Callable[[str], None] | None = None,
    checks: Sequence[Check] = CHECKS,
) -> list[Finding]:
    """Run all checks, and return their findings, area by area.

    `quick` leaves out the checks that launch ranks. `progress` is called with a message for a
    check that takes over two seconds. A check that fails or hangs costs only its time limit, and
    what it prints is discarded.
    """
    if all(importlib.util.find_spec(name) is None for name in REQUIRED):
        message = f"{sys.executable} has no {' and no '.join(REQUIRED)}: it is not the course's "
        repair = "make lab   # creates .venv; then: .venv/bin/python -m dtlab doctor"
        return [Finding("wrong", f"{message}Python", repair, {}, "software", "Python")]
    facts, findings = Facts(), []
    with contextlib.redirect_stdout(io.StringIO()):
        for check in checks:
            if not (quick and check.on_ranks):
                finding = _carried_out(check, facts, progress or (lambda text: None))
                if finding is not None:
                    findings.append(replace(finding, area=check.area, name=check.name))
    return findings


def _carried_out(check: Check, facts: Facts, progress: Callable[[str], None]) -> Finding | None:
    """Run a check in a thread; return its finding, or that it failed or reached its limit."""
    results: list[Finding | None] = []
    report = f"{shlex.quote(sys.executable)} -m dtlab doctor --json"

    def run() -> None:
        try:
            results.append(check.function(facts))
        except BaseException as error:  # noqa: BLE001  settings are programs; they may even exit
            message = f"this check itself failed: {type(error).__name__}: {error}. Please report "
            value = {"traceback": "".join(traceback.format_exception(error))}
            results.append(Finding("wrong", f"{message}the output:", report, value))

    thread = threading.Thread(target=run, name=f"doctor {check.name}", daemon=True)
    thread.start()
    thread.join(min(PATIENCE, check.limit))
    if not results and check.limit > PATIENCE:
        progress(f"{check.name} takes a while; {check.limit:g} s at most ...")
        thread.join(check.limit - PATIENCE)
    if results:
        return results[0]
    return Finding("wrong", f"no answer within {check.limit:g} s", report)


KEYS = ("area", "name", "status", "message", "repair", "value")
LEAST_WIDTH = 60
INDENT = " " * 9  # in front of the column of names, which has 13 characters


def as_text(findings: Sequence[Finding], seconds: float, width: int = 100) -> Iterator[str]:
    """Yield lines of at most `width` characters; commands are not wrapped, to be copied whole."""
    for area, group in groupby(findings, key=lambda finding: finding.area):
        yield area
        for finding in group:
            status = "WRONG" if finding.status == "wrong" else finding.status
            yield from textwrap.wrap(
                " ".join(finding.message.split()),
                width=max(width, LEAST_WIDTH),
                initial_indent=f"  {status:<5}  {finding.name:<13}  ",
                subsequent_indent=f"{INDENT}{'':<13}  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            if finding.repair:
                yield f"{INDENT}{'repair:':<13}  {finding.repair}"
    yield ""
    faulty = [finding.name for finding in findings if finding.status == "wrong"]
    notes = sum(finding.status == "note" for finding in findings)
    summary = f"{len(faulty)} wrong: {', '.join(faulty)}" if faulty else "Nothing is wrong"
    noted = f"; {notes} note{'s' if notes > 1 else ''}" if notes else ""
    yield f"{summary}{noted}. {len(findings)} findings in {seconds:.1f} s."


def as_json(findings: Sequence[Finding], seconds: float, version: str) -> str:
    """Return one JSON object: "format", "dtlab_version", "status", "seconds" and "findings".

    "status" is the status of the worst finding. A finding has the keys of `Finding`; the keys
    inside "value" name their units.
    """
    statuses = {finding.status for finding in findings}
    content = {
        "format": FORMAT,
        "dtlab_version": version,
        "status": next((status for status in ("wrong", "note") if status in statuses), "ok"),
        "seconds": round(seconds, 3),
        "findings": [{key: getattr(finding, key) for key in KEYS} for finding in findings],
    }
    return json.dumps(content, indent=2)
