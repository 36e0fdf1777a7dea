"""Formats in plain arithmetic hold and round as PyTorch casts."""

from __future__ import annotations

import re

import pytest
import torch

from dtlab.predict import formats
from dtlab.predict.formats import BF16, BINARY_FORMATS, FP16, FP32, BinaryFormat

DTYPES = {
    torch.float16: FP16,
    torch.bfloat16: BF16,
    torch.float8_e5m2: BinaryFormat(5, 2),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_formats_round_as_pytorch_casts(dtype: torch.dtype) -> None:
    """All exponents are tried: numbers of the format, ties between them, and others."""
    own, draws = DTYPES[dtype], torch.Generator().manual_seed(0)
    lowest = max(own.lowest - own.mantissa_bits - 2, -126)  # fp32 goes no lower
    exponents = torch.arange(lowest, own.highest + 1).repeat_interleave(8)
    bits = torch.randint(2 ** (own.mantissa_bits + 1), exponents.shape, generator=draws)
    ties = (1 + bits * 2.0 ** -(own.mantissa_bits + 1)) * torch.exp2(exponents.float())
    others = (1 + torch.rand(exponents.shape, generator=draws)) * torch.exp2(exponents.float())
    for value in torch.cat([ties, -ties, others, -others]).tolist():
        cast = torch.tensor(value).to(dtype).float().item()
        assert own.rounded(value) == cast, value
        assert own.holds(value) == (cast == value), value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_formats_are_those_of_pytorch(dtype: torch.dtype) -> None:
    own, facts = DTYPES[dtype], torch.finfo(dtype)
    assert 2.0**own.lowest == facts.smallest_normal
    assert own.spacing(1.0) == facts.eps
    assert own.spacing(0.0) == 2.0**own.lowest * facts.eps
    assert (2 - own.spacing(1.0)) * 2.0**own.highest == facts.max


def test_all_numbers_of_a_format_are_those_of_pytorch() -> None:
    every = torch.arange(256).to(torch.uint8).view(torch.float8_e5m2).float()
    finite = sorted(set(every[every.isfinite()].tolist()))
    assert BINARY_FORMATS["fp8 e5m2"].between(-1e9, 1e9) == finite


def test_the_picture_is_all_that_a_small_format_holds() -> None:
    rows = re.findall(r"^    ([\d .]+?)  +(?:subnormal|e = )", formats.__doc__ or "", re.MULTILINE)
    drawn = [float(number) for row in rows for number in row.split()]
    assert len(drawn) == 28
    assert BinaryFormat(3, 2).between(0, 100) == drawn


def test_numbers_between_two_values_are_neither_missed_nor_more_than_asked_for() -> None:
    assert FP16.between(2047.5, 2052) == [2048, 2050, 2052]
    assert BF16.between(70_000, 71_000) == [70_144, 70_656]
    assert FP16.between(70_000, 71_000) == []
    assert BF16.between(-1.01, -0.995) == [-1.0078125, -1.0, -0.99609375]
    assert len(FP32.between(1, 2, most=7)) == 7
    assert FP16.largest == 65_504
    assert FP16.smallest == 2.0**-24
