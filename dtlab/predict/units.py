"""Units of measurement: validation of arguments, and numbers as text.

in_gb(85899345920)     85.9 GB      10^9 bytes, as papers and vendors count
in_gib(85899345920)    80 GiB       2^30 bytes, as the driver and PyTorch count
"""

from __future__ import annotations

import math

import numpy as np

__all__ = [
    "check_bytes", "check_count", "check_whole", "four_digits", "in_gb", "in_gib",
    "in_units", "is_number",
]  # fmt: skip

_PREFIXES = ("n", "u", "m", "", "k", "M", "G", "T")
_NO_PREFIX = _PREFIXES.index("")


def is_number(value: object) -> bool:
    """Whether it is a number; what is not a number (NaN), and a truth value, are none."""
    known = (int, float, np.integer, np.floating)
    return isinstance(value, known) and not isinstance(value, bool) and bool(value == value)


def check_count(name: str, value: int) -> int:
    """`value`, a whole number from 1 on. Raises: ValueError for anything else."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is a whole number from 1 on, not {value!r}.")
    return int(value)


def check_whole(name: str, value: float) -> int:
    """As `check_count`, and it may be written as 7e9. Raises: ValueError for anything else."""
    if not is_number(value) or value < 1 or not float(value).is_integer():
        raise ValueError(f"{name} is a whole number from 1 on, such as 7e9, not {value!r}.")
    return int(value)


def check_bytes(name: str, value: float) -> float:
    """`value`, bytes from 0 on. Raises: ValueError for anything else."""
    if not (is_number(value) and 0 <= value < math.inf):
        raise ValueError(f"{name} is a number of bytes from 0 on, such as 80e9, not {value!r}.")
    return value.item() if isinstance(value, np.generic) else value


def in_units(value: float, unit: str, *, prefix: str | None = None, binary: bool = False) -> str:
    """A quantity with the prefix that suits it, or with `prefix`: 2.5e10, "B/s" is 25 GB/s.

    Binary prefixes are powers of 1024, and are written Ki, Mi, Gi, Ti.
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
    """Bytes in decimal units: `112e9` as `112 GB`, 10^9 bytes each."""
    return in_units(nbytes, "B", prefix="G")


def in_gib(nbytes: float) -> str:
    """Bytes in binary units: `112e9` as `104.3 GiB`, 2^30 bytes each."""
    return in_units(nbytes, "B", prefix="G", binary=True)


def four_digits(value: float) -> str:
    """Four digits, or all of those before the point, and never a power of ten."""
    if abs(value) >= 1000 and math.isfinite(value):
        return f"{value:,.0f}"
    if 0 < abs(value) < 1e-3:
        return np.format_float_positional(value, precision=4, fractional=False, trim="-")
    return f"{value:.4g}"
