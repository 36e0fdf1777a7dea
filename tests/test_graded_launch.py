"""Untrusted ranks: any message of theirs gives a result in time, and reveals no secret."""

from __future__ import annotations

import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import msgpack
import pytest
import torch
import torch.distributed as dist

from dtlab.errors import RankError, RanksError, RankTimeoutError
from dtlab.ranks.watch import board
from tests import sandboxed
from tests.sandboxed import (
    SLACK,
    Launch,
    launch,
    needs_root,
    processes,
    rank_of,
    sandbox,
    server,
    spin,
)

pytestmark = [needs_root, pytest.mark.slow]
__all__ = ["launch", "sandbox", "server"]  # fixtures
for module in (sys.modules[__name__], sandboxed):
    cloudpickle.register_pickle_by_value(module)  # the sandbox has no tests

# What ranks say ---------------------------------------------------------------------------------


def _line() -> socket.socket:
    """A rank's line to the grader, found where the engine keeps it."""
    frame = sys._getframe()
    while frame is not None and "outcome" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    return frame.f_locals["outcome"].channel  # type: ignore[no-any-return]


def _status() -> socket.socket:
    frame = sys._getframe()
    while frame is not None and "outcome" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    return frame.f_locals["outcome"].status  # type: ignore[no-any-return]


def _frame(tag: bytes, body: bytes, size: int | None = None) -> bytes:
    return struct.pack("<cQ", tag, len(body) if size is None else size) + body


def _saying(*parts: bytes, then: str = "return") -> Callable[[int], Any]:
    """A rank 0 that writes these bytes to the grader, and then continues in some way."""

    def say(rank: int) -> Any:
        if rank == 0:
            for part in parts:
                _line().sendall(part)
            if then == "sleep":
                time.sleep(1000)
            if then == "close":
                _line().close()
            if then == "die":
                os._exit(0)
        return "honest"

    return say


def _packed(value: object) -> bytes:
    return bytes(msgpack.packb(value))


def _array(shape: list[int], raw: bytes) -> Any:
    return msgpack.ExtType(2, _packed(("int64", shape, raw)))


NOTHING = _array([0, 11], b""), _array([0, 4], b""), _array([0, 4], b"")


def _records(**changed: Any) -> bytes:
    comm, blocked, spans = NOTHING
    fields = {
        "rank": 0, "world": 2, "comm": comm, "blocked": blocked, "spans": spans, "extras": [],
        "names": ["send"], "groups": [["g", [0, 1]]], "dtypes": [], "files": [], "dropped": 0,
    }  # fmt: skip
    return _frame(b"r", _packed(list({**fields, **changed}.values())))


def _deep(layers: int, inside: bytes) -> bytes:
    """A tuple in a tuple in a tuple, each of which holds all that is inside again."""
    value: Any = inside
    for _ in range(layers):
        value = msgpack.ExtType(3, _packed([value]))
    return _packed(value)


def _lists(count: int) -> bytes:
    """A list of `count` empty lists, each of which takes a byte here and 64 in memory."""
    return b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count


SAID = {
    "garbage": lambda: _saying(os.urandom(5000)),
    "a huge length": lambda: _saying(_frame(b"v", b"", 2**62), then="sleep"),
    "half a frame, and sleep": lambda: _saying(_frame(b"v", b"12", 100), then="sleep"),
    "half a frame, and the end": lambda: _saying(_frame(b"v", b"12", 100), then="die"),
    "no value": lambda: _saying(then="die"),
    "closes its line": lambda: _saying(then="close"),
    "deep": lambda: _saying(_frame(b"v", b"\x91" * 10_000_000)),
    "deep tuples": lambda: _saying(_frame(b"v", _deep(250, bytes(2**23)))),
    "very deep tuples": lambda: _saying(_frame(b"v", _deep(900, b""))),
    "very deep tuples in a value": lambda: _saying(_frame(b"v", _packed(_deep(900, b"")))),
    "many values": lambda: _saying(_frame(b"v", _lists(30_000_000))),
    "many values in a value": lambda: _saying(_frame(b"v", _packed(_lists(30_000_000)))),
    "too much": lambda: _saying(_frame(b"v", bytes(200 * 2**20))),
    "records of others": lambda: _saying(_records(rank=1)),
    "records of ranks that are not there": lambda: _saying(_records(groups=[["g", [3 * 10**8]]])),
    "records of no ranks": lambda: _saying(_records(groups=[["g", 7]])),
    "records of nothing": lambda: _saying(_frame(b"r", _packed(None))),
    "records without names": lambda: _saying(_records(names=[[]])),
    "records with sent bytes below 0": lambda: _saying(
        _records(comm=_array([1, 11], b"".join(n.to_bytes(8, "little", signed=True) for n in
                                               (0, 0, 1, 0, -8, -1, 0, 0, 0, -1, 0))))
    ),
    "a strange failure": lambda: _saying(_frame(b"f", _packed(("bored", "x", [])))),
    "a failure that is none": lambda: _saying(_frame(b"f", _packed([1, 2, 3]))),
    "a long failure": lambda: _saying(
        _frame(b"f", _packed(("exception", "x" * 10**7, [[[["f", 1, "g"]] * 10**5, "m"]] * 50)))
    ),
    "operations of no rank": lambda: _saying(
        _frame(b"h", _packed([(10**30 % 2**63, "a", "b", [2**40], 0, 0, [], "f", "line")]))
    ),
    "many frames": lambda: _saying(_frame(b"t", _packed(("exception", "x", []))) * 300_000),
    "unknown frames": lambda: _saying(_frame(b"?", b"x" * 100) * 100_000),
}  # fmt: skip


def _peak_memory(*, forget: bool = False) -> int:
    """The most bytes that this process has had since that was last forgotten."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.parametrize("said", SAID)
def test_any_message_of_a_rank_gives_a_result_within_the_limit(said: str, launch: Launch) -> None:
    before = _peak_memory(forget=True)
    begun = time.monotonic()
    try:
        run = launch(SAID[said](), timeout=4.0)
        assert run.values[1] == "honest"
    except (RankError, RankTimeoutError) as error:
        assert len(str(error)) < 20_000
        str(error).encode()
    assert time.monotonic() - begun < 4.0 + SLACK
    assert _peak_memory() - before < 2**30
    assert launch(rank_of).values == [0, 1]


def _letters(*letters: bytes) -> Callable[[int], Any]:
    def say(rank: int) -> None:
        for letter in letters:
            _status().sendall(letter)
        spin()

    return say


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "fn", [_letters(b"F"), _letters(b"FX"), _letters(b"D"), _letters(b"RRRR", b"\xff" * 10_000),
           _letters(*[b"FRXI"] * 20_000)],
)  # fmt: skip
def test_messages_do_not_extend_the_limit(fn: Callable[[int], Any], launch: Launch) -> None:
    begun = time.monotonic()
    with pytest.raises(RanksError):
        run = launch(fn, timeout=2.0)
        assert run.values == [None, None]  # it said that it had delivered, and had not
        raise RankError("", failures={})
    assert time.monotonic() - begun < 2.0 + SLACK
    assert processes() == []


def _write_on_the_board(kind: str) -> Callable[[int], Any]:
    """Nonsense where the supervisor looks for what a rank is doing."""

    def write(rank: int) -> None:
        frame: Any = sys._getframe()
        while "ends" not in frame.f_locals:
            frame = frame.f_back
        memory = frame.f_locals["ends"].board._memories[rank]
        rng = random.Random(rank)
        if kind == "noise":
            while True:
                memory[:] = rng.randbytes(len(memory))
        texts = b"\xff\xfe|a,b\0" * (board._TEXT_ROOM // 7)
        memory[board._TEXT_AT : board._TEXT_AT + len(texts)] = texts
        struct.pack_into("<q", memory, 8, 2**62)
        at = 0
        while True:
            fields = {
                "any": [rng.randrange(-(2**40), 2**40) for _ in range(11)],
                "sends": [2, at, 0, 5, 1, 7, 1, rng.randrange(2), at, 1 << 24, 1],
                "takers": [1, at, 0, 5, 1, 7, 1, -1 if at % 2 else 1, 3, 1 << 24, 2 - at % 2],
            }[kind]
            seen = struct.unpack_from("<q", memory)[0]
            if at - seen < board.CAPACITY:
                where = 64 + at % board.CAPACITY * board._RECORD.size
                board._RECORD.pack_into(memory, where, *fields, board.checksum(at, *fields))
                at += 1

    return write


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["noise", "any", "sends", "takers"])
def test_nonsense_on_the_board_costs_only_its_writer(kind: str, launch: Launch) -> None:
    begun = time.monotonic()
    with pytest.raises(RanksError):
        launch(_write_on_the_board(kind), timeout=3.0)
    assert time.monotonic() - begun < 3.0 + SLACK
    assert launch(rank_of).values == [0, 1]


# Secrets ----------------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "solutions.py"
    file.write_text("first\nthe secret solution\nlast\n")
    return file


def _fail_in(file: str) -> Callable[[int], None]:
    def fail(rank: int) -> None:
        exec(compile("\nraise ValueError('x')", file, "exec"))

    return fail


def _hang_in(file: str) -> Callable[[int], None]:
    def hang(rank: int) -> None:
        exec(compile("\nwhile True: pass", file, "exec"))

    return hang


def _wait_in(file: str) -> Callable[[int], None]:
    def wait(rank: int) -> None:
        exec(compile("\ndist.recv(t)", file, "exec"), {"dist": dist, "t": torch.ones(1)})

    return wait


def _send_in(file: str) -> Callable[[int], None]:
    def send(rank: int) -> None:
        code = "\ndist.isend(t, 1 - dist.get_rank())\nt += 1"
        exec(compile(code, file, "exec"), {"dist": dist, "t": torch.ones(1)})

    return send


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.parametrize("fn", [_fail_in, _hang_in, _wait_in, _send_in])
def test_tracebacks_quote_no_file_of_the_graders(
    fn: Callable[[str], Callable[[int], None]], secret: Path, launch: Launch
) -> None:
    try:
        run = launch(fn(str(secret)), timeout=2.0)
        told = repr(run)
    except RanksError as error:
        told = f"{error}{error.__cause__}{vars(error)}"
    assert "secret" not in told
    assert str(secret) not in told


def test_a_place_still_names_the_learners_line(launch: Launch) -> None:
    with pytest.raises(RankError, match=r"<cell 3>, line 2"):
        launch(_fail_in("<cell 3>"))
