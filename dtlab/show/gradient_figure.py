"""Draws a histogram of gradients over the range of a format: what it keeps, and what it loses.

    share │      ▒▒▒▓▓██████▒          ▒ becomes 0    ▓ subnormal: fewer bits
          │   ▒▒▒▒▒▒▓▓████████         █ normal
          └────────────────────────
    fp16            ──━━━━━━━━━━━      ── subnormal, ━━ normal
    bf16   ━━━━━━━━━━━━━━━━━━━━━━━━►
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from dtlab.predict.formats import BINARY_FORMATS, BinaryFormat
from dtlab.show.charts import Numbers
from dtlab.show.style import COLOURS, INK, MUTED, PALETTE, Figure, edge

__all__ = ["gradient_ranges"]

_WIDTH, _HEIGHT = 9.4, 4.2
_LEFT, _RIGHT, _TOP, _LOW = 0.8, 2.5, 0.8, 1.45
_ROW: Final = 0.26
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
    """How large gradients are, times `scale`, and what the format `name` makes of each of them.

    `gradients` are tensors or arrays of any shapes, in fp32: what fp16 has lost cannot be seen any
    more. Bars are one power of two wide. Below are the ranges of the formats `beside`.
    Raises: ValueError for an unknown format, a scale that is not above 0, or no finite gradient
    that is not 0.
    """
    for one in (name, *beside):
        if one not in BINARY_FORMATS:
            raise ValueError(f"gradient_ranges: formats are {', '.join(BINARY_FORMATS)}; "
                             f"not {one}.")  # fmt: skip
    if not 0 < scale < math.inf:
        raise ValueError(f"gradient_ranges: a scale above 0, not {scale}.")
    sizes = np.concatenate([np.zeros(0), *map(_sizes, gradients)])
    zeros = int((sizes == 0).sum())
    sizes = sizes[(sizes > 0) & np.isfinite(sizes)] * scale
    if not sizes.size:
        raise ValueError("gradient_ranges: nothing to draw. Give it gradients that are not all 0.")
    kinds = _kinds(sizes, BINARY_FORMATS[name])
    shares = {kind: float(chosen.mean()) for kind, chosen in kinds.items()}
    heading = title or f"Gradients times {_power(scale)}, in {name}"
    note = f"{sizes.size:,} gradients" + (f", and {zeros:,} that are 0 already" if zeros else "")
    figure = Figure(_WIDTH, _HEIGHT)
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
    """Absolute values; a tensor is brought to fp32 first, since NumPy knows no bf16."""
    if hasattr(gradient, "detach"):
        gradient = gradient.detach().float().cpu().numpy()
    return np.abs(np.asarray(gradient, dtype=np.float64)).ravel()


def _power(scale: float) -> str:
    power = math.log2(scale)
    return f"2^{power:.0f}" if power.is_integer() else f"{scale:g}"


def _kinds(sizes: Numbers, each: BinaryFormat) -> dict[str, Any]:
    """Which of the sizes are of which kind; a half of the smallest number goes to 0."""
    gone = sizes <= each.smallest / 2
    over = sizes >= each.largest + each.spacing(each.largest) / 2
    normal = (sizes >= 2.0**each.lowest) & ~over
    found = (gone, ~(gone | over | normal), normal, over)
    return dict(zip(_LOOKS, found, strict=True))


def _ends(sizes: Numbers, each: BinaryFormat) -> tuple[int, int]:
    """Powers of two at the ends of the axis: all gradients, and the format where it is near."""
    low, high = math.floor(math.log2(sizes.min())), math.floor(math.log2(sizes.max())) + 1
    smallest = each.lowest - each.mantissa_bits
    return min(low, max(smallest, low - 30)) - 1, max(high, min(each.highest + 1, high + 30)) + 2


def _draw_bars(
    figure: Figure, sizes: Numbers, kinds: Mapping[str, Any], ends: tuple[int, int]
) -> None:
    axes = figure.sheet(_LEFT, _LOW, _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _LOW)
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
    """About eight powers of two below the axis."""
    step = max(1, 2 ** round(math.log2((ends[1] - ends[0]) / 8)))
    ticks = [power for power in range(ends[0], ends[1] + 1) if power % step == 0]
    axes.set_xticks(ticks, [f"2^{power}" for power in ticks])


def _draw_ranges(figure: Figure, names: Sequence[str], ends: tuple[int, int]) -> None:
    """A line for each format, thin where its numbers are subnormal, with an arrow past an end."""
    height = _ROW * len(names)
    axes = figure.sheet(_LEFT, _LOW - 0.42 - height, _WIDTH - _LEFT - _RIGHT, height)
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
        place = (_LOW - 0.42 - (row + 0.5) * _ROW) / _HEIGHT
        figure.text(0.15 / _WIDTH, place, name, fontsize=8.5, color=INK, va="center")
    words = "range of each format; thin: subnormal, with fewer and fewer bits"
    figure.text(_LEFT / _WIDTH, (_LOW - 0.42 - height - 0.15) / _HEIGHT, words, fontsize=8,
                color=MUTED, va="center")  # fmt: skip


def _draw_key(figure: Figure, shares: Mapping[str, float]) -> None:
    """A sample of each kind, and how many are of it."""
    axes = figure.sheet(_WIDTH - _RIGHT, _LOW, _RIGHT, _HEIGHT - _TOP - _LOW)
    axes.set_xlim(0, _RIGHT)
    top = _HEIGHT - _TOP - _LOW
    axes.set_ylim(0, top)
    for row, (kind, share) in enumerate(shares.items()):
        (fill, hatch), y = _LOOKS[kind], top - 0.15 - 0.3 * row
        axes.add_artist(Rectangle((0.25, y - 0.08), 0.3, 0.16, facecolor=fill, hatch=hatch,
                                  edgecolor=edge(fill), linewidth=0.5))  # fmt: skip
        axes.text(0.68, y, f"{kind}: {100 * share:.3g} %", fontsize=8.5, color=INK, va="center")
