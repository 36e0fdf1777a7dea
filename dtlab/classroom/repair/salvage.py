"""Recovers cells from a notebook file that is not valid JSON.

    bytes ──> UTF-8 ──walk──> cells of format 4, 3, 2 or 1
                         └── broken? search for the beginning of a cell and continue there

This module does not use the assignment; `repair` does.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dtlab.classroom.repair.found import Cells, Found, plain
from dtlab.classroom.repair.walker import Broken, Walker, plain_text

__all__ = ["Salvaged", "salvage"]

_LARGEST = 200_000_000  # bytes of a file
_KEYS = rb"attachments|cell_type|execution_count|id|input|metadata|outputs|source"
_CELL = re.compile(rb'\{\s*+"(?:' + _KEYS + rb')"\s*+:')
_CONFLICT = re.compile(rb"^(?:<{7}|={7}|>{7}|\|{7})(?: .*)?\r?$", re.MULTILINE)

_MESSAGES = {
    "conflict": "The file contains unresolved merge conflicts (<<<<<<<).",
    "odd": "The file contains bytes that are not valid UTF-8; they were replaced by a best guess.",
    "rest": "The file had other content after the end of the notebook; it was left out.",
    "too many": "The file has more than 10000 cells; the rest was left out.",
    "no text": "{} had no text, or far too much text, and could not be used.",
    "kind": "{} had a kind that notebooks do not have: cells that look like code count as code.",
    "metadata": "{} had invalid metadata, which were left out.",
    "attachments": "{} had attachments that are invalid or too large, which were left out.",
    "fields": "{} had fields that notebooks do not have, which were left out.",
    "line ends": "{} had line ends of Windows, which were converted.",
}


@dataclass
class Salvaged:
    """The recovered cells. `damaged`: cells may be lost; `stamp`: dtlab's metadata in the file."""

    cells: list[Found] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damaged: bool = False
    stamp: dict[str, Any] | None = None


def salvage(submitted: bytes | None, kernel: str) -> Salvaged:
    """Recovers all readable cells of a file; adds a note if its kernel is not `kernel`."""
    if submitted is None:
        return Salvaged(notes=["This notebook was not handed in."])
    if len(submitted) > _LARGEST:
        why = (
            f"The file has {len(submitted) / 1e6:.0f} MB and was not read: the limit is "
            f"{_LARGEST / 1e6:.0f} MB. Clear all outputs, save it, and submit it again."
        )
        return Salvaged(notes=[why])
    if not submitted.strip(b"\0\t\n\r \xef\xbb\xbf\xfe\xff"):
        return Salvaged(notes=["The file is empty."])
    encoding = json.detect_encoding(submitted)
    reader = _Reader(_as_utf8(submitted, encoding))
    reader.read()
    notes = [*reader.notes(kernel)]
    if encoding != "utf-8" and reader.cells.found:
        name = "UTF-8 with a byte order mark" if encoding == "utf-8-sig" else encoding.upper()
        notes.append(f"The file was stored as {name}, and not as plain UTF-8.")
    stamp = reader.header.get("dtlab")
    stamp = stamp if isinstance(stamp, dict) else None
    return Salvaged(reader.cells.found, notes, reader.damaged, stamp)


def _as_utf8(data: bytes, encoding: str) -> bytes:
    """Converts the text to UTF-8, in pieces, so that memory holds it only once."""
    if encoding.startswith("utf-8"):
        return data.removeprefix(codecs.BOM_UTF8)
    pieces = (data[at : at + 2**20] for at in range(0, len(data), 2**20))
    texts = codecs.iterdecode(pieces, encoding, "replace")
    return b"".join(plain_text(text).encode() for text in texts)


class _Reader:
    """Reads a notebook from its beginning; after damage, continues at the next cell."""

    def __init__(self, data: bytes) -> None:
        conflicts = 0
        if b"\n<<<<<<< " in data:
            data, conflicts = _CONFLICT.subn(b"", data)
        self.walker = Walker(data)
        self.cells = Cells(self.walker)
        self.cells.problems["conflict"] = conflicts
        self.header: dict[str, Any] = {}
        self.damaged = False

    def read(self) -> None:
        """Reads all cells."""
        try:
            self._notebook()
            self.cells.problems["rest"] += self.walker.next() != b""
        except Broken:
            self.damaged = True
        if self.damaged or not self.cells.found:
            self._search(self.walker.at if self.damaged else 0)
        self.cells.problems["odd"] = self.walker.odd

    def _notebook(self) -> None:
        for key in self.walker.members():
            if key == "cells":
                self._list()
            elif key == "worksheets":
                for _ in self.walker.items():
                    for name in self.walker.members():
                        self._list() if name == "cells" else self.walker.skip()
            elif key == "metadata" and self.walker.next() == b"{":
                self._metadata()
            elif key in ("nbformat", "nbformat_minor"):
                self.header[key] = self.walker.value(20)
            else:
                self.walker.skip()

    def _metadata(self) -> None:
        """Reads only the needed metadata of a notebook, since widgets may store megabytes."""
        for key in self.walker.members():
            if key in ("kernelspec", "dtlab"):
                value = self.walker.value(2000)
                self.header[key] = value if plain(value, levels=5) else None
            else:
                self.walker.skip()

    def _list(self) -> None:
        self.header["cells"] = True
        for _ in self.walker.items():
            if self.walker.next() == b"{":
                self.cells.read()
            else:
                self.cells.pass_by()

    def _search(self, at: int) -> None:
        """Searches for beginnings of cells from `at` on."""
        before = len(self.cells.found)
        while start := _CELL.search(self.walker.data, at):
            self.walker.at = start.start()
            with contextlib.suppress(Broken):
                self.cells.read(sure=False)
            at = max(self.walker.at, start.end())
        self.damaged = self.damaged or len(self.cells.found) > before

    def notes(self, kernel: str) -> Iterator[str]:
        """Yields the notes on the file."""
        count = len(self.cells.found)
        if not count:
            yield self._why_nothing()
            return
        if self.damaged:
            yield f"The file is damaged: {_in_words(count)} could be read; others may be lost."
        for problem, sentence in _MESSAGES.items():
            if number := self.cells.problems[problem]:
                yield sentence.format(_in_words(number).capitalize())
        if not self.damaged:  # else the metadata may be lost as well
            yield from self._about_format(kernel)

    def _about_format(self, kernel: str) -> Iterator[str]:
        stored = self.header.get("nbformat"), self.header.get("nbformat_minor")
        if stored != (4, 5):
            named = ".".join(str(n) for n in stored if isinstance(n, int)) or "none"
            yield f"The notebook was stored in format {named}, and now is in 4.5."
        elif number := self.cells.problems["id"]:  # before 4.5, cells had no ids
            yield f"{_in_words(number).capitalize()} had no id, or an invalid one."
        spec = self.header.get("kernelspec")
        asked = spec.get("name") if isinstance(spec, dict) else None
        if asked != kernel:
            named = f"the kernel {asked!r:.40}" if isinstance(asked, str) else "no kernel"
            yield f"The notebook asked for {named}; it runs with {kernel!r}."

    def _why_nothing(self) -> str:
        if self.damaged:
            return "The file is no notebook, or damaged: no cell of it could be read."
        if "cells" in self.header:
            return "The notebook has no cells that could be used."
        return "The file is JSON, but no notebook: it has no cells."


def _in_words(count: int) -> str:
    return "one cell" if count == 1 else f"{count} cells"
