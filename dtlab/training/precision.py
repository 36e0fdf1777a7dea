"""Number formats for training: their range, spacing and effect on gradients.

    sign  exponent           mantissa
     1       8                  23                fp32   up to 3.4e38, 7 digits
     1       8              10                    tf32   range of fp32, spacing of fp16
     1       5              10                    fp16   finer than bf16, up to 65504
     1       8          7                         bf16   range of fp32, 2 digits

    subnormal         normal numbers (here with 3 mantissa bits)
  0 ├─┼─┼─┼─┼─┼─┼─┼─┤ ┼ ┼ ┼ ┼ ┼ ┼ ┼ ┼   ┼   ┼   ┼   ┼   ┼   ┼   ┼   ┼       ...       max
      └ smallest    └ smallest normal: from here on, the spacing
        subnormal     doubles at each power of two

Exponent bits determine the range, mantissa bits the spacing. fp16 has too small a range and loses
small gradients: use `DynamicLossScaler`. bf16 has too large a spacing and loses small updates: use
`MasterWeights`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dtlab.training.loss_scaling import DynamicLossScaler, StaticLossScaler
from dtlab.training.master_weights import MasterWeights

__all__ = [
    "DynamicLossScaler",
    "Format",
    "FormatTable",
    "Kept",
    "MasterWeights",
    "StaticLossScaler",
    "format_of",
    "formats",
    "kept",
]

NAMES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8 e4m3",
    torch.float8_e5m2: "fp8 e5m2",
}


# Formats ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: a sign, exponent bits, mantissa bits.

    `max` is the largest finite number. From `smallest_normal` on, numbers have all their mantissa
    bits. Below it they are subnormal, evenly spaced down to `smallest_subnormal`; half of
    `smallest_subnormal` or less is rounded to 0. `dtype` is None if torch has no such tensors.
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    max: float
    smallest_normal: float
    smallest_subnormal: float
    dtype: torch.dtype | None = None

    @property
    def spacing_at_1(self) -> float:
        """The distance from 1 to the next number: 2 to the minus mantissa bits."""
        return 2.0**-self.mantissa_bits

    @property
    def decimal_digits(self) -> float:
        """Decimal digits of the mantissa with its hidden bit: (mantissa bits + 1) log10 2."""
        return (self.mantissa_bits + 1) * math.log10(2)

    @property
    def bytes(self) -> float:
        """Bytes of a number in memory."""
        return self.bits / 8

    @staticmethod
    def from_bits(name: str, exponent_bits: int, mantissa_bits: int) -> Format:
        """Make a format by IEEE 754, which reserves the highest exponent for inf and NaN.

        Raises: ValueError for fewer than 2 exponent bits or less than 1 mantissa bit.
        """
        if exponent_bits < 2 or mantissa_bits < 1:
            raise ValueError(
                f"A format needs at least 2 exponent bits and 1 mantissa bit, not {exponent_bits} "
                f"and {mantissa_bits}."
            )
        bias = 2 ** (exponent_bits - 1) - 1
        spacing = 2.0**-mantissa_bits
        smallest = 2.0 ** (1 - bias)
        return Format(
            name,
            1 + exponent_bits + mantissa_bits,
            exponent_bits,
            mantissa_bits,
            max=(2 - spacing) * 2.0**bias,
            smallest_normal=smallest,
            smallest_subnormal=smallest * spacing,
        )


def format_of(dtype: torch.dtype) -> Format:
    """Return the format of a torch dtype, from `torch.finfo`.

    Raises: ValueError for a dtype other than fp32, fp16, bf16, fp8.
    """
    if dtype not in NAMES:
        known = ", ".join(map(str, NAMES))
        raise ValueError(f"{dtype} is not one of these formats: {known}.")
    info = torch.finfo(dtype)
    mantissa_bits = round(-math.log2(info.eps))
    return Format(
        NAMES[dtype],
        info.bits,
        info.bits - 1 - mantissa_bits,
        mantissa_bits,
        info.max,
        info.smallest_normal,
        info.smallest_normal * info.eps,
        dtype,
    )


class FormatTable(tuple[Format, ...]):
    """Formats that print as a table, in a terminal and in a notebook."""

    TITLES = (
        "format", "bits", "exponent", "mantissa", "max", "smallest normal", "smallest subnormal",
        "spacing at 1", "decimal digits", "",
    )  # fmt: skip

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                *map(str, (row.name, row.bits, row.exponent_bits, row.mantissa_bits)),
                f"{row.max:.6g}",
                f"{row.smallest_normal:.3g}",
                f"{row.smallest_subnormal:.3g}",
                f"{row.spacing_at_1:.3g}",
                f"{row.decimal_digits:.1f}",
                "" if row.dtype else "computed from its bits; 32 in memory",
            )
            for row in self
        ]

    def __repr__(self) -> str:
        rows = [self.TITLES, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:-1], widths[1:]), row[-1]])
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        style = 'style="padding:.2em 1em .2em 0;text-align:right"'

        def line(cells: Iterable[str], tag: str) -> str:
            inside = "".join(f"<{tag} {style}>{html.escape(cell)}</{tag}>" for cell in cells)
            return f'<tr style="background:none">{inside}</tr>'

        body = "".join(line(row, "td") for row in self._rows())
        head = line(self.TITLES, "th")
        return f'<table style="color:inherit"><thead>{head}</thead><tbody>{body}</tbody></table>'


def formats() -> FormatTable:
    """Return fp32, tf32, fp16, bf16 and the two fp8 formats, sorted by precision.

    tf32 is the format in which some GPUs multiply fp32 matrices. It has no tensors, so torch does
    not describe it, and its row is computed from its bits.
    """
    fp32, *rest = map(format_of, NAMES)
    return FormatTable([fp32, Format.from_bits("tf32", 8, 10), *rest])


# The effect of a format on gradients --------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """What a format does to numbers, as shares of all numbers, which add up to 1.

    `zero` was 0 before; `underflow` becomes 0; `subnormal` loses bits; `overflow` exceeds the
    largest number, and includes inf and NaN; `normal` is the rest, which is only rounded.
    """

    zero: float
    underflow: float
    subnormal: float
    normal: float
    overflow: float

    def __str__(self) -> str:
        return ", ".join(f"{share:.1%} {name}" for name, share in vars(self).items())


@torch.no_grad()
def kept(
    source: nn.Module | Iterable[Tensor], dtype: torch.dtype = torch.float16, scale: float = 1.0
) -> Kept:
    """Return what the format `dtype` does to a model's gradients, or to given tensors.

    The numbers are multiplied by `scale` first, as by a loss scaler. The gradients must be fp32:
    numbers that fp16 has lost in backward cannot be counted.

    Raises: ValueError if there is no number, or for a dtype that `format_of` does not accept.
    """
    if isinstance(source, nn.Module):
        source = (p.grad for p in source.parameters() if p.grad is not None)
    counts, form = torch.zeros(5, dtype=torch.int64), format_of(dtype)
    for tensor in source:
        counts += _counts(tensor.detach().float(), form, scale)
    total = int(counts.sum())
    if not total:
        raise ValueError(
            "There are no numbers to count. For gradients, call this after backward and before "
            "zero_grad."
        )
    return Kept(*(count / total for count in counts.tolist()))


def _counts(tensor: Tensor, form: Format, scale: float) -> Tensor:
    """Return how many numbers of a tensor are of each kind, in the order of `Kept`."""
    scaled = tensor * scale
    rounded = scaled.to(form.dtype).float().abs()
    zero = tensor == 0
    overflow = ~(scaled.abs() <= form.max)  # also NaN
    underflow = (rounded == 0) & ~zero
    normal = (rounded >= form.smallest_normal) & ~overflow
    rest = ~(zero | underflow | normal | overflow)
    return torch.stack([kind.sum() for kind in (zero, underflow, rest, normal, overflow)]).cpu()
