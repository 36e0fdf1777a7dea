"""What the kernel counts of a rank's memory, at the moments that the rank names."""

from __future__ import annotations

import sys

import pytest
import torch

from dtlab.ranks.record.resident_memory import TIMES, bytes_of, count, give_back_at_once
from tests.staying import on_ranks

MB = 1_000_000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts by Linux")


def holds_40_mb_for_a_while() -> None:
    rank = torch.distributed.get_rank()
    give_back_at_once()
    torch.ones(10)
    count()
    hidden = b"\1" * (40 * MB if rank else 0)  # no tensor, so no count of tensors sees it
    count()
    del hidden
    count()


def test_memory_is_counted_whatever_holds_it_and_not_once_it_is_free() -> None:
    run = on_ranks(holds_40_mb_for_a_while, world_size=2)
    assert all(len(asked) == 3 * TIMES for asked in run.resident)
    for rank, asked in enumerate(run.resident):
        before, held, freed = (min(asked[at : at + TIMES]) for at in range(0, len(asked), TIMES))
        assert held - before == pytest.approx(40 * MB * rank, abs=2 * MB)
        assert freed - before == pytest.approx(0, abs=2 * MB)


def test_a_session_forgets_what_it_counted_in_an_earlier_turn() -> None:
    on_ranks(count, world_size=2)
    run = on_ranks(count, world_size=2)
    assert [len(asked) for asked in run.resident] == [TIMES, TIMES]


def test_elsewhere_than_in_a_rank_nothing_is_asked() -> None:
    count()


def test_a_process_that_has_ended_has_no_memory() -> None:
    assert bytes_of(2**22 + 1) is None
