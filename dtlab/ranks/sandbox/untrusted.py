"""Checks of messages from untrusted processes: size, depth and content.

Plain data run nothing, but can still be nested, long or strange enough to use up a reader's memory
and time; and names of files in them can lead a reader to files that the writer may not see. Here
everything is measured before it is opened, and looked at before it goes on.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dtlab.errors import Failure, RankError
from dtlab.ranks.plain import decode
from dtlab.ranks.protocol import Finding, Frame, OpInfo, Outcome, RemoteFailure
from dtlab.ranks.watch import locate
from dtlab.trace import Records

__all__ = ["TooMuch", "cleaned", "failure", "nonsense", "op", "opened", "records", "spoken"]

MOST_VALUES = 1_000_000  # numbers, texts, lists, ... in one message: some 200 MB in memory
MOST_COPIED = 512 * 2**20  # bytes: what is inside something is copied once more for each layer
MOST_LAYERS = 50  # each takes some 40 kB of the reader's stack, which is not checked
MOST_TEXT = 4000  # characters of a message
MOST_FRAMES, MOST_CAUSES = 100, 5  # of a traceback
MOST_OPS = 20  # that a rank may complain about


class TooMuch(ValueError):
    """A message that would take too much memory or time to open."""


# Messages ----------------------------------------------------------------------------------------

# MessagePack: bytes after the first one, and what they are the length of
_FIXED = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,  # lists and dictionaries: what is in them comes next
}  # fmt: skip
_LONG = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
# Extensions: messages themselves, after a byte that says which kind they are
_INSIDE = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
_SHORT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


def opened(data: bytes | bytearray) -> Any:
    """The plain value in a message. Raises `TooMuch` or `NotPlain`, and takes 1 s at most."""
    weigh(data)
    value = decode(data)
    if isinstance(value, bytes):
        weigh(value)  # a message in a message, which others will open
    return value


def weigh(data: bytes | bytearray) -> None:
    """Raises `TooMuch` for a message with too many values, or too many layers."""
    at, values, copied, end = 0, 0, 0, len(data)
    ends: list[int] = []  # of the extensions around what comes next
    while at < end:
        while ends and at >= ends[-1]:
            if at > ends.pop():
                raise TooMuch("something reaches beyond what it is in")
        head = data[at]
        at += 1
        values += 1
        if 0xA0 <= head <= 0xBF:
            at += head - 0xA0
        elif head in _FIXED:
            at += _FIXED[head]
        elif head in _LONG or head in _INSIDE:
            form = _LONG.get(head) or _INSIDE[head]
            width = struct.calcsize(form)
            if at + width > end:
                raise TooMuch("something reaches beyond the message")
            length = struct.unpack_from(form, data, at)[0]
            at += width + (length if head in _LONG else 1)
            copied += length
            if head in _INSIDE:
                ends.append(at + length)
        elif head in _SHORT:
            ends.append(at + 1 + _SHORT[head])
            at += 1
        if values > MOST_VALUES or copied > MOST_COPIED or len(ends) > MOST_LAYERS:
            raise TooMuch("a message of too many values, or too deep")
    if at > end:
        raise TooMuch("something reaches beyond the message")


def spoken(value: Any) -> Any:
    """Texts that can be written to a file, whatever they were; other values as they are."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {spoken(key): spoken(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(spoken, value))
    return value


# What ranks tell ---------------------------------------------------------------------------------


def failure(fields: Any) -> RemoteFailure:
    """A rank's failure. Raises ValueError or TypeError for anything else."""
    told = RemoteFailure.of(fields)
    chain = [
        ([_frame(one) for one in frames[-MOST_FRAMES:]], _text(text))
        for frames, text in told.chain[:MOST_CAUSES]
    ]
    return RemoteFailure(told.kind, _text(told.message), chain)


def op(fields: Sequence[Any], world_size: int) -> OpInfo:
    """An operation. Raises ValueError or TypeError for anything else."""
    rank, name, description, partners, tag, group, members, file, line = fields
    if not 0 <= int(rank) < world_size:
        raise ValueError("an operation of no rank")
    return OpInfo(
        int(rank), _text(name, 100), _text(description, 500), _ranks(partners, world_size),
        int(tag), int(group), _ranks(members, world_size), _file(file), _line(line),
    )  # fmt: skip


def records(fields: Any, rank: int, world_size: int) -> Records:
    """What a rank recorded. Raises ValueError or TypeError for anything else."""
    *start, extras, names, groups, dtypes, files, dropped = fields
    if not all(isinstance(one, dict) for one in extras):
        raise TypeError("spans without their details")
    own = [
        spoken(list(extras)),
        [_text(name, 200) for name in names],
        [(_text(name, 500), _members(ranks, world_size)) for name, ranks in groups],
        [(_text(name, 100), int(size)) for name, size in dtypes],
        [_text(file, 1000) for file in files],
        max(0, int(dropped)),
    ]
    made = Records.of([*start, *own], rank, world_size)
    if len(made.comm) and made.comm[:, 4].min() < 0:
        raise ValueError("messages of less than nothing")
    return made


def cleaned(outcome: Outcome, world_size: int) -> Outcome:
    """What the supervisor saw: it is trusted, but names, texts and numbers are the ranks' own."""

    def own(ops: Sequence[OpInfo]) -> list[OpInfo]:
        return [op(one, world_size) for one in ops[: 10 * world_size]]

    finding = outcome.finding
    if finding is not None:
        finding = Finding(
            finding.reason, own(finding.ops), finding.left, own(finding.unmatched), finding.seconds
        )
    ends = [replace(one, stack=[_frame(each) for each in one.stack]) for one in outcome.ranks]
    return replace(
        outcome, ranks=ends, finding=finding, waiting=own(outcome.waiting),
        unreceived=own(outcome.unreceived),
    )  # fmt: skip


def nonsense(error: Exception) -> RankError:
    """The error where what ranks told cannot even be explained."""
    told = Failure("result", f"told what makes no sense: {type(error).__name__}")
    return RankError(f"some rank {told.message}", failures={0: told})


def _text(text: Any, most: int = MOST_TEXT) -> str:
    if not isinstance(text, str):
        raise TypeError("no text")
    return str(spoken(text[:most]))


def _members(ranks: Any, world_size: int) -> tuple[int, ...]:
    """All ranks of a group. Raises ValueError where there are others."""
    members = tuple(int(rank) for rank in ranks)
    if members != _ranks(members, world_size):
        raise ValueError("a group of ranks that there are not")
    return members


def _ranks(ranks: Sequence[Any], world_size: int) -> tuple[int, ...]:
    """Those that there are, as often as they are named first."""
    return tuple(dict.fromkeys(rank for rank in map(int, ranks) if 0 <= rank < world_size))


def _frame(frame: Frame) -> Frame:
    return Frame(_file(frame.file), _line(frame.line), _text(frame.function, 200))


def _line(line: Any) -> int:
    return min(max(0, int(line)), 2**24)


def _file(file: str) -> str:
    """A name by which nobody opens anything: a traceback quotes whatever file it is told to.

    Files of Python, installed packages and dtlab keep their names; no secret is in them.
    """
    known = not locate.is_learners(file) and file == os.path.normpath(file)
    if known and file.isprintable() and os.path.isabs(file):
        return file
    name = os.path.basename(_text(file, 1000)).strip("<>")[:100]
    return f"<{name or 'unknown'}>"
