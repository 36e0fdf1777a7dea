"""The claimed effects of split sequences and fields: memory, bytes, and surface to volume."""

from __future__ import annotations

import pytest
import torch

from dtlab.parallel.context import ring_attention, shard_sequence, ulysses_attention
from dtlab.parallel.domain import halo_exchange, own_tile
from dtlab.parallel.mesh import make_mesh
from dtlab.predict.context import halo_elements, ring_attention_elements, ulysses_elements
from dtlab.training.live import peak_bytes
from tests.staying import on_ranks

TOKENS, HEADS, SIZE = 1024, 4, 16


def inputs(kv_heads: int = HEADS) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [(1, heads, TOKENS, SIZE) for heads in (HEADS, kv_heads, kv_heads)]
    return [shard_sequence(torch.randn(shape, generator=draw), zigzag=True) for shape in shapes]


def peak() -> int:
    tensors = [x.requires_grad_() for x in inputs()]
    return peak_bytes(lambda: ring_attention(*tensors, zigzag=True))


@pytest.mark.slow
def test_memory_of_ring_attention_shrinks_with_the_ranks() -> None:
    """Blocks of keys, values and gradients are 1/P of the whole; so are a strip's scores."""
    one, two, four = (max(on_ranks(peak, world_size=ranks).values) for ranks in (1, 2, 4))
    assert two < 0.65 * one
    assert four < 0.4 * one


def sends(kind: str, kv_heads: int) -> None:
    attend = ring_attention if kind == "ring" else ulysses_attention
    attend(*inputs(kv_heads))


@pytest.mark.slow
def test_ulysses_sends_less_than_a_ring_unless_heads_are_grouped() -> None:
    width = HEADS * SIZE
    for kv_heads, ranks, smaller in ((HEADS, 4, "ulysses"), (1, 4, "ring")):
        kv_size = kv_heads * SIZE
        predicted = {
            "ulysses": ulysses_elements(TOKENS, width, ranks, kv_size),
            "ring": ring_attention_elements(TOKENS, kv_size, ranks),
        }
        assert min(predicted, key=lambda kind: predicted[kind]) == smaller
        ring = on_ranks(sends, "ring", kv_heads, world_size=ranks).trace
        assert ring.bytes_sent(0) == 4 * predicted["ring"]
        if kv_heads == HEADS:
            exchanged = on_ranks(sends, "ulysses", kv_heads, world_size=ranks).trace
            sent = sum(event.bytes for event in exchanged.events if event.rank == 0)
            assert sent * (ranks - 1) / ranks == 4 * predicted["ulysses"] < ring.bytes_sent(0)


def exchange(sizes: dict[str, int], side: int) -> None:
    mesh = make_mesh(**sizes)
    halo_exchange(own_tile(torch.zeros(side, side), mesh), mesh, 1, "periodic")


@pytest.mark.slow
def test_square_tiles_send_less_than_strips() -> None:
    side = 64
    strips = on_ranks(exchange, {"y": 4}, side, world_size=4).trace
    squares = on_ranks(exchange, {"y": 2, "x": 2}, side, world_size=4).trace
    assert strips.bytes_sent(0) == 4 * 2 * side
    assert squares.bytes_sent(0) == 4 * halo_elements([side // 2, side // 2], 1)
    assert strips.bytes_sent(0) == 4 * halo_elements([side // 4], 1, channels=side)
    # With four ranks both send about as much; with sixteen, strips send twice as much.
    assert halo_elements([side // 4] * 2, 1) < 0.6 * halo_elements([side // 16], 1, channels=side)
