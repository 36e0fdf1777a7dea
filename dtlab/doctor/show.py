"""Findings as text for a terminal, and as JSON for programs.

machine
  ok     CPUs           2 of 2 are usable
  WRONG  shared memory  /dev/shm is not writable: Read-only file system; ...
         repair:        sudo mount -o remount,rw,mode=1777,size=2g /dev/shm
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from dtlab.doctor.finding import Finding

__all__ = ["FORMAT", "as_json", "as_text"]

FORMAT = 1  # is increased when a key of the JSON changes or is removed
_STATUS, _NAME = 5, 13  # characters
_INDENT = " " * (2 + _STATUS + 2)
_LEAST_WIDTH = 60


def as_text(findings: Sequence[Finding], seconds: float, width: int = 100) -> Iterator[str]:
    """Yield lines of at most `width` characters; commands are not wrapped, to be copied whole."""
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
    if finding.repair:
        yield f"{_INDENT}{'repair:':<{_NAME}}  {finding.repair}"


def _summary(findings: Sequence[Finding], seconds: float) -> str:
    faulty = [finding.name for finding in findings if finding.status == "wrong"]
    notes = sum(finding.status == "note" for finding in findings)
    summary = f"{len(faulty)} wrong: {', '.join(faulty)}" if faulty else "Nothing is wrong"
    noted = f"; {notes} note{'s' if notes > 1 else ''}" if notes else ""
    return f"{summary}{noted}. {len(findings)} findings in {seconds:.1f} s."


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
        "findings": [
            {
                "area": finding.area,
                "name": finding.name,
                "status": finding.status,
                "message": finding.message,
                "repair": finding.repair,
                "value": dict(finding.value),
            }
            for finding in findings
        ],
    }
    return json.dumps(content, indent=2)
