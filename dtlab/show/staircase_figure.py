"""Draws the bytes that a rank holds over the moments of a step, one panel for each stage of ZeRO.

    stage 0  ┌──┐      stage 1            stage 2            stage 3
          ┌──┘  └─        ┌──┐               ┌┐                ┌┐
    ──────┘            ───┘  └─           ───┘└──           ───┘└──
     F   B   S          F   B   S          F   B   S          F   B   S

The numbers are measured: this file adds them up and draws, and knows no formula.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dtlab.show.charts import BAND
from dtlab.show.memory_figure import PIECES
from dtlab.show.style import INK, MUTED, Figure, centred, edge
from dtlab.show.words import byte_words, list_words

__all__ = ["staircase"]

Held = Sequence[Mapping[str, float]]  # at each moment: the bytes of each piece

_WIDTH, _HEIGHT = 9.4, 3.7
_LEFT, _RIGHT, _GAP, _TOP, _BOTTOM = 0.85, 0.15, 0.14, 1.0, 0.72
_MOST: Final = 5  # panels
_OTHER: Final = ("#B9C0C2", "xxxx")


def staircase(
    held: Mapping[str, Held],
    moments: Sequence[str],
    *,
    levels: Mapping[str, float] | None = None,
    title: str = "What a rank holds, moment by moment",
    note: str = "",
) -> Figure:
    """A panel for each name, all on one scale: at every moment its pieces, stacked, in bytes.

    `moments` are names; the first word of each says which phase it is in, and neighbours of a
    phase have one letter under them: "forward 0", "forward 1", "backward 1", ... `levels` are
    predicted bytes, a dashed line in the panel of that name.
    Raises: ValueError for no panel or too many, or where a panel has not a value for each moment.
    """
    _check(held, moments)
    phases = [(word, len(list(run))) for word, run in itertools.groupby(map(_phase, moments))]
    words = list_words([f"{each[0].upper()} {each}" for each in dict.fromkeys(
        word for word, _ in phases)])  # fmt: skip
    below = f"{note}; {words}" if note else words
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(title, below)
    totals = {name: [sum(each.values()) for each in values] for name, values in held.items()}
    top = 1.08 * max(itertools.chain([1], (levels or {}).values(), *totals.values()))
    wide = (_WIDTH - _LEFT - _RIGHT - _GAP * (len(held) - 1)) / len(held)
    for place, (name, values) in enumerate(held.items()):
        left = _LEFT + place * (wide + _GAP)
        axes = figure.sheet(left, _BOTTOM, wide, _HEIGHT - _TOP - _BOTTOM)
        _set_up(axes, len(moments), top, is_first=place == 0)
        _draw_phases(axes, phases)
        _draw_stairs(axes, name, values, totals[name])
        axes.set_title(f"{name}: at most {byte_words(max(totals[name]))}", fontsize=8.5, color=INK)
        if levels and name in levels:
            axes.axhline(levels[name], color=INK, linewidth=1.2, linestyle=(0, (4, 2)),
                         gid=f"level {name}")  # fmt: skip
    _draw_key(figure, _pieces(held), bool(levels))
    figure.alt_text = _alt_text(title, below, held, moments, levels or {})
    return figure


def _check(held: Mapping[str, Held], moments: Sequence[str]) -> None:
    if not 1 <= len(held) <= _MOST or not moments:
        raise ValueError(f"staircase: 1 to {_MOST} panels and a moment at least, "
                         f"not {len(held)} and {len(moments)}.")  # fmt: skip
    for name, values in held.items():
        if len(values) != len(moments):
            raise ValueError(f"staircase: {name!r} has {len(values)} values for {len(moments)} "
                             "moments; it needs one for each.")  # fmt: skip


def _phase(moment: str) -> str:
    return moment.split()[0]


def _pieces(held: Mapping[str, Held]) -> list[str]:
    """The names of all pieces; those that have colours first, in their order."""
    found = dict.fromkeys(name for values in held.values() for each in values for name in each)
    return [name for name in PIECES if name in found] + [n for n in found if n not in PIECES]


def _set_up(axes: Axes, moments: int, top: float, *, is_first: bool) -> None:
    """Bytes upwards with ticks at the first panel; moments across without any."""
    axes.set_axis_on()
    axes.set(xlim=(0, moments), ylim=(0, top))
    axes.xaxis.set_major_locator(FixedLocator([]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: byte_words(value)))
    axes.tick_params(colors=MUTED, labelsize=8, length=3 if is_first else 0, labelleft=is_first)
    axes.grid(axis="y", color="#E2E2DC", linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=MUTED)


def _draw_phases(axes: Axes, phases: Sequence[tuple[str, int]]) -> None:
    """Every second kind of phase shaded, and the letter of each below."""
    begin, kinds = 0, list(dict.fromkeys(word for word, _ in phases))
    for word, length in phases:
        if kinds.index(word) % 2:
            axes.axvspan(begin, begin + length, color=BAND, linewidth=0, zorder=0.4)
        label = axes.annotate(word[0].upper(), (begin + length / 2, 0), xytext=(0, -9),
                              xycoords="data", textcoords="offset points")  # fmt: skip
        label.set(gid=f"phase {word}", **centred(8, MUTED))
        begin += length


def _draw_stairs(axes: Axes, name: str, values: Held, totals: Sequence[float]) -> None:
    """The pieces one above the other, and a line round all of them."""
    edges, low = np.arange(len(values) + 1), np.zeros(len(values) + 1)
    for piece in _pieces({name: values}):
        sizes = [each.get(piece, 0) for each in values]
        high = low + np.array([*sizes, sizes[-1]], dtype=float)
        fill, hatch = PIECES.get(piece, _OTHER)
        axes.fill_between(edges, low, high, step="post", facecolor=fill, edgecolor=edge(fill),
                          hatch=hatch, linewidth=0, zorder=2, gid=f"{piece} {name}")  # fmt: skip
        low = high
    axes.step(edges, [*totals, totals[-1]], where="post", color=INK, linewidth=1.1, zorder=3,
              gid=f"total {name}")  # fmt: skip


def _draw_key(figure: Figure, pieces: Sequence[str], has_levels: bool) -> None:
    axes = figure.sheet(0, 0, _WIDTH, 0.4)
    axes.set(xlim=(0, _WIDTH), ylim=(0, 0.4))
    x = _LEFT
    for name in pieces:
        fill, hatch = PIECES.get(name, _OTHER)
        axes.add_artist(Rectangle((x, 0.13), 0.28, 0.14, facecolor=fill, hatch=hatch,
                                  edgecolor=edge(fill), linewidth=0.5))  # fmt: skip
        axes.text(x + 0.36, 0.2, name, fontsize=8.5, color=INK, va="center")
        x += 0.62 + 0.085 * len(name)
    if has_levels:
        axes.plot([x, x + 0.28], [0.2, 0.2], color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.text(x + 0.36, 0.2, "predicted", fontsize=8.5, color=INK, va="center")


def _alt_text(
    title: str, below: str, held: Mapping[str, Held], moments: Sequence[str],
    levels: Mapping[str, float],
) -> str:  # fmt: skip
    """Of each panel: where it is highest and of what, and where it ends."""
    facts = []
    for name, values in held.items():
        totals = [sum(each.values()) for each in values]
        peak = totals.index(max(totals))
        parts = ", ".join(f"{piece} {byte_words(size)}" for piece, size in values[peak].items())
        words = f"{name}: at most {byte_words(totals[peak])}, in {moments[peak]} ({parts})"
        words += f", at the end {byte_words(totals[-1])}"
        if name in levels:
            words += f", predicted {byte_words(levels[name])}"
        facts.append(words)
    return f"{title} ({below}). {'; '.join(facts)}."
