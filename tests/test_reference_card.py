"""Formulas of docs/reference_card.md, read from its text, against what real ranks send."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch

import dtlab
from dtlab.parallel.context import ring_attention, ulysses_attention
from tests.test_units import ROOT

BATCH, TOKENS, HEADS, SIZE = 2, 512, 8, 32
WAYS = {"Ulysses": ulysses_attention, "ring": ring_attention}


def formula(way: str) -> str:
    """What the card says that a way sends, as Python."""
    card = (ROOT / "docs" / "reference_card.md").read_text(encoding="utf-8")
    row = next(line for line in card.splitlines() if line.startswith("| context parallelism"))
    found = re.search(rf"{way} (\d[^,|]*?)(?:,| \|)", row.split("forward, for each layer", 1)[1])
    assert found is not None, row
    parts = re.findall(r"h_k|[bshc]|\d+|²|[()+/-]", found[1])
    product = parts[0]
    for left, right in pairwise(parts):
        both_are_factors = left not in "(+-/" and right not in ")+-/²"
        product += ("*" if both_are_factors else "") + ("**2" if right == "²" else right)
    return product


def test_formulas_are_read_as_products() -> None:
    given = {"b": 2, "s": 3, "h": 8, "h_k": 4, "c": 2}
    assert eval(formula("Ulysses"), {}, given) == 2 * 2 * 3 * (8 + 4) * (2 - 1) / 2**2
    assert eval(formula("ring"), {}, given) == 2 * 2 * 3 * 4 * (2 - 1) / 2


@torch.no_grad()
def forward(way: str, kv_heads: int, tokens: int) -> None:
    shapes = [(BATCH, heads, tokens, SIZE) for heads in (HEADS, kv_heads, kv_heads)]
    WAYS[way](*(torch.ones(shape) for shape in shapes))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("ranks", "kv_heads"), [(2, 2), (2, 8), (4, 4)])
def test_a_rank_sends_what_the_card_says(way: str, ranks: int, kv_heads: int) -> None:
    """The operating system counts the bytes that leave a rank: headers are below 3 %."""
    run = dtlab.launch(forward, way, kv_heads, TOKENS // ranks, world_size=ranks, threads=1)
    given = {"b": BATCH, "s": TOKENS, "h": HEADS * SIZE, "h_k": kv_heads * SIZE, "c": ranks}
    elements = eval(formula(way), {}, given)
    for rank in range(ranks):
        assert run.trace.bytes_wire(rank) / 4 == pytest.approx(elements, rel=0.03)
