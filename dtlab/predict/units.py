"""Units of measurement: validation of arguments, and numbers as text.

in_gb(85899345920)     85.9 GB      10^9 bytes, the unit of papers and vendors
in_gib(85899345920)    80 GiB       2^30 bytes, the unit of the driver and PyTorch
"""

from __future__ import annotations

import math

import numpy as np

__all__ = [
    "check_bytes", "check_count", "check_whole", "counted", "four_digits", "in_gb", "in_gib",
    "in_units", "is_number",
]  # fmt: skip

_PREFIXES = ("n", "µ", "m", "", "k", "M", "G", "T")
_NO_PREFIX = _PREFIXES.index("")


def is_number(value: object) -> bool:
    """Return whether a value is a number; NaN and bool are not."""
    known = (int, float, np.integer, np.floating)
    return isinstance(value, known) and not isinstance(value, bool) and bool(value == value)


def check_count(name: str, value: int) -> int:
    """Return `value` if it is a whole number of 1 or more. Raises: ValueError otherwise."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of 1 or more, not {value!r}.")
    return int(value)


def check_whole(name: str, value: float) -> int:
    """Return `value`, such as 7e9, if it is whole and above 0. Raises: ValueError otherwise."""
    if not is_number(value) or value < 1 or not float(value).is_integer():
        raise ValueError(f"{name} must be a whole number above 0, such as 7e9, not {value!r}.")
    return int(value)


def check_bytes(name: str, value: float) -> float:
    """Return `value` if it is a number of bytes of 0 or more. Raises: ValueError otherwise."""
    if not (is_number(value) and 0 <= value < math.inf):
        raise ValueError(f"{name} must be 0 bytes or more, such as 80e9, not {value!r}.")
    return value.item() if isinstance(value, np.generic) else value


def in_units(value: float, unit: str, *, prefix: str | None = None, binary: bool = False) -> str:
    """Format a quantity with a suitable prefix, or with `prefix`: 2.5e10, "B/s" is 25 GB/s.

    Binary prefixes are powers of 1024, written as Ki, Mi, Gi, Ti.
    """
    base = 1024 if binary else 1000
    if prefix is not None:
        power = _PREFIXES.index(prefix) - _NO_PREFIX
    elif value == 0 or math.isinf(value):
        return f"{value:g} {unit}"
    else:
        exact = math.log(abs(value), 1024) if binary else math.log10(abs(value)) / 3
        power = min(max(math.floor(exact + 1e-9), 0 if binary else -3), 4)
    letter = _PREFIXES[_NO_PREFIX + power] + ("i" if binary and power else "")
    return f"{four_digits(value / base**power)} {letter}{unit}"


def in_gb(nbytes: float) -> str:
    """Format bytes in decimal units of 10^9 bytes: `112e9` as `112 GB`."""
    return in_units(nbytes, "B", prefix="G")


def in_gib(nbytes: float) -> str:
    """Format bytes in binary units of 2^30 bytes: `112e9` as `104.3 GiB`."""
    return in_units(nbytes, "B", prefix="G", binary=True)


def counted(count: float, noun: str, plural: str = "") -> str:
    """Format a count with its noun: "1 layer", "4,096 layers"; `plural` if it is not noun + s."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:,g}"
    return f"{number} {noun if count == 1 else plural or f'{noun}s'}"


def four_digits(value: float) -> str:
    """Format a number with four digits, or all digits before the point, without an exponent."""
    if abs(value) >= 1000 and math.isfinite(value):
        return f"{value:,.0f}"
    if 0 < abs(value) < 1e-3:
        return np.format_float_positional(value, precision=4, fractional=False, trim="-")
    return f"{value:.4g}"
