"""Parses numbers as people write them: 12.6, 12.6e6, "12.6 MB", "12 MiB", "3/4", and lists."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

__all__ = [
    "Nested",
    "Unreadable",
    "binary_twin",
    "close",
    "entries",
    "numbers_in",
    "other_units",
    "plain",
    "read",
    "short",
    "whole",
    "written",
]

Nested: TypeAlias = "float | list[Nested]"


class Unreadable(ValueError):
    """A value that cannot be parsed. `what` says why, and `how` says what to write instead."""

    def __init__(self, what: str, how: str = "") -> None:
        super().__init__(f"{what} {how}".rstrip())
        self.what = what


_BYTES = {
    "B": 1.0,
    **{f"{prefix}B": 1e3**power for power, prefix in enumerate("kMGTP", 1)},
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGTP", 1)},
}
_KINDS: dict[str, dict[str, float]] = {
    "bytes": _BYTES,
    "bytes per second": {
        **{f"{name}/s": factor for name, factor in _BYTES.items()},
        **{f"{prefix}b/s": 1e3**power / 8 for power, prefix in enumerate("kMGT", 1)},
    },
    "seconds": {
        "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0,
        "h": 3600.0, "d": 86400.0, "days": 86400.0,
    },
    "operations": {f"{p}FLOP": 1e3**power for power, p in enumerate(["", *"kMGTPE"])},
    "operations per second": {
        f"{p}FLOP/s": 1e3**power for power, p in enumerate(["", *"kMGTPE"])
    },
    "share": {"%": 0.01},
    "factor": {"times": 1.0, "x": 1.0},
}  # fmt: skip
_PLAIN = r"[+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_WRITTEN = re.compile(rf"({_PLAIN})(?:\s*/\s*({_PLAIN}))?\s*([^\W\d_].*|%)?")
_CALCULATION = re.compile(r"(?=.*[\d)]\s*[-+*/(])[\d\s.eE_*/+()-]+")  # "3e-4*4", "(1+2)/3"
_ALL_DIGITS = 1e12  # whole numbers below this are shown with all digits
_CLOSE = 1e-9  # tolerance for rounding of floats


def read(value: Any, unit: str) -> list[Nested]:
    """Parses `value` in `unit` and returns its possible readings: one, or two for a bare number.

    If the unit is MB, 12.6 means 12.6 MB, and 12.6e6 may mean bytes. None in a list becomes `[]`.
    Raises `Unreadable`.
    """
    scale = 1 / _factor(unit, unit)
    readings = [_read(value, unit, bare) for bare in dict.fromkeys((1.0, scale))]
    return readings if readings[0] != readings[-1] else readings[:1]


def close(got: Nested, wanted: Nested, tolerance: float) -> bool:
    """Whether values agree within a relative tolerance; the number x also agrees with `[x]`."""
    if isinstance(wanted, list):
        if not isinstance(got, list):
            return len(wanted) == 1 and close(got, wanted[0], tolerance)
        same = len(got) == len(wanted)
        return same and all(close(*pair, tolerance) for pair in zip(got, wanted, strict=True))
    if isinstance(got, list):
        return False
    return math.isclose(got, wanted, rel_tol=0, abs_tol=tolerance * abs(wanted) + _CLOSE)


def binary_twin(unit: str) -> tuple[str, float] | None:
    """Returns the binary unit for a decimal one, and the ratio of the two: (MiB, 1.05) for MB."""
    twin = f"{unit[:1].upper()}i{unit[1:]}"
    for kind in _KINDS.values():
        if unit in kind and twin in kind:
            return twin, kind[twin] / kind[unit]
    return None


def other_units(unit: str) -> dict[str, float]:
    """Returns the other units of a kind, and how many of each are one `unit`: 1000 MB for GB."""
    kind = next((kind for kind in _KINDS.values() if unit in kind), {})
    return {name: kind[unit] / size for name, size in kind.items() if size != kind[unit]}


def written(value: Nested, unit: str) -> str:
    """Formats a value with its unit for the learner: "12.6 MB", "[4, 10]"."""
    if isinstance(value, list):
        return f"[{', '.join(written(element, '') for element in value)}] {unit}".rstrip()
    if value == 1 and re.fullmatch("[a-zA-Z]{3,}s", unit) and unit != "times":
        unit = re.sub("(?<=ch)es$|s$", "", unit)  # "1 microbatch", "1 step"
    digits = ".0f" if value == round(value) and abs(value) < _ALL_DIGITS else ".6g"
    return f"{value:{digits}} {unit}".rstrip()


def whole(value: Any) -> int | None:
    """Returns the whole number in 4, 4.0, "4" or a tensor of 4; None for anything else."""
    try:
        (number,) = read(value, "")
    except Unreadable:
        return None
    return int(number) if isinstance(number, float) and number.is_integer() else None


def plain(value: Any) -> Any:
    """Converts a tensor or an array to a number or nested lists; leaves other values unchanged."""
    if type(value).__module__.partition(".")[0] in ("torch", "numpy") and hasattr(value, "tolist"):
        return value.tolist()
    return value


def entries(found: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns the entries of a learner's dict, or a mapping, as numbers and short texts.

    If an entry is missing, or `found` is not a dict, the result has only the entry "odd", which
    says what was found instead: "a list", "a dict without 'data'".
    """
    if not isinstance(found, Mapping):
        return {"odd": f"a {type(found).__name__}"}
    missing = [name for name in names if name not in found]
    if missing:
        return {"odd": f"a dict without {missing[0]!r}"}
    values = {name: plain(found[name]) for name in names}
    kinds = int | float | str
    return {k: v if isinstance(v, kinds) else str(v)[:40] for k, v in values.items()}


def numbers_in(value: Any) -> list[float]:
    """Returns the numbers in a text or in (nested) lists; ignores everything else."""
    value = plain(value)
    if isinstance(value, str):
        matches = map(float, re.findall(_PLAIN, value))
        return [number for number in matches if math.isfinite(number)]
    if isinstance(value, Sequence | set | frozenset):
        return [number for element in value for number in numbers_in(element)]
    try:
        number = _read(value, "", 1.0)
    except Unreadable:
        return []
    return [number] if isinstance(number, float) else []


def short(value: Any) -> str:
    """Returns the value as Python code, cut to 40 characters."""
    text = repr(plain(value))
    return text if len(text) <= 40 else f"{text[:37]}..."


def _read(value: Any, unit: str, bare: float) -> Nested:
    """Parses `value`; a number without a unit is multiplied by `bare`."""
    value = plain(value)
    if value is None:
        return []
    if isinstance(value, str):
        return _read_text(value, unit, bare)
    if isinstance(value, Real) and not isinstance(value, bool):
        return _finite(value, value, unit) * bare
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_read(element, unit, bare) for element in value]
    raise Unreadable(f"{short(value)} is no number.", _how(unit))


def _read_text(text: str, unit: str, bare: float) -> float:
    match = _WRITTEN.fullmatch(text.strip())
    if (match is None or match[3]) and _CALCULATION.fullmatch(text):
        raise Unreadable(f"{short(text)}: a calculation is written without quotes.", _how(unit))
    if match is None:
        comma = " Write a point for decimals, and no commas." if "," in text else ""
        raise Unreadable(f"{short(text)} cannot be read.{comma}", _how(unit))
    top, bottom, its_unit = match.groups()
    divisor = float(bottom) if bottom else 1.0
    if divisor == 0:
        raise Unreadable(f"{short(text)} divides by zero.", _how(unit))
    number = _finite(float(top) / divisor, text, unit)
    return number * (_factor(its_unit.strip(), unit) / _factor(unit, unit) if its_unit else bare)


def _factor(name: str, asked: str) -> float:
    """Returns the size of the unit `name` in the base unit of its kind, the kind of `asked`."""
    kind: dict[str, float] = next((kind for kind in _KINDS.values() if asked in kind), {})
    if name in kind:
        return kind[name]
    if name == asked or name in (asked.removesuffix("s"), f"{asked}s"):
        return 1.0  # a word, as in "8 ranks"
    alike = {kind[known] for known in kind if known.casefold() == name.casefold()}
    if len(alike) == 1 and (name.islower() or name.isupper()):  # "Mb" would be megabits
        return alike.pop()
    raise Unreadable(f"{name!r} is no unit for this question.", _how(asked))


def _finite(number: Real | float, value: Any, unit: str) -> float:
    try:
        converted = float(number)
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise Unreadable(f"{short(value)} is no finite number.", _how(unit))
    return converted


def _how(unit: str) -> str:
    known = any(unit in kind for kind in _KINDS.values())
    example = f', or with its unit, as "2.5 {unit}"' if known else ""
    return f"Write a number, as 2.5, 2.5e6 or 3/4{example}."
