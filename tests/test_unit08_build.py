"""Level II of unit 08: what its checks expect agrees with the library, without ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from dtlab.checks import known_parts
from dtlab.parallel.context import tokens_of, work_of
from dtlab.predict.context import halo_elements
from dtlab.units.unit08.halo_corners import Corners
from dtlab.units.unit08.halo_rows import Rows
from dtlab.units.unit08.merge_blocks import Merging
from dtlab.units.unit08.ring_causal import Causal
from dtlab.units.unit08.sequences import attention, watched

PARTS = [part for part in known_parts() if part.unit == "08" and part.level == 2]


def test_both_halves_are_worth_the_same() -> None:
    for name in ("points", "minutes", "difficulty"):
        first, second = (
            [getattr(part, name) for part in PARTS if part.stretch is extra]
            for extra in (False, True)
        )
        assert first == second
    assert [part.symbol for part in PARTS if not part.stretch] == [
        "merge_blocks", "ring_forward", "ring_causal",
    ]  # fmt: skip


# Half A ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_causal_cases_are_in_zigzag_order_and_see_what_they_should(ranks: int) -> None:
    case = Causal(3, 2, 6, 8, "result")
    q, k, v = case.whole(ranks)
    whole = scaled_dot_product_attention(q, k, v, is_causal=True)
    run = case.tokens // 2
    for rank in range(ranks):
        own = case.places(rank, ranks)
        assert own == tokens_of(rank, ranks, ranks * case.tokens, zigzag=True).tolist()
        out = attention(q[..., own, :], k, v, case.visible(rank, ranks))
        torch.testing.assert_close(out, whole[..., own, :], rtol=1e-5, atol=1e-5)
        visible = work_of(rank, ranks, ranks * case.tokens, zigzag=True)
        hidden_in_own_block = run * (run - 1) + run * run
        assert visible + hidden_in_own_block == run * run * (4 + 2 * (ranks - 1))


def test_products_and_living_bytes_are_counted() -> None:
    a, b = torch.ones(2, 3, 4, 5), torch.ones(2, 3, 5, 6)
    with watched() as seen:
        first = a @ b
        second = first @ torch.ones(6, 7)
        del first
        third = torch.einsum("bhik,bhkj->bhij", a, b)
    products = 2 * 3 * 4 * 5 * 6
    assert seen.products == 2 * products + 2 * 3 * 4 * 6 * 7
    assert seen.peak >= 4 * (second.numel() + third.numel())
    assert seen.bytes <= seen.peak


def test_blocks_of_a_merge_differ_in_their_scores() -> None:
    """Otherwise a mean of the outputs would nearly be right."""
    for turn in (0, 1):
        case = Merging(2 * 7 + turn, "rounds", (4, 5, 3, 6), 5, 8)
        totals = [case.over(sum(case.blocks[:count]))[1].mean() for count in range(1, 5)]
        assert all(later > earlier for earlier, later in pairwise(totals))
        means = [
            attention(case.tensors()[0], *(t[..., :4, :] for t in case.tensors()[1:])),
            case.over(sum(case.blocks))[0],
        ]
        assert not means[0].allclose(means[1], rtol=0.1)


# Half B ----------------------------------------------------------------------------------------


def test_tiles_are_those_of_tensor_split_and_their_borders_are_counted() -> None:
    case = Corners(5, "sides", (3, 3), (17, 22), 2)
    cut = [row.tensor_split(3, 1) for row in case.field.tensor_split(3, 0)]
    padded = torch.nn.functional.pad(case.field, (2,) * 4)
    for rank in range(9):
        tile = cut[rank // 3][rank % 3]
        assert case.tile(rank).equal(tile)
        (row, column), wanted = case.wanted(rank)
        rows, columns = (size + 4 for size in tile.shape)
        assert wanted.equal(padded[row + 2 : row + 2 + rows, column + 2 : column + 2 + columns])
    assert case.due(4) == 4 * halo_elements(case.tile(4).shape, 2)
    assert sorted(case.neighbours(0).values()) == [1, 3]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_periodic_field_continues_at_its_other_edge(ranks: int) -> None:
    case = Rows(5, "periodic", (ranks, 1), (11, 4), 3, True)
    _, first = case.wanted(0)
    assert first[:3].equal(case.field[-3:])
    assert first[3:-3].equal(case.tile(0))
    _, last = case.wanted(ranks - 1)
    assert last[-3:].equal(case.field[:3])
    strip = len(case.tile(0))
    assert case.due(0) == (4 * halo_elements((strip,), 3, 4) if ranks > 1 else 0)
