"""Splitting a sequence or a field: what is sent, what is stored, and when it is hidden.

Sequences, per rank and layer, forward, in elements; N tokens, hidden size h, P ranks:

    Megatron's sequence parallelism    4 N h (P-1)/P             does not shrink with P
    Ulysses                            2 N (h + h_k) (P-1)/P^2   4 N h (P-1)/P^2 if h_k = h
    ring attention                     2 N h_k (P-1)/P

h_k is the size of one token's keys over all heads: less than h with grouped heads.

Ring attention hides its messages if a round computes for longer than its block travels: c tokens
per rank need 4 c^2 h operations and send 2 c h_k elements of 2 bytes, so c >= (h_k / h) F / B for
F operations and B bytes per second; causal and balanced, half the operations, twice the tokens.

Fields: a layer with kernel k and dilation d reaches d (k-1)/2 cells on each side. A tile sends
its border and computes its area.

Korthikanti et al. 2022 (Megatron), Jacobs et al. 2023 (Ulysses), Liu et al. 2023 (ring attention,
section 3 and table 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from dtlab.predict.hardware import Numbers
from dtlab.predict.units import check_count, is_number

__all__ = [
    "attention_bytes",
    "halo_elements",
    "halo_share",
    "halo_width",
    "megatron_sequence_elements",
    "ring_attention_elements",
    "ring_block_tokens",
    "ulysses_elements",
]


def megatron_sequence_elements(tokens: Numbers, hidden_size: int, ranks: int) -> Numbers:
    """Return the elements that a rank sends per layer, forward: 4 N h (P-1)/P."""
    return 4 * tokens * hidden_size * (check_count("ranks", ranks) - 1) / ranks


def ulysses_elements(
    tokens: Numbers, hidden_size: int, ranks: int, kv_size: int | None = None
) -> Numbers:
    """Return the elements that a rank sends per layer, forward: 2 N (h + h_k) (P-1)/P^2.

    `kv_size` is the size of a token's keys over all heads; None: hidden_size.
    """
    sizes = hidden_size + (hidden_size if kv_size is None else kv_size)
    return 2 * tokens * sizes * (check_count("ranks", ranks) - 1) / ranks**2


def ring_attention_elements(tokens: Numbers, kv_size: int, ranks: int) -> Numbers:
    """Return the elements that a rank sends per layer, forward: 2 N h_k (P-1)/P."""
    return 2 * tokens * kv_size * (check_count("ranks", ranks) - 1) / ranks


def ring_block_tokens(
    flops: float,
    bandwidth: float,
    *,
    causal: bool = False,
    heads: int = 1,
    kv_heads: int | None = None,
) -> float:
    """Return the fewest tokens per rank with which ring attention hides its messages.

    That is (h_k/h) F/B, where h_k/h = kv_heads/heads: fewer keys and values travel for as many
    operations.

    Args:
        flops: operations per second of one rank, as reached in attention.
        bandwidth: bytes per second to the next rank, one way, for elements of 2 bytes.
        causal: with a causal mask in zig-zag order, which halves the operations: twice the tokens.
        heads: heads of the queries.
        kv_heads: heads of the keys and values; None: as many as `heads`.
    Raises: ValueError for speeds that are not positive, or kv_heads that do not divide heads.
    """
    if not is_number(flops) or not is_number(bandwidth) or min(flops, bandwidth) <= 0:
        raise ValueError(f"flops and bandwidth are positive numbers, not {flops}, {bandwidth}.")
    check_count("heads", heads)
    keys = heads if kv_heads is None else check_count("kv_heads", kv_heads)
    if heads % keys:
        raise ValueError(f"kv_heads must divide heads, but {keys} does not divide {heads}.")
    return (2 if causal else 1) * keys / heads * flops / bandwidth


def attention_bytes(
    tokens: Numbers,
    heads: int,
    *,
    ranks: int = 1,
    batch: int = 1,
    element_bytes: int = 4,
    way: str = "whole",
) -> Numbers:
    """Return the bytes of the largest matrix of scores that a rank holds, without fused attention.

    `way` is "whole" (tokens x tokens for all heads), "heads" (Ulysses and tensor parallelism:
    all tokens of some heads) or "ring" (one block of tokens against one block).
    """
    shares = {"whole": 1, "heads": ranks, "ring": ranks**2}
    if way not in shares:
        raise ValueError(f"way is one of {', '.join(shares)}, not {way!r}.")
    return element_bytes * batch * heads * tokens**2 / shares[way]


def halo_width(*layers: tuple[int, int] | int) -> int:
    """Return how many cells on each side a stack of layers of stride 1 needs: sum of d (k-1)/2.

    Each layer is an odd kernel size, or a pair of kernel size and dilation. One exchange of this
    width serves the whole stack; an exchange before each layer sends each layer's own.
    Raises: ValueError for an even kernel size, whose two sides differ.
    """
    width = 0
    for layer in layers:
        kernel, dilation = (layer, 1) if isinstance(layer, int) else layer
        if kernel < 1 or kernel % 2 == 0 or dilation < 1:
            raise ValueError(
                f"a kernel is odd and a dilation at least 1, not {kernel}, {dilation}."
            )
        width += dilation * (kernel - 1) // 2
    return width


def halo_elements(tile: Iterable[int], width: int, channels: int = 1) -> int:
    """Return the elements that a rank inside the field sends to its neighbours, with corners.

    `tile` holds the cells of a tile in each dimension that is split; pass the size of the other
    dimensions as `channels`. The result is that of a tile with its halo less the tile: in one
    dimension 2 w C, in two 2 w (H + W) C and 4 w^2 C for the corners.
    """
    sides = list(tile)
    return (prod(side + 2 * width for side in sides) - prod(sides)) * channels


def halo_share(tile: Iterable[int], width: int) -> float:
    """Return the cells of a tile's halo over the cells of the tile: surface to volume."""
    sides = list(tile)
    return halo_elements(sides, width) / prod(sides)
