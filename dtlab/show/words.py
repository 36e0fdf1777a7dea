"""Formatting of numbers with suitable units, and parsing of numbers that a learner types."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

__all__ = [
    "BYTES",
    "DURATIONS",
    "SECONDS",
    "byte_words",
    "duration_words",
    "list_words",
    "number_from_words",
    "number_words",
    "rank_words",
    "short_words",
    "time_unit",
    "time_words",
]

BYTES: Final[Mapping[str, float]] = MappingProxyType({"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9})
SECONDS: Final[Mapping[str, float]] = MappingProxyType({"µs": 1e-6, "ms": 1e-3, "s": 1})
DURATIONS: Final[Mapping[str, float]] = MappingProxyType(
    {"s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365.25 * 86400}
)
_NUMBER: Final = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
_MOST_RUNS: Final = 4


def time_unit(seconds: float) -> tuple[str, float]:
    """Return a suitable unit for a duration, and the number of these units in a second."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return unit, factor
    return "µs", 1e6


def time_words(seconds: float) -> str:
    """Format a time: `0.00123` as `1.23 ms`."""
    unit, factor = time_unit(seconds)
    return f"{_three_digits(seconds * factor)} {unit}"


def duration_words(seconds: float) -> str:
    """Format a time from seconds to years: `11160` as `3.1 h`."""
    if seconds < 1:
        return short_words(time_words(seconds)) if seconds else "0 s"
    unit, size = [(name, each) for name, each in DURATIONS.items() if seconds >= each][-1]
    return f"{number_words(seconds / size)} {unit[:-1] if seconds == size > 3600 else unit}"


def byte_words(count: float) -> str:
    """Format a number of bytes in decimal units: `6291456` as `6.29 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:g} B"


def short_words(words: str) -> str:
    """Drop trailing zeros from a formatted quantity: `1.00 MB` becomes `1 MB`."""
    number, unit = words.split(" ")
    return f"{float(number):g} {unit}"


def number_words(value: float, digits: int = 3) -> str:
    """Format a number with this many digits: `2.81e-5` as `2.81 × 10^-5`, `65504` as `65,504`."""
    if value and math.isfinite(value) and not 1e-4 <= abs(value) < 1e6:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        return f"{float(mantissa):.{digits}g} × 10^{int(power)}"
    if float(value).is_integer() or 10**digits <= abs(value) < math.inf:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def list_words(items: Sequence[str]) -> str:
    """Join items into an enumeration: `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def rank_words(ranks: Iterable[int]) -> str:
    """Format rank numbers: `0,2`; three or more consecutive ranks as `0-3`.

    A long list is shortened to its first two parts and its last: `0,2,…,14`.
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [
        [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(rank) for rank in run] for run in runs
    ]
    words = list(itertools.chain.from_iterable(parts))
    return ",".join(words if len(words) <= _MOST_RUNS else [*words[:2], "…", words[-1]])


def number_from_words(words: str, units: Mapping[str, float]) -> float:
    """Parse a number with an optional unit: `7 MB` is 7e6. `units` maps each unit to its factor.

    Upper and lower case are both accepted, and the space before the unit may be left out. If
    `units` are bytes per second, bits per second are converted: `400 Gb/s`, `400 Gbit/s` and
    `400 Gbps` are 50e9. Raises: ValueError for anything else, and for a unit that may mean bits or
    bytes, as in `7 Mb`.
    """
    match = re.fullmatch(rf"{_NUMBER}\s*(.*)", words.strip(), re.IGNORECASE)
    after = f", then {', '.join(units)} or nothing" if units else ""
    message = f"{words.strip()!r} is not understood. Type digits and a point{after}."
    if match is None:
        raise ValueError(message)
    number, unit = float(match[1]), re.sub("^[uμU]", "µ", match[2])
    if unit in units:
        return number * units[unit]
    bits = re.fullmatch("([kmg]?)(b/s|bps|bits?/s)", unit, re.IGNORECASE)
    if bits and bits[2].startswith("b") and unit not in ("mb/s", "gb/s"):
        in_bytes = {"": "", "k": "k", "m": "M", "g": "G"}[bits[1].lower()] + "B/s"
        if in_bytes in units:
            return number * units[in_bytes] / 8
    known = {name.lower(): factor for name, factor in units.items()} | {"": 1.0}
    if unit.lower() not in known:
        raise ValueError(message)
    if re.search("b(/s)?$", unit) and (not unit.islower() or unit.endswith("/s")):
        name = next(name for name in units if name.lower() == unit.lower())
        raise ValueError(
            f"{words.strip()!r}: b stands for bits, B for bytes. Type {match[1]} {name} for bytes."
        )
    return number * known[unit.lower()]


def _three_digits(value: float) -> str:
    """Format a number with three digits and without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
