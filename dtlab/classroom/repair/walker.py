"""A streaming JSON parser for files that are huge, truncated or hostile.

    {"cells": [{"source": "x = 1", "outputs": [ ... 50 MB ... ]}, ...
    members()  items()  text()     skip()

`json.loads` builds all values, or fails at the first wrong character. A `Walker` skips unneeded
values at the speed of a regular expression and in constant memory, builds only requested values,
and stops at the position of an error.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["Broken", "Walker", "plain_text"]

_STRING = rb'"(?:[^"\\\n]++|\\.)*+"'  # on one line, so that a missing quote costs one cell only
_FLAT = rb'[^"\[\]{}]++|' + _STRING
_NESTED = _FLAT
for _ in range(3):  # levels matched by the regular expression; deeper brackets are counted
    _NESTED = _FLAT + rb"|[\[{](?:" + _NESTED + rb")*+[\]}]"

_PASSED = {
    "space": re.compile(rb"[ \t\r\n]*+"),
    "string": re.compile(_STRING),
    "inner": re.compile(rb"(?:" + _NESTED + rb")*+"),
    "atom": re.compile(rb'[^\s,:\[\]{}"]++'),
}
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_MOST_STEPS = 1_000_000  # values and brackets visited one by one, which takes some seconds
_CP1252 = {0xDC00 + byte: bytes([byte]).decode("cp1252", "replace") for byte in range(128, 256)}


class Broken(Exception):
    """The JSON is invalid or ends at the walker's position."""


class Walker:
    """A position in JSON (UTF-8 bytes). Tolerates missing commas and errors in skipped values."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.odd = 0  # texts with bytes or characters that are not valid UTF-8
        self._steps = 0

    def next(self) -> bytes:
        """Returns the next character after whitespace; empty at the end."""
        self._passed("space")
        return self.data[self.at : self.at + 1]

    def take(self, mark: bytes) -> bool:
        """Skips `mark` if it is next; returns whether it was."""
        is_next = self.next() == mark
        self.at += is_next
        return is_next

    def skip(self) -> None:
        """Skips the next value. Raises `Broken` if there is none or it does not end."""
        mark = self.next()
        if mark in (b"[", b"{"):
            self._skip_nested()
        elif not self._passed("string" if mark == b'"' else "atom"):
            raise Broken

    def members(self) -> Iterator[str]:
        """Yields the keys of the next object. The caller reads or skips the value after each."""
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
        """Yields at each value of the next list. The caller reads or skips it."""
        self._demand(b"[")
        while not self.take(b"]"):
            self._count()
            yield
            self.take(b",")

    def value(self, most: int) -> Any:
        """Builds the next value. Returns None if it has over `most` bytes or is invalid."""
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
        """Reads a string or a list of lines as text. Returns None for other or too long values."""
        if self.next() != b"[":
            return self._line(most)
        lines, items, valid = io.StringIO(), 0, 0
        for _ in self.items():
            line = self._line(most)
            items += 1
            if line is not None and lines.tell() <= most:
                lines.write(line)
                valid += 1
        return lines.getvalue() if lines.tell() <= most and (valid or not items) else None

    def _line(self, most: int) -> str | None:
        """Skips the next value. Returns it if it is a string that is not too long."""
        mark, start = self.next(), self.at
        self.skip()
        if mark != b'"' or self.at - start > 6 * most + 2:  # \u0000 is one character
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
        """Moves to the end and raises `Broken`."""
        self.at = len(self.data)
        raise Broken

    def _count(self) -> None:
        """Stops after more steps than a notebook needs, since reading could take minutes."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            self.stop()

    def _demand(self, mark: bytes) -> None:
        if not self.take(mark):
            raise Broken

    def _passed(self, pattern: str) -> bool:
        """Skips the longest match of a pattern in `_PASSED`; returns whether it was not empty."""
        match = _PASSED[pattern].match(self.data, self.at)
        start, self.at = self.at, match.end() if match else self.at
        return self.at > start

    def _decoded(self, raw: bytes) -> str:
        """Decodes UTF-8; decodes invalid bytes as cp1252, Western European Windows."""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.odd += 1
            return raw.decode(errors="surrogateescape").translate(_CP1252)


def plain_text(text: str) -> str:
    """Replaces each lone surrogate, which UTF-8 cannot encode, by a question mark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def _kept(escape: re.Match[str]) -> str:
    """Keeps a valid JSON escape; escapes any other backslash."""
    return escape[0] if escape[1] else r"\\"
