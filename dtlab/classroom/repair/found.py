"""Reads the cells of a notebook file, even if their fields are old or invalid.

    {"cell_type": "heading", "level": 2, "source": ["Title"]} ──> Found("markdown", "## Title")

Each problem of a cell is counted, and the field is then left out or corrected, so that all tools
can copy, check and write the result.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from nbformat.validator import ValidationError, get_validator

from dtlab.classroom.repair.walker import Broken, Walker, plain_text

__all__ = ["Cells", "Found", "plain"]

_MOST = {"source": 16_000_000, "attachments": 16_000_000, "metadata": 2_000_000}  # of all cells
_MOST_CELLS = 10_000
_METADATA = 20_000  # characters of one cell's metadata
_DEEPEST = 20  # levels of metadata: some tools cannot copy or write deeper ones

_SOURCES = ("source", "input", "code")  # the names in formats 4, 3 and 1
_CODE = {"outputs", "execution_count", "prompt_number", "input", "code"}
_FIELDS = _CODE | {"cell_type", "source", "metadata", "id", "attachments"}
_FIELDS |= {"language", "collapsed", "level", "prompt", "rendered"}  # of formats 3 to 1
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Found:
    """A cell of the learner: `kind` is "code", "markdown" or "raw"; `id` is None if unusable."""

    kind: str
    source: str
    id: str | None
    metadata: dict[str, Any]
    attachments: dict[str, Any] | None = None


class Cells:
    """The cells that a walker has read, and the number of cells with each problem."""

    def __init__(self, walker: Walker) -> None:
        self.walker = walker
        self.found: list[Found] = []
        self.problems: Counter[str] = Counter()
        self._left = dict(_MOST)

    def read(self, sure: bool = True) -> None:
        """Reads the next object as a cell. Unless `sure`, skips it if it has no kind or source."""
        fields: dict[str, Any] = {}
        try:
            for key in self.walker.members():
                fields[key] = self._field(key)
        except Broken:
            sure = False  # the source may still be complete, since tools write it last
            raise
        finally:
            if sure or ("cell_type" in fields and fields.keys() & set(_SOURCES)):
                self._keep(fields)

    def _field(self, key: str) -> Any:
        if key in _SOURCES:
            return self.walker.text(self._left["source"])
        if key in ("metadata", "attachments"):
            return self.walker.value(self._left[key])
        if key in ("cell_type", "id", "level"):
            return self.walker.value(1000)
        self.walker.skip()
        return None

    def pass_by(self) -> None:
        """Skips a value that is not a cell."""
        self.walker.skip()
        self.problems["no text"] += 1

    def _keep(self, fields: dict[str, Any]) -> None:
        source = next((fields[key] for key in _SOURCES if fields.get(key) is not None), None)
        if source is None:
            self.problems["no text"] += 1
            return
        if len(self.found) == _MOST_CELLS:
            self.problems["too many"] = 1
            self.walker.stop()
        self._left["source"] -= len(source)
        if "\r" in source:
            self.problems["line ends"] += 1
            source = source.replace("\r\n", "\n").replace("\r", "\n")
        if fields.get("cell_type") == "heading":
            source = f"{_hashes(fields.get('level'))} {source}"
        self.problems["fields"] += bool(fields.keys() - _FIELDS)
        kind, name = self._kind(fields), fields.get("id")
        name = name if isinstance(name, str) and _ID.fullmatch(name) else None
        self.problems["id"] += name is None
        metadata, attachments = self._metadata(fields), self._attachments(kind, fields)
        self.found.append(Found(kind, source, name, metadata, attachments))

    def _kind(self, fields: dict[str, Any]) -> str:
        kind = fields.get("cell_type")
        if kind in ("heading", "html"):  # of format 3
            return "markdown"
        if kind not in ("code", "markdown", "raw"):
            self.problems["kind"] += 1
            return "code" if fields.keys() & _CODE else "raw"
        return str(kind)

    def _metadata(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Returns a cell's metadata; only nbgrader's part if another part is invalid."""
        given = fields.get("metadata", {})
        parts = [given] if isinstance(given, dict) else []
        parts += [{"nbgrader": part["nbgrader"]} for part in parts if "nbgrader" in part]
        for part in parts:
            if _sound(part) and (cost := len(json.dumps(part))) <= _METADATA:
                self.problems["metadata"] += part is not given
                self._left["metadata"] -= cost
                return part
        self.problems["metadata"] += 1
        return {}

    def _attachments(self, kind: str, fields: dict[str, Any]) -> dict[str, Any] | None:
        given = fields.get("attachments")
        if isinstance(given, dict) and kind != "code" and _sound({}, given):
            self._left["attachments"] -= len(json.dumps(given))
            return given
        self.problems["attachments"] += "attachments" in fields and given != {}
        return None


def _hashes(level: Any) -> str:
    return "#" * level if isinstance(level, int) and 1 <= level <= 6 else "#"


def _sound(metadata: dict[str, Any], attachments: dict[str, Any] | None = None) -> bool:
    """Whether all tools can write these fields, and cells of any kind may have them."""
    if not plain([metadata, attachments], _DEEPEST):
        return False
    cell: dict[str, Any] = {"id": "x", "source": "", "metadata": metadata}
    code = cell | {"cell_type": "code", "outputs": [], "execution_count": None}
    raw = cell | {"cell_type": "raw", "attachments": attachments or {}}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [code, raw]}
    try:
        get_validator(4, 5).validate(notebook)
    except ValidationError:
        return False
    return True


def plain(value: Any, levels: int) -> bool:
    """Whether JSON can store a value unchanged, and at most `levels` lists or dicts are nested."""
    if isinstance(value, str):
        return plain_text(value) == value
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return not isinstance(value, list) or (
        levels > 0 and all(plain(element, levels - 1) for element in value)
    )
