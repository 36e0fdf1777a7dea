"""A JSON reader that builds nothing, for files that are huge, truncated or hostile.

    {"cells": [{"source": "x = 1", "outputs": [ ... 50 MB ... ]}, ...
    members()  items()  text()     skip()

`json.loads` builds everything, and nothing where one sign is wrong. A `Walker` passes over what
nobody wants, at the speed of a regular expression and in constant memory, builds only what it is
asked for, and stands at the fault when it meets one.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["Broken", "Walker", "plain_text"]

_STRING = rb'"(?:[^"\\\n]++|\\.)*+"'  # it ends on its line, so that a lost quote costs one cell
_FLAT = rb'[^"\[\]{}]++|' + _STRING
_NESTED = _FLAT
for _ in range(3):  # that deep in C; what lies deeper is counted bracket by bracket
    _NESTED = _FLAT + rb"|[\[{](?:" + _NESTED + rb")*+[\]}]"

_PASSED = {
    "space": re.compile(rb"[ \t\r\n]*+"),
    "string": re.compile(_STRING),
    "inner": re.compile(rb"(?:" + _NESTED + rb")*+"),
    "atom": re.compile(rb'[^\s,:\[\]{}"]++'),
}
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_MOST_STEPS = 1_000_000  # values and brackets visited one by one: some seconds
_CP1252 = {0xDC00 + byte: bytes([byte]).decode("cp1252", "replace") for byte in range(128, 256)}


class Broken(Exception):
    """Where the walker stands, the JSON is broken or over."""


class Walker:
    """A place in JSON as UTF-8 bytes. Commas may be missing; so may whatever nobody looks at."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.odd = 0  # texts with bytes or signs that are not UTF-8
        self._steps = 0

    def next(self) -> bytes:
        """The sign that comes next, behind blanks; nothing at the end."""
        self._passed("space")
        return self.data[self.at : self.at + 1]

    def take(self, mark: bytes) -> bool:
        """Whether `mark` comes next; passes it if so."""
        found = self.next() == mark
        self.at += found
        return found

    def skip(self) -> None:
        """Passes the next value. Raises `Broken` where there is none, or it does not end."""
        mark = self.next()
        if mark in (b"[", b"{"):
            self._skip_nested()
        elif not self._passed("string" if mark == b'"' else "atom"):
            raise Broken

    def members(self) -> Iterator[str]:
        """The keys of the next object. The caller passes the value after each."""
        self._demand(b"{")
        while not self.take(b"}"):
            self._count()
            key = self.value(1000)
            if not isinstance(key, str):
                raise Broken
            self._demand(b":")
            yield key
            self.take(b",")

    def items(self) -> Iterator[None]:
        """Stands at each value of the next list. The caller passes it."""
        self._demand(b"[")
        while not self.take(b"]"):
            self._count()
            yield
            self.take(b",")

    def value(self, most: int) -> Any:
        """Builds the next value. None where it has over `most` bytes, or makes no sense."""
        self.next()
        start = self.at
        self.skip()
        if self.at - start > most:
            return None
        try:
            return json.loads(self._decoded(self.data[start : self.at]), strict=False)
        except (ValueError, RecursionError):
            return None

    def text(self, most: int) -> str | None:
        """The next value as text: a string, or lines. None where it is neither, or too long."""
        if self.next() != b"[":
            return self._line(most)
        lines, items, found = io.StringIO(), 0, 0
        for _ in self.items():
            line = self._line(most)
            items += 1
            if line is not None and lines.tell() <= most:
                lines.write(line)
                found += 1
        return lines.getvalue() if lines.tell() <= most and (found or not items) else None

    def _line(self, most: int) -> str | None:
        """Passes the next value. What it says where it is a string that is not too long."""
        mark, start = self.next(), self.at
        self.skip()
        if mark != b'"' or self.at - start > 6 * most + 2:  # \u0000 stands for one sign
            return None
        raw = self._decoded(self.data[start : self.at])
        try:
            text = json.loads(raw, strict=False)
        except ValueError:
            text = json.loads(_ESCAPE.sub(_kept, raw), strict=False)
        line = plain_text(text)
        self.odd += line != text
        return line

    def _skip_nested(self) -> None:
        depth = 0
        while mark := self.data[self.at : self.at + 1]:
            if mark == b'"':
                break
            depth += 1 if mark in b"[{" else -1
            self.at += 1
            if depth == 0:
                return
            self._count()
            self._passed("inner")
        raise Broken

    def stop(self) -> None:
        """Gives up: stands at the end, and raises `Broken`."""
        self.at = len(self.data)
        raise Broken

    def _count(self) -> None:
        """Gives up where there is more than a notebook ever had: it would take minutes."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            self.stop()

    def _demand(self, mark: bytes) -> None:
        if not self.take(mark):
            raise Broken

    def _passed(self, what: str) -> bool:
        """Passes all that there is of it; whether there was any."""
        found = _PASSED[what].match(self.data, self.at)
        start, self.at = self.at, found.end() if found else self.at
        return self.at > start

    def _decoded(self, raw: bytes) -> str:
        """UTF-8; bytes that are none are read as Windows' Western European ones."""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.odd += 1
            return raw.decode(errors="surrogateescape").translate(_CP1252)


def plain_text(text: str) -> str:
    """The text with a question mark for each half of a pair that UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def _kept(escape: re.Match[str]) -> str:
    """An escape that JSON knows as it is; else the backslash as such."""
    return escape[0] if escape[1] else r"\\"
