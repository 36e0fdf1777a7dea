"""Formats against every bit pattern there is, and what they keep against torch's own rounding."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dtlab.training import precision
from dtlab.training.precision import Format, Kept, format_of, formats, kept

SMALL = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16]
INF, NAN = math.inf, math.nan


def all_numbers(dtype: torch.dtype) -> Tensor:
    """Those above 0 that are finite, in order: the bit patterns of a format count upwards."""
    info = torch.finfo(dtype)
    whole = {8: torch.uint8, 16: torch.uint16}[info.bits]
    patterns = torch.arange(1, 2 ** (info.bits - 1)).to(whole).view(dtype).double()
    return patterns[patterns.isfinite()]


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_a_format_is_what_its_bit_patterns_are(dtype: torch.dtype) -> None:
    numbers, form = all_numbers(dtype), format_of(dtype)
    assert form.max == numbers.max() == numbers[-1]
    assert form.smallest_subnormal == numbers[0]
    num_subnormal = 2**form.mantissa_bits - 1
    assert form.smallest_normal == numbers[num_subnormal]
    assert numbers[num_subnormal + 1] - form.smallest_normal == form.smallest_subnormal
    (at_1,) = (numbers == 1).nonzero()
    assert form.spacing_at_1 == numbers[at_1 + 1] - 1
    assert 1 + form.exponent_bits + form.mantissa_bits == form.bits == 8 * form.bytes


def test_the_ends_of_fp32_are_right() -> None:
    form = format_of(torch.float32)
    after = torch.nextafter(torch.tensor([0.0, 1.0]), torch.tensor(2.0))
    assert [form.smallest_subnormal, 1 + form.spacing_at_1] == after.tolist()
    assert torch.nextafter(torch.tensor(form.max), torch.tensor(INF)) == INF
    assert (form.bits, form.exponent_bits, form.mantissa_bits) == (32, 8, 23)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16,
                                   torch.float8_e5m2], ids=str)  # fmt: skip
def test_ieee_formats_follow_from_their_bits(dtype: torch.dtype) -> None:
    form = format_of(dtype)
    from_bits = Format.from_bits(form.name, form.exponent_bits, form.mantissa_bits)
    assert vars(from_bits) == vars(form) | {"dtype": None}


def test_e4m3_gives_up_infinity_for_larger_numbers() -> None:
    """Its highest exponent holds numbers too: all but one pattern."""
    assert Format.from_bits("", 4, 3).max == 240
    assert format_of(torch.float8_e4m3fn).max == 448


def test_on_a_cpu_fp8_matrices_are_multiplied_but_not_added() -> None:
    """Lesson 04, cell claim-16, says so."""
    ones = torch.ones(32, 32).to(torch.float8_e4m3fn)
    assert (ones @ ones.t()).float().eq(32).all()
    with pytest.raises(NotImplementedError, match="add_stub"):
        ones + ones


def test_the_table_in_numbers() -> None:
    table = {form.name: form for form in formats()}
    assert list(table) == ["fp32", "tf32", "fp16", "bf16", "fp8 e4m3", "fp8 e5m2"]
    fp16, bf16, tf32 = table["fp16"], table["bf16"], table["tf32"]
    assert fp16.max == 65504
    assert fp16.smallest_normal == pytest.approx(6.10e-5, rel=1e-3)
    assert fp16.smallest_subnormal == pytest.approx(5.96e-8, rel=1e-3)
    assert (bf16.exponent_bits, bf16.mantissa_bits) == (8, 7)
    assert (tf32.bits, tf32.dtype) == (19, None)
    assert tf32.smallest_normal == table["fp32"].smallest_normal  # the range of fp32
    assert tf32.spacing_at_1 == fp16.spacing_at_1  # the fineness of fp16
    digits = [round(form.decimal_digits, 1) for form in table.values()]
    assert digits == [7.2, 3.3, 3.3, 2.4, 1.2, 0.9]


def test_the_table_prints() -> None:
    text = str(formats()).splitlines()
    assert text[0].split()[:4] == ["format", "bits", "exponent", "mantissa"]
    row = next(line for line in text if line.startswith("fp16"))
    assert row.split() == ["fp16", "16", "5", "10", "65504", "6.1e-05", "5.96e-08",
                           "0.000977", "3.3"]  # fmt: skip
    assert [line for line in text if "computed from its bits" in line] == [text[2]]
    ends = ["decimal digits", "7.2", "3.3", "3.3", "2.4", "1.2", "0.9"]
    columns = {line.rindex(end) + len(end) for line, end in zip(text, ends, strict=True)}
    assert len(columns) == 1  # they are below each other
    table = formats()._repr_html_()
    assert table.count("<tr") == 7
    assert "<td" in table
    assert ">65504<" in table


def test_the_pictures_at_the_top_are_so() -> None:
    lines = (precision.__doc__ or "").splitlines()
    for form in formats()[:4]:
        row = next(line.split() for line in lines if f" {form.name} " in line)
        assert [int(row[1]), int(row[2])] == [form.exponent_bits, form.mantissa_bits]
        sign, exponent, mantissa = (lines[2].index(word) for word in
                                    ("sign", "exponent", "mantissa"))  # fmt: skip
        assert sign < exponent < mantissa
    axis = next(line for line in lines if line.startswith("  0 ├"))
    places = [place for place, mark in enumerate(axis) if mark in "┼┤"]
    numbers = all_numbers(torch.float8_e4m3fn) / format_of(torch.float8_e4m3fn).smallest_subnormal
    assert [(place - axis.index("├")) / 2 for place in places] == numbers[: len(places)].tolist()
    pointed = next(line for line in lines if "└ smallest" in line)
    assert [axis[place] for place, mark in enumerate(pointed) if mark == "└"] == ["┼", "┤"]


def test_formats_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"torch.int8 is not one of these.*torch.bfloat16"):
        format_of(torch.int8)
    with pytest.raises(ValueError, match="not 1 and 3"):
        Format.from_bits("", 1, 3)
    with pytest.raises(ValueError, match="not 4 and 0"):
        Format.from_bits("", 4, 0)


# What a format keeps ------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.sampled_from([0.0, -0.0, INF, -INF, NAN]),
            st.floats(-44, 38).map(lambda power: 10.0**power),
            st.floats(-44, 38).map(lambda power: -(10.0**power)),
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from(SMALL),
    st.sampled_from([1.0, 2.0**16]),
)
def test_every_number_is_of_one_kind(
    values: list[float], dtype: torch.dtype, scale: float
) -> None:
    numbers = torch.tensor(values)
    form = format_of(dtype)
    kinds = dict.fromkeys(vars(Kept(0, 0, 0, 0, 0)), 0)
    for number in numbers.tolist():
        size = abs((torch.tensor(number) * scale).item())
        after = abs((torch.tensor(number) * scale).to(dtype).float().item())
        if not size <= form.max:
            kinds["overflow"] += 1
        elif number == 0:
            kinds["zero"] += 1
        elif after == 0:
            kinds["underflow"] += 1
        else:
            kinds["subnormal" if after < form.smallest_normal else "normal"] += 1
    found = kept([numbers], dtype, scale)
    assert vars(found) == {name: count / len(values) for name, count in kinds.items()}
    assert sum(vars(found).values()) == pytest.approx(1)


def test_half_of_the_smallest_number_is_lost_and_a_scale_saves_it() -> None:
    smallest = 2.0**-24
    numbers = torch.tensor([0.0, smallest / 2, 0.51 * smallest, smallest, 2.0**-14, 1.0, 70000])
    assert kept([numbers]) == Kept(1 / 7, 1 / 7, 2 / 7, 2 / 7, 1 / 7)
    assert kept([numbers], scale=2.0**8) == Kept(1 / 7, 0, 3 / 7, 2 / 7, 1 / 7)
    assert kept([numbers], torch.bfloat16) == Kept(1 / 7, 0, 0, 6 / 7, 0)


def test_a_models_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    model[1].requires_grad_(False)
    with pytest.raises(ValueError, match="call this after backward"):
        kept(model)
    (model(torch.ones(3, 4)).sum() * 1e-9).backward()
    found = kept(model)
    assert (found.underflow, found.zero) == (1, 0)
    assert kept(model, scale=2.0**16).underflow < 1
    assert str(found) == "0.0% zero, 100.0% underflow, 0.0% subnormal, 0.0% normal, 0.0% overflow"
