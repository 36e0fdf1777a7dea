"""Numbers as a reader wants them, with the unit that suits; and read as a reader types them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

__all__ = [
    "BYTES",
    "SECONDS",
    "byte_words",
    "list_words",
    "number_from_words",
    "rank_words",
    "short_words",
    "time_unit",
    "time_words",
]

BYTES: Final[Mapping[str, float]] = MappingProxyType({"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9})
SECONDS: Final[Mapping[str, float]] = MappingProxyType({"µs": 1e-6, "ms": 1e-3, "s": 1})
_NUMBER: Final = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
_MOST_RUNS: Final = 4


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


def rank_words(ranks: Iterable[int]) -> str:
    """`0,2`; neighbours from three on as `0-3`; of many the first two and the last: `0,2,…,14`."""
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
    """`7 MB` as `7e6`, with `units` saying what one of each is; without a unit as it stands.

    Capital letters or small ones, with a blank or without. Raises: ValueError for anything else.
    """
    found = re.fullmatch(rf"{_NUMBER}\s*(.*)", words.strip(), re.IGNORECASE)
    known = {unit.lower(): factor for unit, factor in units.items()} | {"": 1.0}
    unit = re.sub("^[uμ]", "µ", found[2].lower()) if found else ""  # typed for the sign of micro
    if found is None or unit not in known:
        after = f", then {', '.join(units)} or nothing" if units else ""
        raise ValueError(f"{words.strip()!r} is not understood. Type digits and a point{after}.")
    return float(found[1]) * known[unit]


def _three_digits(value: float) -> str:
    """Three digits, never in powers of ten."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
