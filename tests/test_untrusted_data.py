"""Messages from untrusted processes are measured before they are opened."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import msgpack
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dtlab.ranks.plain import NotPlain, encode
from dtlab.ranks.protocol import Finding, Frame, OpInfo, Outcome, RankEnd
from dtlab.ranks.sandbox import untrusted_data
from dtlab.ranks.sandbox.untrusted_data import TooMuch, opened


def packed(value: object) -> bytes:
    return bytes(msgpack.packb(value))


def lists(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count


def layers(count: int, inside: bytes = b"") -> bytes:
    value: Any = inside
    for _ in range(count):
        value = msgpack.ExtType(3, packed([value]))
    return packed(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, -1, 2**40, -(2**40), 1.5, True, "text", "x" * 300, "x" * 70_000, b"y" * 300],
        {"a": [1] * 100, "b": {"c": (1, (2, (3,)))}, 5: {1, 2}},
        torch.ones(3, 4),
        [torch.ones(100_000), (torch.tensor([True]), "x")],
        [[]] * 100_000,
        b"not a message at all",
        {"deep": [[[[[[[[[[1]]]]]]]]]]},
    ],
)
def test_honest_messages_are_opened(value: Any) -> None:
    back = opened(encode(value))
    assert str(back) == str(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        lists(1_100_000),
        packed(lists(1_100_000)),  # what others will open next
        packed(msgpack.ExtType(3, lists(1_100_000))),
        b"\xdf\x00\x20\x00\x00" + b"\x01\x80" * 2**21,
        layers(60),
        layers(40, bytes(2**24)),
        b"\xdd\x00\x20\x00\x01" + b"\xd6\xff\xdb\x00\x80\x00" + b"\x90" * 2**21,  # a time, first
        b"\xdd\x00\x20\x00\x01" + b"\xc7\x05\x07\xdb\x00\x80\x00\x00" + b"\x90" * 2**21,
    ],
)
def test_messages_that_take_too_much_are_not_opened(data: bytes) -> None:
    begun = time.monotonic()
    with pytest.raises(TooMuch):
        opened(data)
    assert time.monotonic() - begun < 5


@given(st.binary(max_size=300))
def test_any_bytes_can_be_weighed(data: bytes) -> None:
    with contextlib.suppress(NotPlain, TooMuch):
        opened(data)


def test_texts_can_be_written() -> None:
    said = untrusted_data.spoken({"a\ud800": ["\udfff", ("x", 1)], 2: None})
    assert said == {"a?": ["?", ("x", 1)], 2: None}


FOREIGN = torch.__file__


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("<cell 3>", "<cell 3>"),
        ("/etc/passwd", "<passwd>"),
        ("solutions/level-2.ipynb", "<level-2.ipynb>"),
        (FOREIGN, FOREIGN),  # so that it differs from the learner's own
        (FOREIGN + "/../../../../../../etc/passwd", "<passwd>"),
        (FOREIGN + "\0", "<__init__.py\0>"),
        ("<frozen /../etc/passwd", "<passwd>"),
        ("", "<unknown>"),
        ("<" * 5000, "<unknown>"),
    ],
)
def test_no_file_is_opened_because_a_rank_names_it(file: str, named: str) -> None:
    told = untrusted_data.failure(("exception", "x", [[[[file, 2, "f"]], "x"]]))
    assert told.chain[0][0] == [Frame(named, 2, "f")]


def test_an_outcome_names_ranks_that_there_are() -> None:
    strange = OpInfo(0, "send", "send()", (10**15, 1), 0, 0, (0, 1, 2**60), "/etc/passwd", -5)
    ends = [RankEnd("stopped", None, [Frame("/etc/passwd", 10**9, "f")])]
    finding = Finding("standstill", [strange], [])
    outcome = Outcome("deadlock", ends, [], [None], finding, [strange])
    seen = untrusted_data.cleaned(outcome, 2)
    expected = OpInfo(0, "send", "send()", (1,), 0, 0, (0, 1), "<passwd>", 0)
    assert seen.finding is not None
    assert seen.finding.ops == seen.waiting == [expected]
    assert seen.ranks[0].stack == [Frame("<passwd>", 2**24, "f")]
