"""Draws what a transformer layer keeps for its backward pass, piece by piece, as switches stand.

Bytes by V. A. Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models", section 4.1: s b h (34 + 5 a s / h) in 16 bits, with one byte for an element of a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from dtlab.predict.activations import Recompute, activation_pieces
from dtlab.show.style import INK, MUTED, PALETTE, Figure, centred, edge
from dtlab.show.words import byte_words

__all__ = ["activation_bars"]

_WIDTH, _LEFT, _RIGHT = 9.4, 1.35, 0.3
_TOP, _ROW, _BAR, _KEY = 0.8, 0.52, 0.34, 0.23
_CHARACTER: Final = 0.075
_COLOURS: Final = (*PALETTE[:5], PALETTE[6])  # no black: it would hide its hatch and its words
_HATCHES: Final = ("", "....", "", "\\\\\\\\", "", "////")


def activation_bars(
    sequence_length: int = 1024,
    microbatch_size: int = 4,
    hidden_size: int = 2048,
    num_heads: int = 16,
    dropout: bool = True,
    fused_attention: bool = False,
    recompute: Recompute = "none",
    *,
    measured: float | None = None,
    title: str | None = None,
) -> Figure:
    """Bytes of one layer by the formula, as the switches stand, beside all switches off.

    `measured` are bytes that autograd really kept, for one more bar.
    Raises: ValueError as `activation_pieces`, and for `measured` below 0.
    """
    if measured is not None and measured < 0:
        raise ValueError(f"activation_bars: measured bytes are 0 or more, not {measured}.")
    sizes = sequence_length, microbatch_size, hidden_size, num_heads
    plain = activation_pieces(*sizes)
    now = activation_pieces(
        *sizes, dropout=dropout, fused_attention=fused_attention, recompute=recompute
    )
    total, before = sum(now.values()), sum(plain.values())
    heading = title or f"One layer keeps {byte_words(total)} for its backward pass"
    note = f"formula: {_switches(dropout, fused_attention, recompute)}"
    note += f"; {100 * total / before:.3g} % of what it is with dropout and nothing recomputed"
    bars: dict[str, Mapping[str, float]] = {"as set": now, "all kept": plain}
    if measured is not None:
        bars = {"as set": now, "measured": {"measured": measured}, "all kept": plain}
    names = list(plain) if recompute != "full" else [*plain, *now]
    height = _TOP + _ROW * len(bars) + 0.25 + _KEY * ((len(names) + 1) // 2) + 0.1
    figure = Figure(_WIDTH, height)
    figure.heading(heading, note)
    _draw_bars(figure, bars, names, max(sum(each.values()) for each in bars.values()))
    _draw_key(figure, names, now)
    facts = [f"{name} {byte_words(size)}" for name, size in now.items()]
    figure.alt_text = f"{heading} ({note}). {', '.join(facts)}; all kept {byte_words(before)}."
    if measured is not None:
        share = f"{measured / total:.3g} times the formula"
        figure.alt_text += f" Measured {byte_words(measured)}, {share}."
    return figure


def _switches(dropout: bool, fused_attention: bool, recompute: str) -> str:
    """How the switches stand, in words."""
    words = ["dropout" if dropout else "no dropout"]
    words.append("fused attention" if fused_attention else "attention matrices kept")
    if recompute == "full":
        return "full recomputation, only inputs are kept"
    return ", ".join(words) + (", selective recomputation" if recompute == "selective" else "")


def _look(names: list[str], name: str) -> tuple[str, str]:
    """Colour and hatch of a piece."""
    if name not in names or names.index(name) >= len(_HATCHES):
        return "#B9C0C2", ""
    place = names.index(name)
    return _COLOURS[place], _HATCHES[place]


def _draw_bars(
    figure: Figure, bars: Mapping[str, Mapping[str, float]], names: list[str], most: float
) -> None:
    """One bar below the other, on one scale of bytes, with the sum at its end."""
    height = float(figure.get_size_inches()[1])
    room = _WIDTH - _LEFT - _RIGHT - 0.95  # inches for the longest bar, and its sum after it
    axes = figure.sheet(0, 0, _WIDTH, height)
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, height)
    for row, (words, pieces) in enumerate(bars.items()):
        low, left = height - _TOP - row * _ROW - _BAR, _LEFT
        axes.text(0.15, low + _BAR / 2, words, fontsize=9, color=INK, va="center")
        for name, size in pieces.items():
            width = room * size / most if most else 0.0
            _draw_piece(axes, (left, low, width), name, _look(names, name), size)
            left += width
        whole = byte_words(sum(pieces.values()))
        axes.text(left + 0.08, low + _BAR / 2, whole, fontsize=8.5, color=INK, va="center")


def _draw_piece(
    axes: Axes, box: tuple[float, float, float], name: str, look: tuple[str, str], size: float
) -> None:
    """A piece of a bar, with its bytes on it where there is room."""
    (left, low, width), (fill, hatch) = box, look
    piece = Rectangle((left, low), width, _BAR, facecolor=fill, edgecolor=edge(fill), hatch=hatch,
                      linewidth=0.5, gid=name)  # fmt: skip
    axes.add_artist(piece)
    words = byte_words(size)
    if name != "measured" and len(words) * _CHARACTER + 0.1 < width:
        text = axes.text(left + width / 2, low + _BAR / 2, words, **centred(7.5, INK))
        text.set_bbox({"facecolor": "#FAFAF7", "edgecolor": "none", "pad": 1.2})


def _draw_key(figure: Figure, names: list[str], now: Mapping[str, int]) -> None:
    """A sample of each piece in two columns, with its bytes as the switches stand."""
    height = float(figure.get_size_inches()[1])
    axes = figure.sheet(0, 0, _WIDTH, height)
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, height)
    rows = (len(names) + 1) // 2
    for place, name in enumerate(names):
        column, row = divmod(place, rows)
        x, y = _LEFT + 3.9 * column, 0.1 + _KEY * (rows - row - 0.5)
        fill, hatch = _look(names, name)
        axes.add_artist(Rectangle((x, y - 0.07), 0.28, 0.14, facecolor=fill, hatch=hatch,
                                  edgecolor=edge(fill), linewidth=0.5))  # fmt: skip
        words = f"{name}: {byte_words(now[name])}" if name in now else f"{name}: not kept"
        colour = INK if name in now else MUTED
        axes.text(x + 0.38, y, words, fontsize=8.5, color=colour, va="center")
