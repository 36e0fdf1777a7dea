"""The figure of a block that ranks share, and its explorer."""

from __future__ import annotations

import pytest

from dtlab.show import explore_block, parallel_block
from tests.drawn import boxes, check_layout, texts


@pytest.mark.sample(4)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_a_block_lies_well(ranks: int, sequence_parallel: bool, backward: bool) -> None:
    check_layout(parallel_block(ranks, 12, sequence_parallel, backward))


@pytest.mark.parametrize(
    ("sequence_parallel", "backward", "f", "g", "words"),
    [
        (False, False, "nothing", "all-reduce", "2 all-reduces: a rank sends 4bsh(t-1)/t"),
        (False, True, "all-reduce", "nothing", "2 all-reduces: a rank sends 4bsh(t-1)/t"),
        (True, False, "all-gather", "reduce-scatter", "a rank sends 4bsh(t-1)/t"),
        (True, True, "reduce-scatter", "all-gather", "a rank sends 6bsh(t-1)/t"),
    ],
)
def test_f_and_g_send_what_the_library_sends(
    sequence_parallel: bool, backward: bool, f: str, g: str, words: str
) -> None:
    figure = parallel_block(2, 4, sequence_parallel, backward)
    assert len(boxes(figure, f"f {f}")) == len(boxes(figure, f"g {g}")) == 2
    assert words in figure.alt_text


def test_each_rank_has_its_heads_shards_and_sums() -> None:
    forward, backward = (parallel_block(4, 8, backward=each) for each in (False, True))
    for rank in range(4):
        for figure in (forward, backward):
            assert len(boxes(figure, f"rank {rank} whole")) == 4
            assert len(boxes(figure, f"rank {rank} shard")) == 4
            assert len(boxes(figure, f"rank {rank} a part of a sum")) == 2
    assert {"heads\n0,1", "heads\n6,7"} <= set(texts(forward))
    assert "proj.: a part of a sum" in forward.alt_text
    assert "q, k, v: a part of a sum" in backward.alt_text
    assert len(boxes(parallel_block(2, 4, True), "rank 1 own tokens")) == 4


@pytest.mark.parametrize(("ranks", "heads"), [(0, 4), (5, 10), (3, 4), (2, 0)])
def test_heads_that_do_not_divide_are_refused(ranks: int, heads: int) -> None:
    with pytest.raises(ValueError, match="ranks that divide the heads"):
        parallel_block(ranks, heads)


def test_the_explorer_draws_what_is_set() -> None:
    explorer = explore_block(4)
    assert "2 ranks: forward" in explorer.figure.alt_text
    explorer.controls["ranks"].value = "4"
    explorer.controls["way"].value = "backward"
    explorer.controls["sequence"].value = True
    assert "4 ranks: backward" in explorer.figure.alt_text
    assert "own tokens" in explorer.figure.alt_text
