"""Findings as text for a terminal, and as JSON for programs.

    machine
      ok     CPUs           2 of 2 may be used
      WRONG  shared memory  /dev/shm cannot be written: Read-only file system; ...
             mend:          sudo mount -o remount,rw,mode=1777,size=2g /dev/shm
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from dtlab.doctor.finding import Finding

__all__ = ["FORMAT", "as_json", "as_text"]

FORMAT = 1  # goes up when a key of the JSON changes or goes
_STATUS, _NAME = 5, 13  # characters
_INDENT = " " * (2 + _STATUS + 2)
_LEAST_WIDTH = 60


def as_text(findings: Sequence[Finding], seconds: float, width: int = 100) -> Iterator[str]:
    """Lines of at most `width` characters, save for commands: they are there to be copied."""
    for area, group in groupby(findings, key=lambda finding: finding.area):
        yield area
        for finding in group:
            yield from _lines(finding, max(width, _LEAST_WIDTH))
    yield ""
    yield _summary(findings, seconds)


def _lines(finding: Finding, width: int) -> Iterator[str]:
    status = finding.status.upper() if finding.status == "wrong" else finding.status
    yield from textwrap.wrap(
        " ".join(finding.message.split()),
        width=width,
        initial_indent=f"  {status:<{_STATUS}}  {finding.name:<{_NAME}}  ",
        subsequent_indent=f"{_INDENT}{'':<{_NAME}}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    if finding.mend:
        yield f"{_INDENT}{'mend:':<{_NAME}}  {finding.mend}"


def _summary(findings: Sequence[Finding], seconds: float) -> str:
    faulty = [finding.name for finding in findings if finding.status == "wrong"]
    notes = sum(finding.status == "note" for finding in findings)
    told = f"{len(faulty)} wrong: {', '.join(faulty)}" if faulty else "Nothing is wrong"
    noted = f"; {notes} note{'s' if notes > 1 else ''}" if notes else ""
    return f"{told}{noted}. {len(findings)} findings in {seconds:.1f} s."


def as_json(findings: Sequence[Finding], seconds: float, version: str) -> str:
    """One object: "format", "dtlab_version", "status", "seconds", and "findings" as they are.

    "status" is that of the worst finding. A finding has the keys of `Finding`, its "value" keys
    that name their units.
    """
    found = {finding.status for finding in findings}
    told = {
        "format": FORMAT,
        "dtlab_version": version,
        "status": next((one for one in ("wrong", "note") if one in found), "ok"),
        "seconds": round(seconds, 3),
        "findings": [
            {
                "area": one.area,
                "name": one.name,
                "status": one.status,
                "message": one.message,
                "mend": one.mend,
                "value": dict(one.value),
            }
            for one in findings
        ],
    }
    return json.dumps(told, indent=2)
