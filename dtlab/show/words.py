"""Numbers as a reader wants them: times and sizes with the unit that suits."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["byte_words", "list_words", "short_words", "time_unit", "time_words"]


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which a length of time reads best, and how many of it make a second."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return unit, factor
    return "µs", 1e6


def time_words(seconds: float) -> str:
    """`0.00123` as `1.23 ms`."""
    unit, factor = time_unit(seconds)
    return f"{_three_digits(seconds * factor)} {unit}"


def byte_words(count: float) -> str:
    """A number of bytes in decimal units: `6291456` as `6.29 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:g} B"


def short_words(words: str) -> str:
    """`1.00 MB` as `1 MB`."""
    number, unit = words.split(" ")
    return f"{float(number):g} {unit}"


def list_words(items: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def _three_digits(value: float) -> str:
    """Three digits, never in powers of ten."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
