"""Floating-point formats: range, spacing and rounding.

A normal number is sign x 1.mm x 2^e, with a spacing of 2^(e - mantissa bits). A subnormal number
is sign x 0.mm x 2^e, with the lowest exponent e; these numbers continue down to 0 with the same
spacing. All non-negative numbers with 3 exponent bits and 2 mantissa bits:

    0     .0625  .125  .1875     subnormal
    .25   .3125  .375  .4375     e = -2
    .5    .625   .75   .875      e = -1
    1     1.25   1.5   1.75      e = 0
    2     2.5    3     3.5       e = 1
    4     5      6     7         e = 2
    8     10     12    14        e = 3

The layout follows IEEE 754, which reserves the highest exponent for inf and NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["BF16", "BINARY_FORMATS", "FP16", "FP32", "BinaryFormat"]


@dataclass(frozen=True)
class BinaryFormat:
    """A format of one sign bit, exponent bits and mantissa bits.

    The leading 1 is neither stored nor counted.
    """

    exponent_bits: int
    mantissa_bits: int

    @property
    def lowest(self) -> int:
        """The exponent of the smallest normal number."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def highest(self) -> int:
        """The exponent of the largest number."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def largest(self) -> float:
        """The largest number."""
        return (2 - 2.0**-self.mantissa_bits) * 2.0**self.highest

    @property
    def smallest(self) -> float:
        """The smallest number above 0, which is subnormal."""
        return 2.0 ** (self.lowest - self.mantissa_bits)

    def spacing(self, value: float) -> float:
        """Return the distance between neighbouring numbers around `value`."""
        at_least = max(abs(value), 2.0**self.lowest)
        exponent = math.frexp(at_least)[1] - 1  # at_least is 1.mmm x 2^exponent
        return 2.0 ** (exponent - self.mantissa_bits)

    def rounded(self, value: float) -> float:
        """Return the nearest number, ties to even; infinity beyond the largest number."""
        step = self.spacing(value)
        nearest = round(value / step) * step  # Python also rounds ties to even
        fits = abs(nearest) < 2.0 ** (self.highest + 1)
        return nearest if fits else math.copysign(math.inf, value)

    def holds(self, value: float) -> bool:
        """Return whether `value` is a number of the format."""
        return self.rounded(value) == value

    def between(self, low: float, high: float, most: int = 1000) -> list[float]:
        """Return the format's numbers from `low` to `high`, in order, at most `most` of them."""
        numbers: list[float] = []
        number = self._at_least(max(low, -self.largest))
        while number <= min(high, self.largest) and len(numbers) < most:
            numbers.append(number)
            number += self.spacing(number) if number >= 0 else self._step_up(number)
        return numbers

    def _at_least(self, value: float) -> float:
        """Return the smallest number that is at least `value`."""
        step = self.spacing(value)
        return math.ceil(value / step) * step

    def _step_up(self, number: float) -> float:
        """Return the distance from a negative number to the next; it halves at a power of two."""
        step = self.spacing(number)
        power = abs(number) > 2.0**self.lowest and math.frexp(number)[0] == -0.5
        return step / 2 if power else step


FP32: Final = BinaryFormat(8, 23)
FP16: Final = BinaryFormat(5, 10)
BF16: Final = BinaryFormat(8, 7)
BINARY_FORMATS: Final[Mapping[str, BinaryFormat]] = MappingProxyType(
    {
        "fp32": FP32,
        "tf32": BinaryFormat(8, 10),
        "fp16": FP16,
        "bf16": BF16,
        "fp8 e5m2": BinaryFormat(5, 2),
    }
)
