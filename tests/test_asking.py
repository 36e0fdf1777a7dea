"""Tests that a rank can ask the process that launched it, in the middle of its function."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dtlab
from dtlab.errors import RankError
from dtlab.ranks.asking import Dialogue, Dialogues, Refused, answering, ask, in_dialogue


def test_each_rank_gets_its_own_answers() -> None:
    asked: list[tuple[int, Any]] = []

    def reply(rank: int, message: Any) -> Any:
        asked.append((rank, message))
        return {"rank": rank, "next": message["number"] + 1, "tensor": message["tensor"] * 2}

    def program() -> list[Any]:
        answers, number = [], 0
        for _ in range(3):
            answer = ask({"number": number, "tensor": torch.full((2,), float(number))})
            number = answer["next"]
            answers.append([answer["rank"], answer["tensor"].tolist()])
        return answers

    with answering(reply):
        run = dtlab.launch(program, world_size=3)
    assert run.values == [[[rank, [2.0 * n] * 2] for n in range(3)] for rank in range(3)]
    assert sorted((rank, message["number"]) for rank, message in asked) == [
        (rank, number) for rank in range(3) for number in range(3)
    ]


def test_large_messages_and_answers_arrive() -> None:
    with answering(lambda _, message: torch.cat([message, message])):
        run = dtlab.launch(lambda: ask(torch.arange(1_000_000)).sum().item(), world_size=2)
    assert run.values == [2 * sum(range(1_000_000))] * 2


def test_a_refused_message_raises_at_the_ranks_line() -> None:
    def reply(rank: int, message: Any) -> Any:
        if message == "unknown":
            raise Refused("there is no such thing.")
        return message["key"]

    def program(message: Any) -> str:
        try:
            ask(message)
        except Refused as why:
            return str(why)
        return ""

    with answering(reply):
        assert dtlab.launch(program, "unknown", world_size=1).values == ["there is no such thing."]
        assert "TypeError" in dtlab.launch(program, 7, world_size=1).values[0]


def test_without_a_reply_the_rank_says_so() -> None:
    with pytest.raises(RankError, match=r"launch\s+is\s+not\s+inside\s+`answering`"):
        dtlab.launch(lambda: ask(1), world_size=1)
    with pytest.raises(Refused, match="only a rank"):
        ask(1)


def test_a_launch_in_a_reply_has_its_own_answers() -> None:
    def outer(rank: int, message: Any) -> Any:
        with answering(lambda _, inner: inner + 1):
            return dtlab.launch(lambda: ask(10), world_size=1).values[0] + message

    with answering(outer):
        assert dtlab.launch(lambda: ask(100), world_size=1).values == [111]


def test_dialogues_keep_their_state_where_ranks_cannot_reach_it() -> None:
    def begin(number: int, rank: int) -> Dialogue:
        total = 0
        message = yield
        while message is not None:
            total += message
            if message < 0:
                raise Refused("only what is not negative")
            message = yield total
        return [number, rank, total]

    def program() -> list[Any]:
        answers = []
        for number in range(2):
            with in_dialogue(number):
                answers += [ask(number + 1), ask(10), ask(None), ask("after the end")]
        return answers

    dialogues = Dialogues(begin)
    with answering(dialogues.reply):
        run = dtlab.launch(program, world_size=2)
    assert run.values == [[1, 11, None, None, 2, 12, None, None]] * 2
    assert dialogues.results == {(n, rank): [n, rank, 11 + n] for n in range(2) for rank in (0, 1)}
