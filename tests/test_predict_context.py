"""Volumes, memory and overlap of split sequences and fields, against published figures."""

from __future__ import annotations

import pytest

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

# Table 2 of Liu et al. 2023: TFLOP/s, GB/s, and the fewest tokens per device in thousands.
RINGS = {
    "A100, NVLink": (312, 300, 1.0),
    "A100, InfiniBand": (312, 12.5, 24.5),
    "TPU v3": (123, 112, 1.1),
    "TPU v4": (275, 268, 1.0),
    "TPU v5e": (196, 186, 1.1),
}


@pytest.mark.parametrize("name", RINGS)
def test_blocks_of_ring_attention_are_those_of_the_paper(name: str) -> None:
    tflops, gigabytes, thousands = RINGS[name]
    ours = ring_block_tokens(tflops * 1e12, gigabytes * 1e9) / 1000
    assert ours == pytest.approx(thousands, rel=0.05)
    assert ring_block_tokens(1e12, 1e9, causal=True) == 2000


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "keys"), [(32, 32), (32, 8), (128, 8), (64, 1)])
def test_a_round_lasts_as_long_as_its_block_travels(heads: int, keys: int, causal: bool) -> None:
    """Seconds of a round from operations counted, and of a message from the elements sent."""
    flops, bandwidth, head_size, ranks = 400e12, 50e9, 128, 8
    least = ring_block_tokens(flops, bandwidth, causal=causal, heads=heads, kv_heads=keys)
    scores_and_sums = 2 * (2 * least**2 * heads * head_size)
    computes = scores_and_sums * (0.5 if causal else 1) / flops
    sent = ring_attention_elements(least * ranks, keys * head_size, ranks)  # in ranks - 1 rounds
    assert computes == pytest.approx(2 * sent / (ranks - 1) / bandwidth)


def test_llama_needs_a_sixteenth_of_the_tokens() -> None:
    """Llama 3 405B has 8 heads of keys for 128 of queries: Llama team 2024, table 3."""
    whole = ring_block_tokens(400e12, 50e9, causal=True)
    assert ring_block_tokens(400e12, 50e9, causal=True, heads=128, kv_heads=8) == whole / 16
    assert ring_block_tokens(400e12, 50e9, causal=True, heads=128) == whole
    with pytest.raises(ValueError, match="kv_heads must divide heads, but 3 does not divide 8"):
        ring_block_tokens(1, 1, heads=8, kv_heads=3)


def test_volumes_of_the_three_ways() -> None:
    tokens, hidden = 131_072, 8192
    assert megatron_sequence_elements(tokens, hidden, 8) == 4 * tokens * hidden * 7 / 8
    assert ulysses_elements(tokens, hidden, 8) == 4 * tokens * hidden * 7 / 64
    assert ulysses_elements(tokens, hidden, 8, kv_size=1024) == 2 * tokens * 9216 * 7 / 64
    assert ring_attention_elements(tokens, 1024, 8) == 2 * tokens * 1024 * 7 / 8
    for send in (megatron_sequence_elements, ulysses_elements, ring_attention_elements):
        assert send(tokens, hidden, 1) == 0


def test_scores_grow_with_the_square_of_the_tokens() -> None:
    whole = attention_bytes(131_072, 32, element_bytes=2)
    assert whole == 2 * 32 * 131_072**2  # 1.1 TB for one sequence
    assert attention_bytes(131_072, 32, element_bytes=2, ranks=8, way="heads") == whole / 8
    assert attention_bytes(131_072, 32, element_bytes=2, ranks=8, way="ring") == whole / 64
    with pytest.raises(ValueError, match="one of whole, heads, ring"):
        attention_bytes(8, 1, way="split")


def test_halos() -> None:
    assert halo_width(3) == 1 and halo_width((3, 4)) == 4 and halo_width(3, 3, (5, 2)) == 6
    assert halo_elements([10], 2, channels=7 * 3) == 2 * 2 * 21
    assert halo_elements([10, 20], 2, channels=3) == (2 * 2 * 30 + 4 * 4) * 3
    assert halo_share([64, 64], 1) == pytest.approx(4 * 64 / 64**2, rel=0.02)
    with pytest.raises(ValueError, match="a kernel is odd"):
        halo_width(4)
    with pytest.raises(ValueError, match="positive numbers"):
        ring_block_tokens(0, 1)
