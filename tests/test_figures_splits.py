"""Figures of split sequences and fields: what their words and shapes say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from dtlab.show import (
    Figure,
    attention_rounds,
    explore_lengths,
    field_frames,
    length_bars,
    sequence_and_field,
    tile_halos,
)


def shapes(figure: Figure) -> Counter[str]:
    patches = figure.findobj(Rectangle)
    return Counter(gid for patch in patches if (gid := patch.get_gid()))


def test_ring_attention_in_contiguous_order_leaves_early_ranks_idle() -> None:
    figure = attention_rounds(4)
    count = shapes(figure)
    assert (count["seen"], count["unseen"]) == (10, 6)
    # 8 half blocks of work, in the time of 14: the diagonal, then three full rounds.
    assert "rank 0: 6.25, 0, 0, 0; rank 1: 6.25, 12.5, 0, 0;" in figure.alt_text
    assert "The ranks work 57% of the time; in each round they wait" in figure.alt_text


def test_zigzag_order_gives_every_rank_the_same_work_in_every_round() -> None:
    figure = attention_rounds(4, zigzag=True)
    assert "rank 0: 6.25, 6.25, 6.25, 6.25; rank 1: 6.25, 6.25, 6.25, 6.25;" in figure.alt_text
    assert figure.alt_text.endswith("The ranks work 100% of the time.")
    assert shapes(attention_rounds(3, causal=False))["unseen"] == 0


def test_a_halo_shows_which_rank_sends_which_cells() -> None:
    inside = tile_halos(3, 3, cells=4, width=1, rank=4)
    assert shapes(inside) == {"halo": 20}
    assert "4 cells from rank 1" in inside.alt_text and "1 cell from rank 0" in inside.alt_text
    corner = tile_halos(2, 2, cells=4, width=2)
    assert shapes(corner) == {"halo": 2 * 8 + 4, "zero": 2 * 8 + 12}
    assert shapes(tile_halos(2, 2, cells=4, width=2, boundary="periodic")) == {"halo": 48}


def test_frames_of_a_field_share_one_scale() -> None:
    figure = field_frames([np.zeros((4, 6)), np.ones((4, 6))], ["before", "after"], mesh=(2, 2))
    assert "colours from 0 to 1; lines are the edges of 2 x 2 tiles" in figure.alt_text
    assert "after: from 1 to 1, mean 1" in figure.alt_text
    other = field_frames([np.zeros((4, 6))], ["other"], like=[np.ones((4, 6))])
    assert "colours from 0 to 1" in other.alt_text
    assert len(figure.to_png()) > 1000


def test_a_token_needs_all_tokens_and_a_cell_its_neighbours() -> None:
    figure = sequence_and_field()
    assert len([line for line in figure.axes[0].lines if line.get_gid() == "needs"]) == 12
    assert "one row from rank 0, one column from rank 3 and one corner cell" in figure.alt_text
    assert len(figure.to_png()) > 1000


def test_the_ways_to_split_attention_store_and_send_what_the_formulas_say() -> None:
    figure = length_bars(131072, 8, 32, 8)
    assert shapes(figure) == dict.fromkeys(("Megatron", "Ulysses", "ring", "gathered"), 3)
    # 2 bytes x 32 heads x 131072^2 / 8; 2 x 2 x 131072 x 1024 / 8; 2 x 4 x 131072 x 4096 x 7/8
    stored, held = "scores, if stored", "keys and values at one time"
    words = figure.alt_text
    assert f"Megatron: {stored} 137 GB, {held} 67.1 MB, sent in forward 3.76 GB; Ulysses" in words
    assert f"ring: {stored} 17.2 GB, {held} 134 MB" in words
    assert f"gathered: {stored} 137 GB, {held} 537 MB" in words


def test_ulysses_needs_a_kv_head_for_each_rank() -> None:
    explorer = explore_lengths()
    assert explorer.figure.alt_text == length_bars().alt_text
    explorer.controls["ranks"].value = 16
    assert "16 ranks cannot divide 8 KV heads" in explorer.figure.alt_text
    assert shapes(explorer.figure)["Ulysses"] == 0
    explorer.controls["kv_heads"].value, explorer.controls["ranks"].value = "1", 1
    assert "131,072 tokens on 1 rank (" in explorer.figure.alt_text
    assert "not possible" not in explorer.figure.alt_text


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="give 2 to 8 ranks, not 9"):
        attention_rounds(9)
    with pytest.raises(ValueError, match="rank 6 of 6"):
        tile_halos(2, 3, rank=6)
    with pytest.raises(ValueError, match="5 KV heads do not divide 32 heads"):
        length_bars(kv_heads=5)
    with pytest.raises(ValueError, match="1 frames, but 0 names"):
        field_frames([np.zeros((2, 2))], [])
