"""Draws the numbers that formats hold around a value, and which of them it is rounded to.

    fp16  │ │ │ │ │ ●◄┼ │ │ │ │ │     spacing 2^-10
    bf16  │       ●◄──┼       │       spacing 2^-7
                    value
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dtlab.predict.formats import BINARY_FORMATS, BinaryFormat
from dtlab.show.style import INK, MUTED, PALETTE, Figure

__all__ = ["number_line"]

_WIDTH, _ROW = 9.4, 0.62  # inches
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.5, 2.7, 1.0, 0.5
_STEPS: Final = 5  # of the widest spacing, on either side of the value
_MOST: Final = 130  # numbers in a row that can be told apart
_VALUE: Final = PALETTE[1]
_ROUNDED: Final = PALETTE[0]


def number_line(
    value: float = 1.003,
    formats: Sequence[str] = ("fp32", "fp16", "bf16"),
    *,
    title: str | None = None,
) -> Figure:
    """The numbers of each format near `value`, and the one that it becomes.

    The stretch that is shown goes by the widest spacing among the formats. Where a format has no
    number in it, the value overflows, or underflows. For names see `BINARY_FORMATS`.
    Raises: ValueError for an unknown format, none at all, or a value that is not finite.
    """
    unknown = [name for name in formats if name not in BINARY_FORMATS]
    if unknown or not formats:
        raise ValueError(f"number_line: formats are among {', '.join(BINARY_FORMATS)}; "
                         f"not {', '.join(unknown) or 'none'}.")  # fmt: skip
    if not math.isfinite(value):
        raise ValueError(f"number_line: a finite value, not {value}.")
    chosen = {name: BINARY_FORMATS[name] for name in formats}
    reach = _STEPS * max(_spacing(each, value) for each in chosen.values())
    heading = title or f"What becomes of {value:.9g}"
    note = "numbers of each format; the value goes to the nearest one"
    figure = Figure(_WIDTH, _TOP + _ROW * len(chosen) + _BOTTOM)
    figure.heading(heading, note)
    axes = _lines(figure, value, reach, len(chosen))
    for row, (name, each) in enumerate(chosen.items()):
        _draw_row(figure, axes, row, name, each, value, reach)
    facts = [f"{name}: {' '.join(_words(each, value))}" for name, each in chosen.items()]
    figure.alt_text = f"{heading} ({note}). {'; '.join(facts)}."
    return figure


def _spacing(each: BinaryFormat, value: float) -> float:
    """Of a format in which the value is in range; what is beyond does not say how wide to look."""
    inside = each.smallest / 2 < abs(value) <= each.largest or value == 0
    return each.spacing(value) if inside else 0.0


def _words(each: BinaryFormat, value: float) -> tuple[str, str]:
    """What the value becomes, and how far numbers are apart there."""
    rounded = each.rounded(value)
    if math.isinf(rounded):
        return f"becomes {rounded:g}", f"above the largest, {each.largest:.6g}"
    apart = f"spacing 2^{math.log2(each.spacing(value)):.0f}"
    if rounded == 0 != value:
        return "becomes 0", f"smallest is 2^{math.log2(each.smallest):.0f}"
    held = "is held exactly" if rounded == value else f"becomes {rounded:.9g}"
    return held, apart


def _lines(figure: Figure, value: float, reach: float, rows: int) -> Axes:
    """The rows' common axes, with the value as a line across all of them."""
    height = _ROW * rows
    axes = figure.sheet(_LEFT, _BOTTOM, _WIDTH - _LEFT - _RIGHT, height)
    axes.set_axis_on()
    axes.set_xlim(value - reach, value + reach)
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:.6g}"))
    axes.tick_params(axis="x", colors=MUTED, labelsize=8, length=3)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", color=MUTED)
    axes.axvline(value, color=_VALUE, linewidth=1.2, linestyle=(0, (4, 1.5)), gid="value")
    label = axes.annotate("value", (value, 1), xycoords=("data", "axes fraction"))
    label.set(fontsize=8, color=INK, ha="center", va="bottom")
    return axes


def _draw_row(
    figure: Figure, axes: Axes, row: int, name: str, each: BinaryFormat, value: float, reach: float
) -> None:
    """A tick for each number, a dot on the one that the value becomes, and words on both sides."""
    middle, half = (row + 0.5) * _ROW, 0.3 * _ROW
    numbers = each.between(value - reach, value + reach, _MOST + 1)
    if len(numbers) > _MOST:
        band = Rectangle((value - reach, middle - half), 2 * reach, 2 * half, facecolor="#D5D5CF",
                         edgecolor="none", gid=f"band {name}")  # fmt: skip
        axes.add_artist(band)
        axes.text(value - 0.96 * reach, middle, "too many to draw", fontsize=8, color=MUTED,
                  va="center")  # fmt: skip
    else:
        axes.hlines(middle, value - reach, value + reach, color=MUTED, linewidth=0.6)
        axes.vlines(numbers, middle - half, middle + half, color=INK, linewidth=1.1,
                    gid=f"numbers {name}")  # fmt: skip
    rounded = each.rounded(value)
    if abs(rounded - value) <= reach:
        axes.plot([value, rounded], [middle] * 2, color=_ROUNDED, linewidth=2, zorder=4)
        axes.plot([rounded], [middle], "o", markersize=7, color=_ROUNDED, zorder=5,
                  gid=f"rounded {name}")  # fmt: skip
    bits = f"1 + {each.exponent_bits} + {each.mantissa_bits} bits"
    y = _BOTTOM + axes.get_ylim()[0] - middle
    _beside(figure, 0.15, y, (name, bits))
    _beside(figure, _WIDTH - _RIGHT + 0.2, y, _words(each, value))


def _beside(figure: Figure, x: float, y: float, words: Sequence[str]) -> None:
    """Two lines at a place in inches."""
    width, height = figure.get_size_inches()
    for line, colour, shift in zip(words, (INK, MUTED), (0.09, -0.09), strict=True):
        text = figure.text(x / width, (y + shift) / height, line, fontsize=8.5, color=colour)
        text.set(ha="left", va="center")
