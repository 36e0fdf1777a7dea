"""Attention over a sequence that is split over ranks, against attention in one process."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import dtlab
from dtlab.parallel.context import (
    gathered_attention,
    join_sequence,
    ring,
    ring_attention,
    shard_sequence,
    tokens_of,
    ulysses_attention,
    work_of,
)
from tests.staying import on_ranks

EXACT = {"rtol": 1e-10, "atol": 1e-10}
KINDS = {"ulysses": ulysses_attention, "ring": ring_attention, "gathered": gathered_attention}
WORLDS = {"ulysses": (1, 2, 4), "ring": (1, 2, 3, 4), "gathered": (1, 3, 4)}
TOKENS, HEADS, SIZE = 24, 8, 5


def inputs(kv_heads: int = HEADS, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [
        torch.randn(2, heads, TOKENS, SIZE, generator=draw, dtype=torch.float64).to(dtype)
        for heads in (HEADS, kv_heads, kv_heads, HEADS)
    ]


def whole(kv_heads: int, causal: bool, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Output and gradients of q, k and v, in one process."""
    *leaves, weight = inputs(kv_heads, dtype)
    q, k, v = (x.requires_grad_() for x in leaves)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), (q, k, v))]


def in_parts(
    kind: str, kv_heads: int, causal: bool, zigzag: bool, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    options: dict[str, Any] = {} if kind == "ulysses" else {"zigzag": zigzag}
    q, k, v, weight = (
        shard_sequence(x, zigzag=zigzag).requires_grad_() for x in inputs(kv_heads, dtype)
    )
    out = KINDS[kind](q, k, v, causal=causal, **options)
    found = [out, *torch.autograd.grad((out * weight).sum(), (q, k, v))]
    return [join_sequence(x, zigzag=zigzag) for x in found]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [HEADS, 4])
@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize(("kind", "ranks"), [(k, n) for k in KINDS for n in WORLDS[k]])
def test_outputs_and_gradients_equal_one_process(
    kind: str, ranks: int, kv_heads: int, causal: bool, zigzag: bool
) -> None:
    if kind == "ulysses" and zigzag:
        pytest.skip("Ulysses has all tokens of a head in their order")
    run = on_ranks(in_parts, kind, kv_heads, causal, zigzag, world_size=ranks)
    for found in run.values:
        for ours, full in zip(found, whole(kv_heads, causal), strict=True):
            torch.testing.assert_close(ours, full, **EXACT)


def in_strips() -> list[Tensor]:
    usual, ring._STRIP = ring._STRIP, 5  # several strips, the last of them shorter
    try:
        return in_parts("ring", 4, True, True)
    finally:
        ring._STRIP = usual


def test_strips_of_queries_change_nothing() -> None:
    for ours, full in zip(
        on_ranks(in_strips, world_size=2).values[0], whole(4, True), strict=True
    ):
        torch.testing.assert_close(ours, full, **EXACT)


def test_sixteen_bits_are_summed_in_fp32() -> None:
    run = on_ranks(in_parts, "ring", 4, True, True, torch.bfloat16, world_size=4)
    exact = whole(4, True, torch.float64)
    for ours, full in zip(run.values[0], exact, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours.double() - full).abs().max() < 0.02 * full.abs().max()


def errors(kind: str, zigzag: bool) -> list[float]:
    """Largest errors of the output and the gradients, of ours by those of one process in bf16."""
    draw = torch.Generator().manual_seed(5)
    exact = [10 * torch.randn(1, 4, 64, 16, generator=draw, dtype=torch.float64) for _ in "qkvw"]
    exact = [each.bfloat16().double() for each in exact]

    def results(attention: Any, leaves: list[Tensor]) -> list[Tensor]:
        q, k, v = (x.detach().requires_grad_() for x in leaves[:3])
        out = attention(q, k, v)
        return [out, *torch.autograd.grad((out * leaves[3]).sum(), (q, k, v))]

    def alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    half = [each.bfloat16() for each in exact]
    options: dict[str, Any] = {} if kind == "ulysses" else {"zigzag": zigzag}
    parts = [shard_sequence(each, zigzag=zigzag) for each in half]
    ours = results(lambda q, k, v: KINDS[kind](q, k, v, **options), parts)
    joined = [join_sequence(each, zigzag=zigzag) for each in ours]
    everything = zip(joined, results(alone, half), results(alone, exact), strict=True)
    return [float((a - e).abs().max() / (b - e).abs().max()) for a, b, e in everything]


@pytest.mark.parametrize(
    ("kind", "ranks", "zigzag"),
    [("ring", 1, False), ("ring", 2, True), ("ring", 4, False), ("ring", 4, True),
     ("gathered", 4, True), ("ulysses", 4, False)],
)  # fmt: skip
def test_large_scores_in_bf16_are_as_exact_as_in_one_process(
    kind: str, ranks: int, zigzag: bool
) -> None:
    """Scores of hundreds: rounded to bf16 before the softmax, they would be off by whole units."""
    for ratios in on_ranks(errors, kind, zigzag, world_size=ranks).values:
        assert max(ratios) < 2, ratios


MISFITS: dict[str, tuple[list[Tensor], str]] = {
    "dtype of keys": ([torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8).bfloat16()], "keys torch"),
    "width of values": ([torch.zeros(1, 4, 2, 8)] * 2 + [torch.zeros(1, 4, 2, 6)], "not\\s+fit"),
    "tokens of keys": ([torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 3, 8)], "not\\s+fit"),
    "three dims": ([torch.zeros(4, 2, 8)], "not\\s+fit"),
    "heads": ([torch.zeros(1, 6, 2, 8), torch.zeros(1, 4, 2, 8)], "not\\s+fit"),
}


def misfit(kind: str, case: str) -> tuple[str, str]:
    tensors = MISFITS[case][0]
    q, k, v = (*tensors, *[tensors[-1]] * (3 - len(tensors)))
    with pytest.raises(ValueError, match=kind) as error:
        KINDS[kind](q, k, v)
    return str(error.value), f"{kind}_attention: "


@pytest.mark.parametrize("case", MISFITS)
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_do_not_fit_are_refused_before_anything_is_sent(kind: str, case: str) -> None:
    run = on_ranks(misfit, kind, case, world_size=2)
    for text, start in run.values:
        assert text.startswith(start) and re.search(MISFITS[case][1], text)
    assert not run.trace.ops(0)


def unequal(kind: str) -> None:
    q = torch.zeros(1, 4, 4 + dist.get_rank(), 8)
    KINDS[kind](q, q, q)


@pytest.mark.parametrize("kind", KINDS)
def test_launch_reports_shards_of_different_length(kind: str) -> None:
    with pytest.raises(dtlab.DeadlockError, match=r"(?s)rank.*(sends|called all_gather)"):
        dtlab.launch(unequal, kind, world_size=2)


def in_a_group() -> tuple[Tensor, Tensor]:
    groups = [dist.new_group([0, 2]), dist.new_group([3, 1])]
    group = groups[dist.get_rank() % 2]
    q, k, v = (shard_sequence(x, group) for x in inputs()[:3])
    return (
        join_sequence(ring_attention(q, k, v, group), group),
        join_sequence(ulysses_attention(q, k, v, group), group),
    )


def test_groups_attend_within_themselves() -> None:
    for found in on_ranks(in_a_group, world_size=4).values:
        for ours in found:
            torch.testing.assert_close(ours, whole(HEADS, True)[0], **EXACT)


def forward_only(kind: str, kv_heads: int) -> None:
    KINDS[kind](*(shard_sequence(x) for x in inputs(kv_heads)[:3]))


@pytest.mark.parametrize("kv_heads", [HEADS, 4])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_send_as_many_bytes_as_the_formulas_say(ranks: int, kv_heads: int) -> None:
    per_token = 2 * SIZE * 8  # batch, head size, bytes of fp64
    q, kv = HEADS * per_token, kv_heads * per_token
    share = TOKENS * (ranks - 1) // ranks
    trace = on_ranks(forward_only, "ring", kv_heads, world_size=ranks).trace
    assert set(trace.bytes_sent()) == {share * 2 * kv}
    trace = on_ranks(forward_only, "ulysses", kv_heads, world_size=ranks).trace
    exchanged = sum(event.bytes for event in trace.events if event.rank == 0)
    assert exchanged * (ranks - 1) // ranks == share * (2 * q + 2 * kv) // ranks


def test_zigzag_order_shares_the_work() -> None:
    assert tokens_of(1, 4, 16, zigzag=True).tolist() == [2, 3, 12, 13]
    assert {work_of(rank, 4, 16, zigzag=True) for rank in range(4)} == {34}
    assert [work_of(rank, 4, 16) for rank in range(4)] == [10, 26, 42, 58]


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="Pad the sequence to 32 tokens"):
        tokens_of(0, 4, 28, zigzag=True)
    with pytest.raises(Exception, match="needs whole heads"):
        on_ranks(in_parts, "ulysses", 2, True, False, world_size=4)
    with pytest.raises(Exception, match="an even number of tokens, not 3"):
        on_ranks(odd_zigzag, world_size=2)


def odd_zigzag() -> None:
    ring_attention(*(torch.ones(1, 2, 3, 4) for _ in range(3)), zigzag=True)
