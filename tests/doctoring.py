"""What tests of the doctor share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dtlab.doctor.finding import Finding

__all__ = ["fake_module", "only"]


def only(findings: Iterable[Finding]) -> Finding:
    """The one that a check finds."""
    found = list(findings)
    assert len(found) == 1, found
    return found[0]


def fake_module(folder: Path, name: str, **files: str) -> str:
    """Makes a package of that name in a folder; returns the PYTHONPATH to find it."""
    for file, text in files.items():
        path = folder / name / f"{file}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(folder)
