"""`Finding`: the result of one check of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["AREAS", "Finding", "Status", "in_gb", "note", "ok", "wrong"]

Status = Literal["ok", "note", "wrong"]
AREAS = ("machine", "software", "gpus", "ranks", "course")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    `area` is one of `AREAS`. `value` is what was found, as plain data whose keys name their units
    ("memory_bytes", "all_reduce_seconds"). `status` is "ok"; "note", worth knowing; or "wrong",
    something of the course will fail. `mend` is the command that mends it, "" where none does.
    """

    area: str
    name: str
    value: Mapping[str, Any]
    status: Status
    message: str
    mend: str = ""


def ok(area: str, name: str, message: str, /, **value: Any) -> Finding:
    """A finding with nothing to be done."""
    return Finding(area, name, value, "ok", message)


def note(area: str, name: str, message: str, mend: str = "", /, **value: Any) -> Finding:
    """Something worth knowing, for which nothing fails."""
    return Finding(area, name, value, "note", message, mend)


def wrong(area: str, name: str, message: str, mend: str, /, **value: Any) -> Finding:
    """Something for which a part of the course fails."""
    return Finding(area, name, value, "wrong", message, mend)


def in_gb(nbytes: float) -> str:
    """Bytes in units of 10^9: `51.6e9` as "51.6 GB". Without NumPy, which may be broken."""
    return f"{nbytes / 1e9:.3g} GB"
