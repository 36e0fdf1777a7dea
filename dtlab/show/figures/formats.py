"""Figures of number formats: rounding, the range of gradients, and loss scales.

fp16  │ │ │ │ │ ●◄┼ │ │ │ │ │     spacing 2^-10
bf16  │       ●◄──┼       │       spacing 2^-7
                value
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dtlab.predict.formats import BINARY_FORMATS, BinaryFormat
from dtlab.show.drawing.charts import Axis, Chart, Numbers
from dtlab.show.drawing.style import COLOURS, INK, MUTED, PALETTE, Figure, edge
from dtlab.show.words import number_words

__all__ = ["bit_layouts", "gradient_ranges", "loss_scale_chart", "number_line"]

_WIDTH, _ROW = 9.4, 0.62  # inches
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.5, 2.7, 1.0, 0.5
_STEPS: Final = 5  # shown on either side of the value, in units of the widest spacing
_MOST: Final = 130  # numbers in a row that a reader can tell apart
_VALUE: Final = PALETTE[1]
_ROUNDED: Final = PALETTE[0]


def bit_layouts(
    formats: Sequence[str] = ("fp32", "tf32", "fp16", "bf16", "fp8 e4m3", "fp8 e5m2"),
    *,
    title: str | None = None,
) -> Figure:
    """Draw the bits of each format: sign, exponent and mantissa. tf32 is stored in 32 bits.

    The smallest and the largest number are written beside the bits. fp8 e4m3 is the variant of
    GPUs, whose largest number is 448 (Micikevicius et al. 2022, "FP8 Formats for Deep Learning").
    Raises: KeyError for an unknown format.
    """
    figure = Figure(9.4, 0.75 + 0.36 * len(formats))
    figure.heading(title or "What 32, 16 and 8 bits are used for",
                   "sign, exponent (how far), mantissa (how finely)")  # fmt: skip
    axes = figure.sheet(0, 0, *figure.get_size_inches())
    axes.set(xlim=(0, 9.4), ylim=(0, figure.get_size_inches()[1]))
    colours = (INK, PALETTE[0], PALETTE[1])
    told = []
    for row, name in enumerate(formats):
        bits = (1, *_layout(name))
        y = 0.12 + 0.36 * (len(formats) - 1 - row)
        axes.text(0.15, y + 0.11, name, fontsize=9, color=INK, va="center")
        spread = [part for part, count in enumerate(bits) for _ in range(count)]
        for place, part in enumerate(spread):
            bit = Rectangle((1.05 + 0.18 * place, y), 0.15, 0.22, facecolor=colours[part])
            axes.add_patch(bit)
        reach = " to ".join(map(number_words, _reach(name)))
        axes.text(7.0, y + 0.11, reach, fontsize=8, color=MUTED, va="center")
        told.append(f"{name}: exponent {bits[1]}, mantissa {bits[2]} bits, from {reach}")
    figure.alt_text = f"Bits of number formats. {'; '.join(told)}."
    return figure


def _layout(name: str) -> tuple[int, int]:
    """The bits of the exponent and of the mantissa."""
    if name == "fp8 e4m3":  # has no infinity, so it is no BinaryFormat
        return 4, 3
    each = BINARY_FORMATS[name]
    return each.exponent_bits, each.mantissa_bits


def _reach(name: str) -> tuple[float, float]:
    """The smallest number above 0, and the largest."""
    each = BINARY_FORMATS.get(name)
    return (2.0**-9, 448.0) if each is None else (each.smallest, each.largest)


def number_line(
    value: float = 1.003,
    formats: Sequence[str] = ("fp32", "fp16", "bf16"),
    *,
    title: str | None = None,
) -> Figure:
    """Draw the numbers of each format near `value`, and the number to which it is rounded.

    The widest spacing among the formats determines the range. A format without a number in that
    range overflows or underflows. For names of formats see `BINARY_FORMATS`.
    Raises: ValueError for an unknown format, no format, or a value that is not finite.
    """
    unknown = [name for name in formats if name not in BINARY_FORMATS]
    if unknown or not formats:
        raise ValueError(f"number_line: choose formats from {', '.join(BINARY_FORMATS)}; "
                         f"not {', '.join(unknown) or 'none'}.")  # fmt: skip
    if not math.isfinite(value):
        raise ValueError(f"number_line: give a finite value, not {value}.")
    chosen = {name: BINARY_FORMATS[name] for name in formats}
    reach = _STEPS * max(_spacing(each, value) for each in chosen.values())
    heading = title or f"What becomes of {number_words(value, 9)}"
    note = "numbers of each format; the value is rounded to the nearest one"
    figure = Figure(_WIDTH, _TOP + _ROW * len(chosen) + _BOTTOM)
    figure.heading(heading, note)
    axes = _lines(figure, value, reach, len(chosen))
    for row, (name, each) in enumerate(chosen.items()):
        _draw_row(figure, axes, row, name, each, value, reach)
    facts = [f"{name}: {' '.join(_words(each, value))}" for name, each in chosen.items()]
    figure.alt_text = f"{heading} ({note}). {'; '.join(facts)}."
    return figure


def _spacing(each: BinaryFormat, value: float) -> float:
    """Return the spacing at the value; 0 if it is out of the format's range."""
    inside = each.smallest / 2 < abs(value) <= each.largest or value == 0
    return each.spacing(value) if inside else 0.0


def _words(each: BinaryFormat, value: float) -> tuple[str, str]:
    """Say to which number the value is rounded, and how far apart numbers are there."""
    rounded = each.rounded(value)
    if math.isinf(rounded):
        return f"becomes {rounded:g}", f"above the largest, {number_words(each.largest)}"
    apart = f"spacing 2^{math.log2(each.spacing(value)):.0f}"
    if rounded == 0 != value:
        return "becomes 0", f"smallest is 2^{math.log2(each.smallest):.0f}"
    result = "is exact" if rounded == value else f"becomes {number_words(rounded, 9)}"
    return result, apart


def _lines(figure: Figure, value: float, reach: float, rows: int) -> Axes:
    """Create the common axes of all rows, with the value as a line across them."""
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
    """Draw a tick for each number, a dot on the rounded value, and text on both sides."""
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
    """Write two lines of text at a position in inches."""
    width, height = figure.get_size_inches()
    for line, colour, shift in zip(words, (INK, MUTED), (0.09, -0.09), strict=True):
        text = figure.text(x / width, (y + shift) / height, line, fontsize=8.5, color=colour)
        text.set(ha="left", va="center")


# A histogram of gradients over the range of a format: which it can represent, which it loses -----
#
#     share │      ▒▒▒▓▓██████▒          ▒ becomes 0    ▓ subnormal: fewer bits
#           │   ▒▒▒▒▒▒▓▓████████         █ normal
#           └────────────────────────
#     fp16            ──━━━━━━━━━━━      ── subnormal, ━━ normal
#     bf16   ━━━━━━━━━━━━━━━━━━━━━━━━►

_GRADIENT_WIDTH, _HEIGHT = 9.4, 4.2
_GRADIENT_LEFT, _GRADIENT_RIGHT, _GRADIENT_TOP, _LOW = 0.8, 2.5, 0.8, 1.45
_GRADIENT_ROW: Final = 0.26
_LOOKS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "becomes 0": (COLOURS["idle"], "//////"),
        "subnormal": (PALETTE[7], "...."),
        "normal": (PALETTE[0], ""),
        "overflows": (PALETTE[1], "xxxx"),
    }
)  # colour, hatch


def gradient_ranges(
    gradients: Iterable[Any],
    scale: float = 1.0,
    name: str = "fp16",
    *,
    beside: Sequence[str] = ("fp16", "bf16"),
    title: str | None = None,
) -> Figure:
    """Draw a histogram of gradients times `scale`, and what the format `name` makes of them.

    `gradients` are fp32 tensors or arrays of any shapes; in fp16 the small ones would already be
    lost. Bars are one power of two wide. Below are the ranges of the formats `beside`.
    Raises: ValueError for an unknown format, a scale that is not above 0, or if no gradient is
    finite and not 0.
    """
    for required in (name, *beside):
        if required not in BINARY_FORMATS:
            raise ValueError(f"gradient_ranges: choose formats from {', '.join(BINARY_FORMATS)}; "
                             f"not {required}.")  # fmt: skip
    if not 0 < scale < math.inf:
        raise ValueError(f"gradient_ranges: give a scale above 0, not {scale}.")
    sizes = np.concatenate([np.zeros(0), *map(_sizes, gradients)])
    zeros = int((sizes == 0).sum())
    sizes = sizes[(sizes > 0) & np.isfinite(sizes)] * scale
    if not sizes.size:
        raise ValueError("gradient_ranges: nothing to draw. Give it gradients that are not all 0.")
    kinds = _kinds(sizes, BINARY_FORMATS[name])
    shares = {kind: float(chosen.mean()) for kind, chosen in kinds.items()}
    heading = title or f"Gradients times {_power(scale)}, in {name}"
    note = f"{sizes.size:,} gradients" + (f", and {zeros:,} that are 0 already" if zeros else "")
    figure = Figure(_GRADIENT_WIDTH, _HEIGHT)
    figure.heading(heading, note)
    ends = _ends(sizes, BINARY_FORMATS[name])
    _draw_bars(figure, sizes, kinds, ends)
    _draw_ranges(figure, beside, ends)
    _draw_key(figure, shares)
    facts = ", ".join(f"{100 * share:.3g} % {kind}" for kind, share in shares.items())
    low, high = (math.log2(each) for each in (sizes.min(), sizes.max()))
    reach = f"They go from 2^{low:.1f} to 2^{high:.1f}."
    figure.alt_text = f"{heading} ({note}): {facts}. {reach}"
    return figure


def _sizes(gradient: Any) -> Numbers:
    """Return absolute values; a tensor is converted to fp32 first, since NumPy has no bf16."""
    if hasattr(gradient, "detach"):
        gradient = gradient.detach().float().cpu().numpy()
    return np.abs(np.asarray(gradient, dtype=np.float64)).ravel()


def _power(scale: float) -> str:
    power = math.log2(scale)
    return f"2^{power:.0f}" if power.is_integer() else number_words(scale)


def _kinds(sizes: Numbers, each: BinaryFormat) -> dict[str, Any]:
    """Return a mask of the sizes for each kind; half of the smallest number rounds to 0."""
    gone = sizes <= each.smallest / 2
    over = sizes >= each.largest + each.spacing(each.largest) / 2
    normal = (sizes >= 2.0**each.lowest) & ~over
    masks = (gone, ~(gone | over | normal), normal, over)
    return dict(zip(_LOOKS, masks, strict=True))


def _ends(sizes: Numbers, each: BinaryFormat) -> tuple[int, int]:
    """Return the axis ends as powers of two: all gradients, and nearby limits of the format."""
    low, high = math.floor(math.log2(sizes.min())), math.floor(math.log2(sizes.max())) + 1
    smallest = each.lowest - each.mantissa_bits
    return min(low, max(smallest, low - 30)) - 1, max(high, min(each.highest + 1, high + 30)) + 2


def _draw_bars(
    figure: Figure, sizes: Numbers, kinds: Mapping[str, Any], ends: tuple[int, int]
) -> None:
    axes = figure.sheet(
        _GRADIENT_LEFT,
        _LOW,
        _GRADIENT_WIDTH - _GRADIENT_LEFT - _GRADIENT_RIGHT,
        _HEIGHT - _GRADIENT_TOP - _LOW,
    )
    axes.set_axis_on()
    axes.set_xlim(*ends)
    edges, below = np.arange(ends[0], ends[1] + 1), np.zeros(ends[1] - ends[0])
    for kind, chosen in kinds.items():
        counts, _ = np.histogram(np.log2(sizes[chosen]), bins=edges)
        heights, (fill, hatch) = 100 * counts / sizes.size, _LOOKS[kind]
        for left, low, height in zip(edges, below, heights, strict=False):
            if height:
                bar = Rectangle((left + 0.05, low), 0.9, height, facecolor=fill, hatch=hatch,
                                edgecolor=edge(fill), linewidth=0.5, gid=kind)  # fmt: skip
                axes.add_artist(bar)
        below = below + heights
    axes.set_ylim(0, 1.08 * below.max())
    axes.set_ylabel("% of gradients", fontsize=8, color=MUTED)
    axes.tick_params(colors=MUTED, labelsize=8, length=3)
    _mark_powers(axes, ends)
    for side, spine in axes.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=MUTED)


def _mark_powers(axes: Axes, ends: tuple[int, int]) -> None:
    """Label about eight powers of two below the axis."""
    step = max(1, 2 ** round(math.log2((ends[1] - ends[0]) / 8)))
    ticks = [power for power in range(ends[0], ends[1] + 1) if power % step == 0]
    axes.set_xticks(ticks, [f"2^{power}" for power in ticks])


def _draw_ranges(figure: Figure, names: Sequence[str], ends: tuple[int, int]) -> None:
    """Draw a line for each format, thin for subnormal numbers, with an arrow beyond an end."""
    height = _GRADIENT_ROW * len(names)
    axes = figure.sheet(
        _GRADIENT_LEFT,
        _LOW - 0.42 - height,
        _GRADIENT_WIDTH - _GRADIENT_LEFT - _GRADIENT_RIGHT,
        height,
    )
    axes.set_xlim(*ends)
    axes.set_ylim(len(names), 0)
    for row, name in enumerate(names):
        each, y = BINARY_FORMATS[name], row + 0.5
        smallest, end = each.lowest - each.mantissa_bits, each.highest + 1
        axes.plot([smallest, each.lowest], [y, y], color=MUTED, linewidth=1.5, gid=f"sub {name}")
        axes.plot([each.lowest, end], [y, y], color=INK, linewidth=4, gid=f"range {name}",
                  solid_capstyle="butt")  # fmt: skip
        for at, mark, beyond in (
            (ends[0], "<", smallest < ends[0]),
            (ends[1], ">", end > ends[1]),
        ):
            if beyond:
                axes.plot([at], [y], mark, markersize=7, color=INK, clip_on=False)
        place = (_LOW - 0.42 - (row + 0.5) * _GRADIENT_ROW) / _HEIGHT
        figure.text(0.15 / _GRADIENT_WIDTH, place, name, fontsize=8.5, color=INK, va="center")
    words = "range of each format; thin: subnormal, with fewer and fewer bits"
    x, y = _GRADIENT_LEFT / _GRADIENT_WIDTH, (_LOW - 0.42 - height - 0.15) / _HEIGHT
    figure.text(x, y, words, fontsize=8, color=MUTED, va="center")


def _draw_key(figure: Figure, shares: Mapping[str, float]) -> None:
    """Draw a sample of each kind with its share of the gradients."""
    axes = figure.sheet(
        _GRADIENT_WIDTH - _GRADIENT_RIGHT, _LOW, _GRADIENT_RIGHT, _HEIGHT - _GRADIENT_TOP - _LOW
    )
    axes.set_xlim(0, _GRADIENT_RIGHT)
    top = _HEIGHT - _GRADIENT_TOP - _LOW
    axes.set_ylim(0, top)
    for row, (kind, share) in enumerate(shares.items()):
        (fill, hatch), y = _LOOKS[kind], top - 0.15 - 0.3 * row
        axes.add_artist(Rectangle((0.25, y - 0.08), 0.3, 0.16, facecolor=fill, hatch=hatch,
                                  edgecolor=edge(fill), linewidth=0.5))  # fmt: skip
        axes.text(0.68, y, f"{kind}: {100 * share:.3g} %", fontsize=8.5, color=INK, va="center")


# The loss scale over the steps of a run, and the skipped steps -----------------------------------

_NAME: Final = "loss scale"
_MOST_TICKS: Final = 8


def loss_scale_chart(
    scales: Sequence[float],
    skipped: Sequence[bool],
    *,
    title: str = "The scale of the loss, step by step",
    note: str = "",
) -> Figure:
    """Plot the loss scale of each step, with a cross at each step whose gradients overflowed.

    `skipped` says for each step whether the optimizer skipped it. `note` gives the source.
    Raises: ValueError for no step, for scales that are not above 0, or if the two lengths differ.
    """
    if not len(scales) or len(scales) != len(skipped):
        raise ValueError(
            "loss_scale_chart: give a scale and a bool for each of one or more steps, not "
            f"{len(scales)} scales and {len(skipped)} bools."
        )
    wrong = [scale for scale in scales if not 0 < scale < math.inf]
    if wrong:
        raise ValueError(f"loss_scale_chart: scales must be above 0, not {wrong[0]}.")
    steps = np.arange(1, len(scales) + 1)
    missed = int(np.count_nonzero(skipped))
    crosses = f"a cross: overflow, the step is skipped ({missed} of {len(scales)})"
    below = f"{note}; {crosses}" if note else crosses
    across = Axis("optimizer step", (0.5, len(scales) + 0.5))
    chart = Chart.below(title, below, [_NAME], across, _upwards(scales))
    stairs = np.repeat(np.append(steps - 0.5, len(scales) + 0.5), 2)[1:-1]
    chart.draw_curve(_NAME, stairs, np.repeat(np.asarray(scales, dtype=float), 2), "predicted")
    for step in steps[np.asarray(skipped, dtype=bool)]:
        chart.axes.plot([step], [scales[step - 1]], "X", markersize=9, color=PALETTE[1],
                        markeredgecolor="white", zorder=6, gid="skipped")  # fmt: skip
    last = f"{_loss_power(scales[0])} in step 1\n{_loss_power(scales[-1])} in step {len(scales)}"
    chart.draw_key({_NAME: last})
    places = ", ".join(str(step) for step in steps[np.asarray(skipped, dtype=bool)][:12])
    skips = f"Skipped: {places}{', ...' if missed > 12 else ''}."
    which = skips if missed else "No step is skipped."
    chart.figure.alt_text = f"{title} ({below}). {last.replace(chr(10), ', ')}. {which}"
    return chart.figure


def _upwards(scales: Sequence[float]) -> Axis:
    """Return a y axis with powers of two, a few of them labelled."""
    low, high = math.floor(math.log2(min(scales))), math.ceil(math.log2(max(scales)))
    step = max(1, math.ceil((high - low) / _MOST_TICKS))
    ticks = [2.0**power for power in range(low, high + 1, step)]
    return Axis("scale", (2.0**low / 1.5, 2.0**high * 1.5), True, _loss_power, ticks)


def _loss_power(scale: float) -> str:
    power = math.log2(scale)
    return f"2^{power:.0f}" if power.is_integer() else number_words(scale)
