"""Level I of unit 08: its right answers agree with the library and with what is counted."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from dtlab.checks import find_part
from dtlab.checks.questions.answers import Questions
from dtlab.parallel.context import work_of
from dtlab.predict.context import (
    attention_bytes,
    halo_elements,
    halo_share,
    halo_width,
    megatron_sequence_elements,
    ring_attention_elements,
    ring_block_tokens,
    ulysses_elements,
)
from tests.level_one import drawn_for

LEARNERS = [f"learner{number}" for number in range(8)]
MANY_LEARNERS = [f"somebody {number}" for number in range(100)]


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    return drawn_for(f"08/{symbol}", learner)


def check_of(symbol: str) -> Questions:
    check = find_part(f"08/{symbol}").check
    assert isinstance(check, Questions)
    return check


# 08/volumes ------------------------------------------------------------------------------------


def sent(tokens: int, heads: int, kv_heads: int, ranks: int) -> dict[str, float]:
    """MB that a rank sends for one layer, by the library's formulas."""
    h, h_k = 128 * heads, 128 * kv_heads
    elements = {
        "megatron": megatron_sequence_elements(tokens, h, ranks),
        "ulysses": ulysses_elements(tokens, h, ranks, h_k),
        "ring": ring_attention_elements(tokens, h_k, ranks),
    }
    return {way: 2 * float(count) / 1e6 for way, count in elements.items()}


@pytest.mark.parametrize("learner", LEARNERS)
def test_volumes_are_those_of_the_library(learner: str) -> None:
    given, right = drawn("volumes", learner)
    now, later = sent(**given), sent(**{**given, "ranks": 2 * given["ranks"]})
    assert {way: right[way] for way in now} == pytest.approx(now)
    assert right["doubled"] == pytest.approx([later[way] / now[way] for way in now])
    assert all(now[right["least"]] <= size for size in now.values())


def test_both_ways_to_split_a_sequence_are_least_for_some() -> None:
    found = Counter(drawn("volumes", learner)[1]["least"] for learner in MANY_LEARNERS)
    assert set(found) == {"ulysses", "ring"}
    assert min(found.values()) > 15


@pytest.mark.parametrize("learner", LEARNERS)
def test_what_ulysses_sends_is_counted_token_by_token(learner: str) -> None:
    given, right = drawn("volumes", learner)
    ranks, tokens = given["ranks"], given["tokens"] // given["ranks"]
    leaves = 0.0
    for heads in (given["heads"], given["kv_heads"], given["kv_heads"], given["heads"]):
        leaves += sum(128 * heads / ranks for other in range(ranks) if other != 0)
    assert 2 * tokens * leaves / 1e6 == pytest.approx(right["ulysses"])


@pytest.mark.parametrize("learner", LEARNERS)
def test_who_forgets_the_bytes_of_an_element_reads_of_them(learner: str) -> None:
    """With Megatron and on a ring, half of the elements would be the same number."""
    values, right = drawn("volumes", learner)
    check = check_of("volumes")
    for question in check.questions[:3]:
        elements = right[question.name] / 2  # in millions
        found = question.settle(elements, check.named(values))
        assert found.status == "lost"
        assert "2 bytes" in found.message


# 08/head_limit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_ranks_have_whole_heads_with_their_keys(learner: str) -> None:
    given, right = drawn("head_limit", learner)
    heads, kv_heads = given["heads"], given["kv_heads"]
    keys_of = np.arange(heads) // (heads // kv_heads)

    def deals(ranks: int, kv_heads: int) -> bool:
        """Whether each KV head is on one rank, and all ranks have as many heads of each kind."""
        return kv_heads % ranks == 0 and heads % ranks == 0

    ranks = range(1, heads + 1)
    assert right["most"] == max(count for count in ranks if deals(count, kv_heads))
    assert right["tensor"] == max(count for count in ranks if deals(count, kv_heads // 2))
    assert {int(count) for count in right["allowed"]} == {
        count for count in (2, 3, 4, 6, 8, 12, 16) if deals(count, kv_heads)
    }
    world = kv_heads * given["times"]
    assert heads % world == 0, "all ranks have as many query heads"
    holders = [{rank for rank in range(world) if rank * kv_heads // world == kv} for kv in keys_of]
    assert {len(each) for each in holders} == {right["copies"]}
    assert right["two_levels"] == [right["most"], world // right["most"]]


@pytest.mark.parametrize("learner", LEARNERS)
def test_grouped_heads_send_less(learner: str) -> None:
    given, right = drawn("head_limit", learner)
    sizes = 128 * given["heads"], 128 * given["kv_heads"]
    whole, grouped = (ulysses_elements(4096, sizes[0], 4, size) for size in sizes)
    assert right["smaller"] == pytest.approx(whole / grouped)


# 08/halos --------------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_halos_are_those_of_the_library(learner: str) -> None:
    given, right = drawn("halos", learner)
    layers = (given["first"], given["dilation"]), given["second"], given["third"]
    assert right["one"] == halo_width(layers[0])
    width = halo_width(*layers)
    assert right["three"] == width
    side, channels, root = given["side"], given["channels"], given["root"]
    strip, tile = (side // root**2,), (side // root,) * 2
    assert right["strips"] == pytest.approx(4e-6 * halo_elements(strip, width, channels * side))
    assert right["squares"] == pytest.approx(4e-6 * halo_elements(tile, width, channels))
    assert right["share"] == pytest.approx(100 * halo_share(tile, width))
    assert width <= tile[0], "a neighbour has all cells of the halo"
    assert side % root == 0


@pytest.mark.parametrize("learner", LEARNERS)
def test_outputs_of_the_stack_depend_on_so_many_cells(learner: str) -> None:
    given, right = drawn("halos", learner)
    reached = {0}
    for kernel, dilation in ((given["third"], 1), (given["second"], 1),
                             (given["first"], given["dilation"])):  # fmt: skip
        steps = [dilation * (place - kernel // 2) for place in range(kernel)]
        reached = {cell + step for cell in reached for step in steps}
    assert max(reached) == right["three"]


@pytest.mark.parametrize("learner", LEARNERS)
def test_borders_shrink_with_the_side_of_a_tile(learner: str) -> None:
    given, right = drawn("halos", learner)
    strips = [halo_elements((given["side"] / r,), 2, given["side"]) for r in (16, 64)]
    sides = [4 * 2 * given["side"] / root for root in (4, 8)]
    assert right["growth"] == pytest.approx([strips[1] / strips[0], sides[1] / sides[0]])


def test_the_text_is_about_a_rank_that_each_draw_has() -> None:
    """Of 4 x 4 tiles, 12 are at the edge of the field, so it cannot speak of all ranks."""
    check = check_of("halos")
    drawn_values = [check.draw(Random(seed)) for seed in range(3000)]
    every = {tuple(values.items()): values for values in drawn_values}
    assert len(every) == 6 * 3 * 2 * 2 * 3  # kernels, dilations, roots, sides, channels
    for given in every.values():
        (ranks,) = (text for label, text in check.rows(given) if label == "your ranks")
        width = check.named(given)["w"]
        for rows, columns in ((given["ranks"], 1), (given["root"], given["root"])):
            high, wide = given["side"] // rows, given["side"] // columns
            inner = [
                (row, column)
                for row in range(rows)
                for column in range(columns)
                if width <= row * high <= given["side"] - high - width
                and (columns == 1 or width <= column * wide <= given["side"] - wide - width)
            ]
            assert 0 < len(inner) < given["ranks"]
        assert ranks.startswith(f"{given['ranks']}; ")
        assert "for a rank that is not at the edge" in ranks
        assert "all" not in ranks.split()


# 08/hidden -------------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_enough_tokens_are_those_of_the_library(learner: str) -> None:
    given, right = drawn("hidden", learner)
    flops, links = 1e12 * given["flops"], [1e9 * given[name] for name in ("inside", "network")]
    assert right["block"] == pytest.approx([ring_block_tokens(flops, link) for link in links])
    causal = ring_block_tokens(flops, links[1], causal=True)
    assert right["causal"] == pytest.approx(causal)
    assert given["tokens"] / right["most"] >= causal > given["tokens"] / (right["most"] + 1)
    ways = ("whole", "heads", "ring")
    scores = [
        attention_bytes(given["tokens"], given["heads"], ranks=given["ranks"], element_bytes=2,
                        way=way)
        for way in ways
    ]  # fmt: skip
    assert right["scores"] == pytest.approx([float(each) / 1e9 for each in scores])


def test_a_causal_mask_in_zigzag_order_leaves_half_of_the_work() -> None:
    tokens, ranks = 1024, 4
    works = {work_of(rank, ranks, tokens, zigzag=True) for rank in range(ranks)}
    (work,) = works
    assert work / (tokens * tokens / ranks) == pytest.approx(0.5, rel=0.01)


def test_the_papers_row_for_nvlink() -> None:
    """Liu et al., table 2: A100 with NVLink, 312 TFLOP/s over 300 GB/s, 1.0 thousand tokens."""
    assert ring_block_tokens(312e12, 300e9) == pytest.approx(1040)
