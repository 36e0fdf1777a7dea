"""Numbers as people type them into a field: bits and bytes are told apart."""

from __future__ import annotations

import pytest

from dtlab.show.words import BYTES, SECONDS, number_from_words, number_words

RATES = {f"{unit}/s": factor for unit, factor in BYTES.items()}


@pytest.mark.parametrize(
    ("typed", "bytes_per_second"),
    [
        ("400 GB/s", 400e9), ("400 Gb/s", 50e9), ("400Gbps", 50e9), ("400 Gbit/s", 50e9),
        ("400 gbit/s", 50e9), ("400 Gbits/s", 50e9), ("10 kb/s", 1250), ("8 b/s", 1),
        ("1 gB/s", 1e9), ("5e10", 5e10),
    ],
)  # fmt: skip
def test_bits_per_second_are_converted(typed: str, bytes_per_second: float) -> None:
    assert number_from_words(typed, RATES) == bytes_per_second


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("400 gb/s", "'400 gb/s': b stands for bits, B for bytes. Type 400 GB/s for bytes."),
        ("400 mb/s", "Type 400 MB/s for bytes"),
        ("400 GBps", "is not understood"),
        ("400 Tb/s", "is not understood"),
        ("fast", "'fast' is not understood. Type digits and a point, then B/s, kB/s"),
    ],
)
def test_a_rate_that_may_be_either_is_refused(typed: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        number_from_words(typed, RATES)


def test_sizes_are_bytes() -> None:
    assert number_from_words("7 mb", BYTES) == number_from_words("7 MB", BYTES) == 7e6
    with pytest.raises(ValueError, match="'7 Mb': b stands for bits, B for bytes. Type 7 MB for"):
        number_from_words("7 Mb", BYTES)


@pytest.mark.parametrize("typed", ["5 us", "5 µs", "5 μs", "5 US"])
def test_microseconds_may_be_typed_with_u(typed: str) -> None:
    assert number_from_words(typed, SECONDS) == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"), (1.0, "1"), (0.00123456, "0.00123"), (-12.345, "-12.3"), (1024, "1,024"),
        (65504.0, "65,504"), (54321.9, "54,322"), (2.81e-5, "2.81 × 10^-5"),
        (5.5e11, "5.5 × 10^11"), (float("inf"), "inf"),
    ],
)  # fmt: skip
def test_numbers_are_written_without_a_programs_exponent(value: float, words: str) -> None:
    assert number_words(value) == words
