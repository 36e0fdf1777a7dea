"""Ceilings, break-even, scaling laws and the cost of a run, against published figures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dtlab.predict import CARDS, LINKS, Card, Link, ring_all_reduce_seconds
from dtlab.predict.roofline import (
    amdahl,
    attainable,
    break_even_tokens,
    ceilings,
    gustafson,
    mfu,
    run_cost,
)

A100, H100 = CARDS["A100 SXM 80 GB"], CARDS["H100 SXM"]


def test_a_roofline_rises_to_its_peak() -> None:
    below, ridge, above = attainable(np.array([10.0, 500, 1000]), 1e12, 2e9)
    assert (below, ridge, above) == (2e10, 1e12, 1e12)


def test_ceilings_are_those_of_the_card_and_the_network() -> None:
    names = ["shared memory", "HBM", "NVLink", "network"]
    assert [each.name for each in ceilings(H100)] == names
    widths = [each.bandwidth for each in ceilings(A100, LINKS["100 Gb Ethernet"])]
    assert widths == [19e12, 2.039e12, 300e9, 12.5e9] == sorted(widths, reverse=True)
    assert [round(each.ridge(312e12)) for each in ceilings(A100)] == [16, 153, 1040, 12480]
    assert ceilings(Card("a card", 10**9)) == []


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("parameters", [1e9, 175e9])
def test_at_break_even_computing_takes_as_long_as_the_all_reduce(
    ranks: int, parameters: float
) -> None:
    tokens = break_even_tokens(312e12, 25e9, ranks, utilisation=0.4)
    computing = 6 * parameters * tokens / (312e12 * 0.4)
    assert computing == pytest.approx(
        ring_all_reduce_seconds(2 * parameters, ranks, Link(0, 25e9))
    )


def test_break_even_changes_with_link_bytes_and_ranks() -> None:
    usual = break_even_tokens(312e12, 25e9, 8)
    assert usual == 7280
    assert break_even_tokens(312e12, 50e9, 8) == usual / 2
    assert break_even_tokens(312e12, 25e9, 8, bytes_per_gradient=4) == usual * 2
    assert break_even_tokens(312e12, 25e9, 8, operations=4) == usual * 1.5  # behind backward only
    assert break_even_tokens(312e12, 25e9, 1) == 0


def test_scaling_laws() -> None:
    assert amdahl(0, 8) == gustafson(0, 8) == 8 and amdahl(1, 8) == gustafson(1, 8) == 1
    assert amdahl(1 / 21, 8) == pytest.approx(6)
    assert amdahl(0.1, 10**6) == pytest.approx(10, rel=1e-4)
    assert gustafson(0.1, 8) == pytest.approx(7.3)
    # The same run, seen both ways: s of one rank, and the share of the time on N ranks.
    s = 0.1
    share = s / (s + (1 - s) / 8)
    assert gustafson(share, 8) == pytest.approx(amdahl(s, 8))


def test_gpt_3_takes_34_days() -> None:
    """Narayanan et al. 2021, section 5.1: 1024 A100, 140 TFLOP/s each with recomputation."""
    cost = run_cost(8 * 174.6e9 * 300e9, A100, 1024, 140 / 312, dollars_per_hour=2)
    assert cost.days == pytest.approx(34, abs=0.5)
    assert cost.gpu_hours == pytest.approx(cost.days * 24 * 1024)
    assert cost.dollars == 2 * cost.gpu_hours


def test_llama_3_takes_its_gpu_hours() -> None:
    """The model card says 30.84 million for 405 B and 15.6 T tokens, interruptions included."""
    cost = run_cost(6 * 405e9 * 15.6e12, H100, 16384, 0.40)
    assert 0.8 < cost.gpu_hours / 30.84e6 < 1


def test_mfu_is_the_models_operations_over_the_peak() -> None:
    rate = 1024 * 140e12 / (8 * 174.6e9)  # tokens/s of GPT-3 on Megatron
    assert mfu(rate, 1024, 312e12, parameters=174.6e9) == pytest.approx(140 / 312 * 6 / 8)
    assert mfu(1e4, 8, 312e12, flops_per_token=4e10) == pytest.approx(4e14 / (8 * 312e12))
    hours = run_cost(6 * 7e9 * 1e12, A100, 8, mfu(1e4, 8, 312e12, parameters=7e9)).days * 24
    assert hours == pytest.approx(1e12 / 1e4 / 3600)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: amdahl(1.5, 8), "serial_fraction must be a share between 0 and 1"),
        (lambda: mfu(1, 1, 1), "either parameters or flops_per_token"),
        (lambda: run_cost(1e20, Card("a card", 1), 8, 0.4), "bf16 peak of a card is unknown"),
        (lambda: run_cost(1e20, A100, 8, 0), "mfu must be a number above 0"),
        (lambda: break_even_tokens(0, 1, 8), "peak must be a number above 0"),
    ],
)
def test_impossible_values_are_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
