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
    """The result of one check.

    `area` is one of `AREAS`. `value` is plain data whose keys name their units ("memory_bytes",
    "all_reduce_seconds"). `status` is "ok"; "note" for something worth knowing; or "wrong" if some
    part of the course will fail. `repair` is the command that repairs this, "" if there is none.
    """

    area: str
    name: str
    value: Mapping[str, Any]
    status: Status
    message: str
    repair: str = ""


def ok(area: str, name: str, message: str, /, **value: Any) -> Finding:
    """Return a finding that needs no action."""
    return Finding(area, name, value, "ok", message)


def note(area: str, name: str, message: str, repair: str = "", /, **value: Any) -> Finding:
    """Return a finding that is worth knowing but makes nothing fail."""
    return Finding(area, name, value, "note", message, repair)


def wrong(area: str, name: str, message: str, repair: str, /, **value: Any) -> Finding:
    """Return a finding that makes a part of the course fail."""
    return Finding(area, name, value, "wrong", message, repair)


def in_gb(nbytes: float) -> str:
    """Format bytes in units of 10^9: `51.6e9` as "51.6 GB". Does not need NumPy."""
    return f"{nbytes / 1e9:.3g} GB"
