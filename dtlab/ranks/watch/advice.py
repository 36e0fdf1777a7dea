"""Advice for an exception of a rank, from its message and the line that raised it."""

from __future__ import annotations

import linecache
import re
from itertools import takewhile

from dtlab.ranks.protocol import Frame
from dtlab.ranks.words import writes_in_place

NO_KEYBOARD = "EOFError: EOF when reading a line"
ASK_IN_NOTEBOOK = (
    "A rank has no keyboard: read the input in a cell of the notebook, and pass it to the ranks."
)
NEXT_INDEX = re.compile(r"\[[^\]%]*rank\w*(\(\w*\))?\s*\+[^\]%]*\]")
INDEX_NAME = re.compile(r"\[(\w+)\]")
NEXT_RANK = re.compile(r"rank\w*(\(\w*\))?\s*\+\s*1\b(?![^#]*%)")
MESSAGES = re.compile(r"\bi?(send|recv)\b|P2POp")
TOO_FAR = "There is no index rank + 1 on the last rank: "
WRAP_AROUND = (
    "it has no right neighbour. If the first element follows the last one, as in a ring, write "
    "(rank + 1) % size."
)
LAST_INDEX = "a list of N elements has the indices 0 to N - 1."
COLLECTIVE = re.compile(
    r"(?:=|\breturn|[(,*/+-])\s*"  # its value is used
    r"\bdist\.(all_reduce|all_gather\w*|all_to_all\w*|broadcast|gather|reduce\w*|scatter)\("
)


def advice_on(message: str, frame: Frame) -> str:
    """Advice for an exception that was raised in the line of `frame`; may be empty."""
    if message == NO_KEYBOARD:
        return ASK_IN_NOTEBOOK
    code = linecache.getline(frame.file, frame.line)
    if message.startswith("IndexError"):  # an index without %, as in chunks[rank + 1]
        values = (_assigned(name, frame) for name in INDEX_NAME.findall(code))
        if NEXT_INDEX.search(code) or any(map(NEXT_RANK.search, values)):
            cell = "".join(linecache.getlines(frame.file))
            return TOO_FAR + (WRAP_AROUND if MESSAGES.search(cell) else LAST_INDEX)
    if "NoneType" in message:
        names = re.findall(r"\w+", code)[:20]
        for source in (code, *(_assigned(name, frame) for name in names)):
            if (call := COLLECTIVE.search(source)) and "async_op" not in source:
                return writes_in_place(call[1])
    return ""


def _assigned(name: str, frame: Frame) -> str:
    """The last line above that of `frame` that assigns the variable `name`; empty if none does.

    It looks no further than the beginning of a function.
    """
    above = reversed(linecache.getlines(frame.file)[: frame.line - 1])
    inside = takewhile(lambda line: not line.lstrip().startswith("def "), above)
    assigns = re.compile(rf"\s*{name}\s*=[^=]")
    return next(filter(assigns.match, inside), "")
