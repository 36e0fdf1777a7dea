"""Number formats for training: their range, spacing and effect on gradients.

    sign  exponent           mantissa
     1       8                  23                fp32   reaches 3.4e38, 7 digits
     1       8              10                    tf32   as far as fp32, as fine as fp16
     1       5              10                    fp16   finer than bf16, and reaches 65504
     1       8          7                         bf16   reaches as far as fp32, 2 digits

    subnormal         normal numbers (here with 3 mantissa bits)
  0 ├─┼─┼─┼─┼─┼─┼─┼─┤ ┼ ┼ ┼ ┼ ┼ ┼ ┼ ┼   ┼   ┼   ┼   ┼   ┼   ┼   ┼   ┼       ...       max
      └ smallest    └ smallest normal: from here up, twice as far apart
        subnormal     after each power of two

Exponent bits say how far it reaches, mantissa bits how fine it is. fp16 is short of the first, and
loses small gradients: `DynamicLossScaler`. bf16 is short of the second, and loses small updates:
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
    bits; below it they are subnormal, evenly spaced down to `smallest_subnormal`, and what is
    half of that or less is rounded to 0. `dtype` is None where torch has no tensors of it.
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
        """How far the next number after 1 is from 1: 2 to the minus mantissa bits."""
        return 2.0**-self.mantissa_bits

    @property
    def decimal_digits(self) -> float:
        """What the mantissa, with its hidden bit, is worth: (mantissa bits + 1) log10 2."""
        return (self.mantissa_bits + 1) * math.log10(2)

    @property
    def bytes(self) -> float:
        """Bytes of a number in memory."""
        return self.bits / 8

    @staticmethod
    def from_bits(name: str, exponent_bits: int, mantissa_bits: int) -> Format:
        """By IEEE 754's rule, in which the highest exponent is kept for inf and NaN.

        Raises: ValueError for fewer than 2 exponent bits or less than 1 mantissa bit.
        """
        if exponent_bits < 2 or mantissa_bits < 1:
            raise ValueError(
                f"A format has 2 exponent bits and 1 mantissa bit at least, not {exponent_bits} "
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
    """The format of a torch dtype, from `torch.finfo`.

    Raises: ValueError for a dtype that is none of fp32, fp16, bf16, fp8.
    """
    if dtype not in NAMES:
        known = ", ".join(map(str, NAMES))
        raise ValueError(f"{dtype} is not one of the formats here: {known}.")
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
                *map(str, (one.name, one.bits, one.exponent_bits, one.mantissa_bits)),
                f"{one.max:.6g}",
                f"{one.smallest_normal:.3g}",
                f"{one.smallest_subnormal:.3g}",
                f"{one.spacing_at_1:.3g}",
                f"{one.decimal_digits:.1f}",
                "" if one.dtype else "computed from its bits; in memory 32",
            )
            for one in self
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
    """fp32, tf32, fp16, bf16 and the two of fp8, from the finest that torch trains in.

    tf32 is how some GPUs multiply fp32 matrices. There are no tensors of it, so torch does not
    describe it, and its row is computed from its bits.
    """
    fp32, *others = map(format_of, NAMES)
    return FormatTable([fp32, Format.from_bits("tf32", 8, 10), *others])


# What a format keeps of a gradient ----------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """What becomes of numbers in a format, as shares of all of them, which add up to 1.

    `zero` was 0 before; `underflow` becomes 0; `subnormal` loses bits; `overflow` is beyond the
    largest number, and inf and NaN are counted there; `normal` is the rest, merely rounded.
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
    """What becomes of a model's gradients, or of given tensors, in the format `dtype`.

    They are multiplied with `scale` first, as by a loss scaler. The gradients have to be fp32:
    what fp16 has lost in backward cannot be counted any more.

    Raises: ValueError where there is no number to look at, or for a dtype that `format_of`
    refuses.
    """
    if isinstance(source, nn.Module):
        source = (each.grad for each in source.parameters() if each.grad is not None)
    counts, form = torch.zeros(5, dtype=torch.int64), format_of(dtype)
    for tensor in source:
        counts += _counts(tensor.detach().float(), form, scale)
    total = int(counts.sum())
    if not total:
        raise ValueError("There are no gradients: call backward first, and zero_grad afterwards.")
    return Kept(*(count / total for count in counts.tolist()))


def _counts(tensor: Tensor, form: Format, scale: float) -> Tensor:
    """How many numbers of a tensor are of each kind, in the order of `Kept`."""
    scaled = tensor * scale
    rounded = scaled.to(form.dtype).float().abs()
    zero = tensor == 0
    overflow = ~(scaled.abs() <= form.max)  # NaN too
    gone = (rounded == 0) & ~zero
    normal = (rounded >= form.smallest_normal) & ~overflow
    rest = ~(zero | gone | normal | overflow)
    return torch.stack([each.sum() for each in (zero, gone, rest, normal, overflow)]).cpu()
