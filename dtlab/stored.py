"""What is stored about the learner on this machine: lines of JSON in the user's data folder.

The file is usually `$XDG_DATA_HOME/dtlab/progress.jsonl`. Each line is appended by one write, so
several notebooks may write at once. Nothing of it leaves the machine. If it cannot be written, the
caller continues.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["append", "entries", "stored"]

T = TypeVar("T")


def append(entry: dict[str, Any]) -> None:
    """Store an entry. Raises OSError or RuntimeError if there is no folder that can be written."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    # The newline comes first, so that a line cut off by a crash does not damage this one.
    line = "\n" + json.dumps(entry)
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def entries(name: str) -> list[dict[str, Any]]:
    """Return the entries that have a value of this name, in the order of time.

    Invalid lines, which a crash may leave, are skipped.
    """
    found = []
    try:
        lines = _file().read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and name in entry:
                found.append(entry)
    return found


def stored(name: str, key: str, kind: Callable[[Any], T]) -> list[tuple[str, T]]:
    """Return `name` and the value of `key` of each entry that has both, the latest one last."""
    found = []
    for entry in entries(name):
        with suppress(ValueError, TypeError, KeyError):
            found.append((str(entry[name]), kind(entry[key])))
    return found


def _file() -> Path:
    from platformdirs import user_data_path

    return user_data_path("dtlab", appauthor=False) / "progress.jsonl"
