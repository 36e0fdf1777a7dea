"""`launch(..., survivors=True)`: the other ranks go on if a rank is killed or exits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import dtlab

pytestmark = pytest.mark.usefixtures("warm")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sums_until_a_peer_is_gone(dying: int, die: Callable[[], None] = _die) -> int | str:
    """How many sums a rank has computed when it learns that a peer is gone."""
    tensor, done = torch.ones(1000), 0
    try:
        for done in range(100):
            if done == 5 and dist.get_rank() == dying:
                die()
            dist.all_reduce(tensor)
    except RuntimeError:
        dist.destroy_process_group()  # so that ranks that wait for this one get an error too
        return done
    return "no error"


@pytest.mark.parametrize("dying", [0, 1, 2])
def test_the_other_ranks_go_on_and_the_lost_one_is_named(
    dying: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = dtlab.launch(_sums_until_a_peer_is_gone, dying, world_size=3, survivors=True)
    assert run.lost == [dying]
    assert run.values == [None if rank == dying else 5 for rank in range(3)]
    shown = " ".join(capsys.readouterr().out.split())
    assert f"warning: rank {dying} was ended by SIGKILL" in shown
    assert "The others went on without it." in shown
    assert run.trace is not None
    assert {event.rank for event in run.trace.events} >= {0, 1, 2} - {dying}


def test_a_rank_that_exits_is_lost_too(capsys: pytest.CaptureFixture[str]) -> None:
    run = dtlab.launch(
        _sums_until_a_peer_is_gone, 1, lambda: os._exit(3), world_size=2, survivors=True
    )
    assert (run.lost, run.values) == ([1], [5, None])
    assert "rank 1 left by os._exit(3)" in capsys.readouterr().out


def test_two_of_three_may_die_and_nothing_is_lost_without_a_death() -> None:
    def alone() -> str:
        if dist.get_rank() > 0:
            time.sleep(0.05 * dist.get_rank())
            _die()
        return "here"

    run = dtlab.launch(alone, world_size=3, survivors=True)
    assert (sorted(run.lost), run.values) == ([1, 2], ["here", None, None])
    assert dtlab.launch(dist.get_rank, world_size=3, survivors=True).lost == []


def test_without_a_survivor_the_launch_fails() -> None:
    with pytest.raises(dtlab.RankError, match="was ended by SIGKILL|were ended by SIGKILL"):
        dtlab.launch(_die, world_size=2, survivors=True)


def test_by_default_a_death_ends_the_launch() -> None:
    with pytest.raises(dtlab.RankError, match="rank 1 was ended by SIGKILL"):
        dtlab.launch(_sums_until_a_peer_is_gone, 1, world_size=3)


def test_a_rank_that_raises_ends_the_launch() -> None:
    def raises() -> None:
        if dist.get_rank() == 0:
            raise KeyError("missing")
        time.sleep(30)

    begun = time.monotonic()
    with pytest.raises(dtlab.RankError, match="KeyError: 'missing'"):
        dtlab.launch(raises, world_size=2, survivors=True)
    assert time.monotonic() - begun < 25


def test_a_deadlock_among_the_survivors_is_found_at_once() -> None:
    def wait_for_each_other() -> None:
        group = dist.new_group([0, 1])
        if dist.get_rank() == 2:
            _die()
        dist.recv(torch.empty(1), group=group, group_src=1 - dist.get_rank())

    begun = time.monotonic()
    with pytest.raises(dtlab.DeadlockError, match="Every rank receives before it sends"):
        dtlab.launch(wait_for_each_other, world_size=3, survivors=True, timeout=60)
    assert time.monotonic() - begun < 30


def test_a_rank_that_waits_for_one_that_gave_up_is_told_what_to_do() -> None:
    def give_up() -> None:
        if dist.get_rank() == 0:
            _die()
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError:
            time.sleep(60)  # its connections stay open, so rank 1 or 2 waits for it

    with pytest.raises(dtlab.RankTimeoutError) as caught:
        dtlab.launch(give_up, world_size=3, survivors=True, timeout=2.0)
    text = " ".join(str(caught.value).split())
    assert "rank 0 was ended by SIGKILL" in text
    assert "They must destroy their process group" in text


def test_ranks_that_were_started_by_torchrun_cannot_survive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(dtlab.LaunchError, match="survivors=True needs ranks"):
        dtlab.launch(dist.get_rank, survivors=True)
