"""Tests of a rank's forks, which can be killed while the rank continues."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest
import torch

import dtlab
from dtlab.errors import RankError, RankTimeoutError
from dtlab.ranks.apart import apart, die
from dtlab.ranks.asking import answering, ask


def test_only_files_survive_a_kill(tmp_path: Path) -> None:
    kept: list[str] = []

    def run(path: Path) -> None:
        try:
            kept.append("in memory")
            with path.open("a") as file:
                file.write(f"{len(kept)} ")
            die()
        finally:
            path.write_text("tidied up")

    def program() -> list[object]:
        ended = [apart(lambda: run(tmp_path / "file")) for _ in range(3)]
        return [ended, kept, apart(lambda: None), torch.ones(3).sum().item()]

    found = dtlab.launch(program, world_size=2).values
    assert found == [[[False] * 3, [], True, 3.0]] * 2
    assert (tmp_path / "file").read_text() == "1 " * 6


def test_what_it_raises_is_raised_in_the_rank_with_its_line() -> None:
    def inner() -> None:
        raise KeyError("of the fork")

    def program() -> None:
        try:
            apart(inner)
        except Exception as error:
            error.add_note("and a note")
            raise

    with pytest.raises(RankError) as caught:
        dtlab.launch(program, world_size=1)
    failure = caught.value.failures[0]
    assert "KeyError: 'of the fork'" in failure.message
    assert failure.code == 'raise KeyError("of the fork")'
    assert "and a note" in failure.traceback


def test_a_hang_is_explained_at_the_line_of_the_fork() -> None:
    def program() -> None:
        apart(lambda: time.sleep(60))

    with pytest.raises(RankTimeoutError) as caught:
        dtlab.launch(program, world_size=1, timeout=1.0)
    assert "time.sleep(60)" in str(caught.value)


def test_if_it_exits_or_crashes_the_rank_ends_alike() -> None:
    with pytest.raises(RankError, match="3"):
        dtlab.launch(lambda: apart(lambda: os._exit(3)), world_size=1)
    with pytest.raises(RankError, match="SIGABRT|abort"):
        dtlab.launch(lambda: apart(os.abort), world_size=1)


def test_a_fork_may_call_ask_and_ends_with_its_rank() -> None:
    seen: list[int] = []

    def program() -> None:
        apart(lambda: ask(os.getpid()))
        apart(lambda: [ask(os.getpid()), time.sleep(60)])

    with (
        pytest.raises(RankTimeoutError),
        answering(lambda _, pid: seen.append(pid)),
    ):
        dtlab.launch(program, world_size=1, timeout=1.0)
    assert len({*seen}) == 2
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, seen)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, seen))
