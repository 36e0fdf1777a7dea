"""Checks of messages from untrusted processes: size, depth and content.

Plain data contain no code, but deep, long or odd data can exhaust a reader's memory and time. File
names in them can make a reader open files that the writer may not read. So each message is
measured before it is decoded, and its values are checked before they are used.
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

MOST_VALUES = 1_000_000  # numbers, texts, lists, ... in one message: about 200 MB in memory
MOST_COPIED = 512 * 2**20  # bytes: nested extensions are copied once for each layer
MOST_LAYERS = 50  # each layer takes about 40 kB of the reader's stack, which is not checked
MOST_TEXT = 4000  # characters of a message
MOST_FRAMES, MOST_CAUSES = 100, 5  # of a traceback


class TooMuch(ValueError):
    """A message that would take too much memory or time to decode."""


# Messages ----------------------------------------------------------------------------------------

# MessagePack: number of bytes after the first byte of a value
_FIXED = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,  # lists and dictionaries: their elements follow
}  # fmt: skip
_LONG = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
# Extensions: a byte with the type, then a nested message
_INSIDE = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
_SHORT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


def opened(data: bytes | bytearray) -> Any:
    """Decode a message. Raises `TooMuch` or `NotPlain`, and takes at most 1 s."""
    weigh(data)
    value = decode(data)
    if isinstance(value, bytes):
        weigh(value)  # a nested message, which will be decoded later
    return value


def weigh(data: bytes | bytearray) -> None:
    """Raise `TooMuch` for a message with too many values or too many layers."""
    at, values, copied, end = 0, 0, 0, len(data)
    ends: list[int] = []  # ends of the extensions that contain the current position
    while at < end:
        while ends and at >= ends[-1]:
            if at > ends.pop():
                raise TooMuch("a value is longer than the extension that contains it")
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
                raise TooMuch("a value is longer than the message")
            length = struct.unpack_from(form, data, at)[0]
            at += width + (length if head in _LONG else 1)
            copied += length
            if head in _INSIDE:
                ends.append(at + length)
        elif head in _SHORT:
            ends.append(at + 1 + _SHORT[head])
            at += 1
        if values > MOST_VALUES or copied > MOST_COPIED or len(ends) > MOST_LAYERS:
            raise TooMuch("the message has too many values, or is nested too deeply")
    if at > end:
        raise TooMuch("a value is longer than the message")


def spoken(value: Any) -> Any:
    """Replace characters that cannot be encoded as UTF-8, in all texts of a value."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {spoken(key): spoken(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(spoken, value))
    return value


# Reports of ranks --------------------------------------------------------------------------------


def failure(fields: Any) -> RemoteFailure:
    """A rank's checked failure. Raises ValueError or TypeError for invalid fields."""
    remote = RemoteFailure.of(fields)
    chain = [
        ([_frame(frame) for frame in frames[-MOST_FRAMES:]], _text(text))
        for frames, text in remote.chain[:MOST_CAUSES]
    ]
    return RemoteFailure(remote.kind, _text(remote.message), chain)


def op(fields: Sequence[Any], world_size: int) -> OpInfo:
    """A checked operation. Raises ValueError or TypeError for invalid fields."""
    rank, name, description, partners, tag, group, members, file, line, *more = fields
    rest: list[Any] = [*more, *["", 0, (), ()][len(more) :]]
    wait_file, wait_line, sizes, lacks = rest
    if not 0 <= int(rank) < world_size:
        raise ValueError("an operation of a rank that does not exist")
    return OpInfo(
        int(rank), _text(name, 100), _text(description, 500), _ranks(partners, world_size),
        int(tag), int(group), _ranks(members, world_size), _file(file), _line(line),
        _file(wait_file) if wait_file else "", _line(wait_line),
        tuple(map(int, sizes[: 2 * world_size + 1])), _ranks(lacks, world_size),
    )  # fmt: skip


def records(fields: Any, rank: int, world_size: int) -> Records:
    """A rank's checked records. Raises ValueError or TypeError for invalid fields."""
    *start, extras, names, groups, dtypes, files, dropped = fields
    if not all(isinstance(extra, dict) for extra in extras):
        raise TypeError("the keyword arguments of a span are not a dictionary")
    checked = [
        spoken(list(extras)),
        [_text(name, 200) for name in names],
        [(_text(name, 500), _members(ranks, world_size)) for name, ranks in groups],
        [(_text(name, 100), int(size)) for name, size in dtypes],
        [_text(file, 1000) for file in files],
        max(0, int(dropped)),
    ]
    result = Records.of([*start, *checked], rank, world_size)
    if len(result.comm) and result.comm[:, 4].min() < 0:
        raise ValueError("a message has a negative size")
    return result


def cleaned(outcome: Outcome, world_size: int) -> Outcome:
    """Check the parts of an `Outcome` that come from ranks; the supervisor itself is trusted."""

    def own(ops: Sequence[OpInfo]) -> list[OpInfo]:
        return [op(info, world_size) for info in ops[: 10 * world_size]]

    finding = outcome.finding
    if finding is not None:
        finding = Finding(
            finding.reason, own(finding.ops), finding.left, own(finding.unmatched),
            finding.seconds, apart=own(finding.apart),
            groups=[_ranks(group, world_size) for group in finding.groups[:100]],
            exchanged=bool(finding.exchanged),
            stacks={
                rank: [_frame(frame) for frame in stack]
                for rank, stack in finding.stacks.items() if rank in range(world_size)
            },
            helpers=[*_ranks(finding.helpers, world_size)],
        )  # fmt: skip
    ends = [replace(end, stack=[_frame(frame) for frame in end.stack]) for end in outcome.ranks]
    return replace(
        outcome, ranks=ends, finding=finding, waiting=own(outcome.waiting),
        unreceived=own(outcome.unreceived), posted=own(outcome.posted),
    )  # fmt: skip


def nonsense(error: Exception) -> RankError:
    """The error for an invalid report of a rank that the checks did not recognise as invalid."""
    invalid = Failure("result", f"sent an invalid report: {type(error).__name__}")
    return RankError(f"some rank {invalid.message}", failures={0: invalid})


def _text(text: Any, most: int = MOST_TEXT) -> str:
    if not isinstance(text, str):
        raise TypeError("not a text")
    return str(spoken(text[:most]))


def _members(ranks: Any, world_size: int) -> tuple[int, ...]:
    """The ranks of a group. Raises ValueError if some do not exist."""
    members = tuple(int(rank) for rank in ranks)
    if members != _ranks(members, world_size):
        raise ValueError("a group with ranks that do not exist")
    return members


def _ranks(ranks: Sequence[Any], world_size: int) -> tuple[int, ...]:
    """The named ranks that exist, without repetitions."""
    return tuple(dict.fromkeys(rank for rank in map(int, ranks) if 0 <= rank < world_size))


def _frame(frame: Frame) -> Frame:
    return Frame(_file(frame.file), _line(frame.line), _text(frame.function, 200))


def _line(line: Any) -> int:
    return min(max(0, int(line)), 2**24)


def _file(file: str) -> str:
    """A file name that cannot be opened, because a traceback would quote the file's lines.

    Files of Python, installed packages and dtlab, which hold no secrets, keep their names.
    """
    known = not locate.is_learners(file) and file == os.path.normpath(file)
    if known and file.isprintable() and os.path.isabs(file):
        return file
    name = os.path.basename(_text(file, 1000)).strip("<>")[:100]
    return f"<{name or 'unknown'}>"
