"""Figures of memory: model states against a GPU's capacity, and bytes over a step.

stage 0   [parameters|gradients|optimizer state      |activations]  112 GB   does not fit
stage 3   [p|g|os|activations]           ┆                         22 GB   fits
                                         80 GB
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dtlab.predict.communication import check_stage
from dtlab.predict.hardware import Card
from dtlab.predict.memory import (
    PrecisionPolicy,
    model_states,
    precision_policy,
    smallest_world_size,
)
from dtlab.predict.units import check_bytes, counted, four_digits
from dtlab.show.drawing.charts import BAND
from dtlab.show.drawing.style import COLOURS, INK, MUTED, PALETTE, SHEET, Figure, centred, edge
from dtlab.show.words import byte_words, list_words, short_words

__all__ = [
    "PIECES", "count_words", "memory_bar", "memory_bars", "policy_words", "staircase",
    "zero_stages",
]  # fmt: skip

Pieces = Mapping[str, float]

PIECES: Final[Mapping[str, tuple[str, str]]] = {  # colour and hatch of each piece of memory
    "parameters": (PALETTE[0], ""),
    "gradients": (COLOURS["backward"], "////"),
    "optimizer state": (COLOURS["optimizer"], ""),
    "gathered block": (COLOURS["communication"], "...."),
    "activations": (COLOURS["forward"], "\\\\\\\\"),
}
_POLICIES: Final[Mapping[str, str]] = {  # of `predict.memory.POLICIES`
    "fp32": "all in fp32",
    "mixed": "mixed precision",
    "mixed_fp32_grads": "mixed with fp32 gradients",
    "mixed_fp32_accumulation": "mixed with fp32 accumulation",
    "half_only": "16 bits only",
}
_OTHER: Final = ("#B9C0C2", "xxxx")
_OVER: Final = PALETTE[4]  # darker colour of verdicts on bars that do not fit
_WIDTH, _VERDICT = 9.4, 2.35  # inches; the verdicts are on the right
_TOP, _ROW, _BAR, _KEY = 0.95, 0.46, 0.3, 0.36
_SUM: Final = 0.85  # inches for the sum after a bar
_CUT: Final = 3.0  # bars are cut off at this many budgets
_CHARACTER: Final = 0.075
_NAME: Final = 0.9  # inches for the names of bars, at least


def memory_bars(
    bars: Mapping[str, Pieces],
    budget: Card | float,
    *,
    title: str,
    note: str = "",
    verdicts: Mapping[str, str] | None = None,
    chosen: str | None = None,
) -> Figure:
    """Draw a bar for each name, stacked from pieces in bytes; a dashed line marks a full GPU.

    `budget` is a GPU, or bytes. Pieces in `PIECES` have fixed colours; other pieces are grey.
    `verdicts` replace the words "fits" and "does not fit" beside bars; `chosen` is in bold.
    Raises: ValueError for no bar, and for bytes below 0.
    """
    _check(bars)
    room, room_words = _budget(budget)
    totals = {name: sum(pieces.values()) for name, pieces in bars.items()}
    says = {name: "fits" if total <= room else "does not fit" for name, total in totals.items()}
    says |= verdicts or {}
    figure = Figure(_WIDTH, _TOP + _ROW * len(bars) + _KEY + 0.1)
    figure.heading(title, note)
    axes = figure.sheet(0, 0, _WIDTH, float(figure.get_size_inches()[1]))
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, float(figure.get_size_inches()[1]))
    left = 0.35 + max(_NAME, *(0.085 * len(name) for name in bars))
    longest = max(min(max(totals.values()), _CUT * room), 1.15 * room)
    scale = (_WIDTH - left - _VERDICT - _SUM) / longest
    _draw_budget(axes, left + scale * room, room_words, len(bars))
    for row, (name, pieces) in enumerate(bars.items()):
        low = float(figure.get_size_inches()[1]) - _TOP - row * _ROW - _BAR
        weight = "bold" if name == chosen else "normal"
        axes.text(0.15, low + _BAR / 2, name, fontsize=9, color=INK, va="center", weight=weight)
        _draw_bar(axes, pieces, (left, low), scale, scale * longest)
        axes.text(_WIDTH - _VERDICT, low + _BAR / 2, says[name], fontsize=8.5, weight=weight,
                  color=MUTED if totals[name] <= room else _OVER, va="center")  # fmt: skip
    _draw_key(axes, bars)
    if max(totals.values()) > longest * 1.001:
        y = float(axes.get_ylim()[1]) - _TOP + 0.16
        axes.text(left + scale * longest, y, "longer bars are cut off here »", fontsize=8,
                  color=MUTED, va="center", ha="right", gid="cut")  # fmt: skip
    figure.alt_text = _alt_text(title, note, bars, room_words, says)
    return figure


def memory_bar(
    num_params: float = 7e9,
    stage: int = 0,
    world_size: int = 8,
    policy: str | PrecisionPolicy = "mixed",
    *,
    budget: Card | float = 80e9,
    activation_bytes: float = 0,
    gathered_bytes: float = 0,
    title: str | None = None,
) -> Figure:
    """Draw model states and activations of a rank for ZeRO stages 0 to 3, against a GPU.

    `stage` is in bold. Each verdict says how many GPUs are enough. `gathered_bytes` is the block
    that only ZeRO stage 3 gathers.
    Raises: ValueError as `model_states` does, and for bytes below 0.
    """
    named, (room, room_words) = precision_policy(policy), _budget(budget)
    check_bytes("activation_bytes", activation_bytes)
    check_bytes("gathered_bytes", gathered_bytes)
    bars, verdicts = {}, {}
    for each in range(4):
        states = model_states(num_params, each, world_size, named)
        rest = {"activations": activation_bytes} if activation_bytes else {}
        if each == 3 and gathered_bytes:
            rest = {"gathered block": gathered_bytes} | rest
        pieces = {"parameters": states.parameters, "gradients": states.gradients,
                  "optimizer state": states.optimizer}  # fmt: skip
        bars[f"ZeRO stage {each}"] = pieces | rest
        fewest = smallest_world_size(
            num_params, each, room, named, activation_bytes=sum(rest.values())
        )
        fits = states.total + sum(rest.values()) <= room
        verdicts[f"ZeRO stage {each}"] = _verdict(fits, fewest)
    chosen = f"ZeRO stage {check_stage(stage)}"
    total = sum(bars[chosen].values())
    note = (
        f"{count_words(num_params)} parameters, {policy_words(named.name)}: "
        f"{named.total:g} bytes for each; {counted(world_size, 'rank')}; a GPU of {room_words}"
    )
    heading = title or f"{chosen}: {byte_words(total)} on each rank"
    return memory_bars(bars, budget, title=heading, note=note, verdicts=verdicts, chosen=chosen)


def _check(bars: Mapping[str, Pieces]) -> None:
    if not bars:
        raise ValueError("memory_bars: nothing to draw. Give it a bar with pieces in bytes.")
    for name, pieces in bars.items():
        for piece, size in pieces.items():
            check_bytes(f"{piece} of {name!r}", size)


def _budget(budget: Card | float) -> tuple[float, str]:
    """Return the bytes of a budget, as a number and in words."""
    if isinstance(budget, Card):
        return budget.memory, f"{byte_words(budget.memory)} ({budget.name})"
    if not check_bytes("budget", budget):
        raise ValueError("budget must be a number of bytes above 0, such as 80e9, not 0.")
    return budget, short_words(byte_words(budget))


def count_words(count: float) -> str:
    """Format a count: `7e9` as `7 billion`."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= size:
            return f"{four_digits(count / size)} {word}"
    return f"{count:g}"


def policy_words(name: str) -> str:
    """Describe a precision policy; return the name of a policy that is not a preset."""
    return _POLICIES.get(name, name)


def _verdict(fits: bool, fewest: int | None) -> str:
    """Say whether the bytes fit, and the smallest number of GPUs on which they fit."""
    if fewest is None:
        return "fits on no number of GPUs"
    gpus = "1 GPU is" if fewest == 1 else f"{fewest:,} GPUs are"
    return f"fits: {gpus} enough" if fits else f"too large: {gpus} enough"


def _draw_budget(axes: Axes, x: float, words: str, rows: int) -> None:
    """Draw the dashed line at which a GPU is full, in front of the bars."""
    top = axes.get_ylim()[1] - _TOP + 0.06
    axes.plot([x, x], [top - _ROW * rows - 0.02, top], "--", color=INK, linewidth=1.3, zorder=5,
              gid="budget")  # fmt: skip
    axes.text(x, top + 0.1, words, **centred(8, INK))


def _draw_bar(
    axes: Axes, pieces: Pieces, corner: tuple[float, float], scale: float, longest: float
) -> None:
    """Draw the pieces one after the other, and their sum; a bar that is too long is cut off."""
    (left, low), end = corner, corner[0] + longest
    unit = byte_words(sum(pieces.values())).split()[-1]
    for name, size in pieces.items():
        width = min(scale * size, end - left)
        fill, hatch = PIECES.get(name, _OTHER)
        axes.add_artist(Rectangle((left, low), width, _BAR, facecolor=fill, edgecolor=edge(fill),
                                  hatch=hatch, linewidth=0.5, gid=name))  # fmt: skip
        words = _short(byte_words(size), unit, (width - 0.06) / _CHARACTER)
        if words:
            text = axes.text(left + width / 2, low + _BAR / 2, words, **centred(7.5, INK))
            text.set_bbox({"facecolor": "#FAFAF7", "edgecolor": "none", "pad": 1.2})
            text.set_zorder(6)
        left += width
    total = sum(pieces.values())
    words = ("» " if scale * total > longest * 1.001 else "") + byte_words(total)
    text = axes.text(left + 0.08, low + _BAR / 2, words, fontsize=8.5, color=INK, va="center")
    text.set_bbox({"facecolor": SHEET, "edgecolor": "none", "pad": 0.5})  # above the dashed line
    text.set_zorder(6)


def _short(words: str, unit: str, room: float) -> str:
    """Return the words if they fit in `room` letters, else without the sum's unit, else ""."""
    return next((each for each in (words, words.removesuffix(f" {unit}")) if len(each) < room), "")


def _draw_key(axes: Axes, bars: Mapping[str, Pieces]) -> None:
    """Draw a sample of each piece that occurs in a bar, in a row."""
    names = dict.fromkeys(name for pieces in bars.values() for name in pieces)
    x, y = 0.35 + _NAME, 0.2
    for name in names:
        fill, hatch = PIECES.get(name, _OTHER)
        axes.add_artist(Rectangle((x, y - 0.07), 0.28, 0.14, facecolor=fill, hatch=hatch,
                                  edgecolor=edge(fill), linewidth=0.5))  # fmt: skip
        axes.text(x + 0.36, y, name, fontsize=8.5, color=INK, va="center")
        x += 0.62 + 0.085 * len(name)


def _alt_text(
    title: str, note: str, bars: Mapping[str, Pieces], room: str, says: Mapping[str, str]
) -> str:
    facts = []
    for name, pieces in bars.items():
        parts = ", ".join(f"{piece} {byte_words(size)}" for piece, size in pieces.items())
        facts.append(f"{name}: {byte_words(sum(pieces.values()))} ({parts}), {says[name]}")
    below = f" ({note})" if note else ""
    return f"{title}{below}, against {room}. {'; '.join(facts)}."


# The bytes that a rank holds at each moment of a step, with a panel for each ZeRO stage ----------
#
#     stage 0  ┌──┐      stage 1            stage 2            stage 3
#           ┌──┘  └─        ┌──┐               ┌┐                ┌┐
#     ──────┘            ───┘  └─           ───┘└──           ───┘└──
#      F   B   S          F   B   S          F   B   S          F   B   S
#
# The numbers are measured. This file only adds and draws them; it contains no formula.

Held = Sequence[Mapping[str, float]]  # at each moment: the bytes of each piece

_STAIRCASE_WIDTH, _HEIGHT = 9.4, 3.7
_LEFT, _RIGHT, _GAP, _STAIRCASE_TOP, _BOTTOM = 0.85, 0.15, 0.14, 1.0, 0.72
_MOST: Final = 5  # panels
_STAIRCASE_OTHER: Final = ("#B9C0C2", "xxxx")


def staircase(
    held: Mapping[str, Held],
    moments: Sequence[str],
    *,
    levels: Mapping[str, float] | None = None,
    title: str = "What a rank holds, moment by moment",
    note: str = "",
) -> Figure:
    """Draw a panel for each name, all on one scale, with the pieces in bytes at each moment.

    `moments` are names such as "forward 0", "forward 1", "backward 1". The first word is the
    phase; neighbouring moments of one phase share its first letter as a label. `levels` are
    predicted bytes, drawn as a dashed line in the panel of that name.
    Raises: ValueError for no panel or too many, or for a panel without a value for each moment.
    """
    _staircase_check(held, moments)
    phases = [(word, len(list(run))) for word, run in itertools.groupby(map(_phase, moments))]
    words = list_words([f"{each[0].upper()} {each}" for each in dict.fromkeys(
        word for word, _ in phases)])  # fmt: skip
    below = f"{note}; {words}" if note else words
    figure = Figure(_STAIRCASE_WIDTH, _HEIGHT)
    figure.heading(title, below)
    totals = {name: [sum(each.values()) for each in values] for name, values in held.items()}
    top = 1.08 * max(itertools.chain([1], (levels or {}).values(), *totals.values()))
    wide = (_STAIRCASE_WIDTH - _LEFT - _RIGHT - _GAP * (len(held) - 1)) / len(held)
    for place, (name, values) in enumerate(held.items()):
        left = _LEFT + place * (wide + _GAP)
        axes = figure.sheet(left, _BOTTOM, wide, _HEIGHT - _STAIRCASE_TOP - _BOTTOM)
        _set_up(axes, len(moments), top, is_first=place == 0)
        _draw_phases(axes, phases)
        _draw_stairs(axes, name, values, totals[name])
        axes.set_title(f"{name}: at most {byte_words(max(totals[name]))}", fontsize=8.5, color=INK)
        if levels and name in levels:
            axes.axhline(levels[name], color=INK, linewidth=1.2, linestyle=(0, (4, 2)),
                         gid=f"level {name}")  # fmt: skip
    _staircase_draw_key(figure, _pieces(held), bool(levels))
    figure.alt_text = _staircase_alt_text(title, below, held, moments, levels or {})
    return figure


def _staircase_check(held: Mapping[str, Held], moments: Sequence[str]) -> None:
    if not 1 <= len(held) <= _MOST or not moments:
        raise ValueError(f"staircase: give 1 to {_MOST} panels and a moment at least, "
                         f"not {len(held)} and {len(moments)}.")  # fmt: skip
    for name, values in held.items():
        if len(values) != len(moments):
            raise ValueError(f"staircase: {name!r} has {len(values)} values for {len(moments)} "
                             "moments; give one for each moment.")  # fmt: skip


def _phase(moment: str) -> str:
    return moment.split()[0]


def _pieces(held: Mapping[str, Held]) -> list[str]:
    """Return the names of all pieces: first those in `PIECES`, in that order, then others."""
    names = dict.fromkeys(name for values in held.values() for each in values for name in each)
    return [name for name in PIECES if name in names] + [n for n in names if n not in PIECES]


def _set_up(axes: Axes, moments: int, top: float, *, is_first: bool) -> None:
    """Set up a panel: bytes on the y axis, labelled in the first panel; moments on the x axis."""
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
    """Shade every second kind of phase, and write each phase's letter below it."""
    begin, kinds = 0, list(dict.fromkeys(word for word, _ in phases))
    for word, length in phases:
        if kinds.index(word) % 2:
            axes.axvspan(begin, begin + length, color=BAND, linewidth=0, zorder=0.4)
        label = axes.annotate(word[0].upper(), (begin + length / 2, 0), xytext=(0, -9),
                              xycoords="data", textcoords="offset points")  # fmt: skip
        label.set(gid=f"phase {word}", **centred(8, MUTED))
        begin += length


def _draw_stairs(axes: Axes, name: str, values: Held, totals: Sequence[float]) -> None:
    """Draw the pieces stacked, with a line along the total."""
    edges, low = np.arange(len(values) + 1), np.zeros(len(values) + 1)
    for piece in _pieces({name: values}):
        sizes = [each.get(piece, 0) for each in values]
        high = low + np.array([*sizes, sizes[-1]], dtype=float)
        fill, hatch = PIECES.get(piece, _STAIRCASE_OTHER)
        axes.fill_between(edges, low, high, step="post", facecolor=fill, edgecolor=edge(fill),
                          hatch=hatch, linewidth=0, zorder=2, gid=f"{piece} {name}")  # fmt: skip
        low = high
    axes.step(edges, [*totals, totals[-1]], where="post", color=INK, linewidth=1.1, zorder=3,
              gid=f"total {name}")  # fmt: skip


def _staircase_draw_key(figure: Figure, pieces: Sequence[str], has_levels: bool) -> None:
    axes = figure.sheet(0, 0, _STAIRCASE_WIDTH, 0.4)
    axes.set(xlim=(0, _STAIRCASE_WIDTH), ylim=(0, 0.4))
    x = _LEFT
    for name in pieces:
        fill, hatch = PIECES.get(name, _STAIRCASE_OTHER)
        axes.add_artist(Rectangle((x, 0.13), 0.28, 0.14, facecolor=fill, hatch=hatch,
                                  edgecolor=edge(fill), linewidth=0.5))  # fmt: skip
        axes.text(x + 0.36, 0.2, name, fontsize=8.5, color=INK, va="center")
        x += 0.62 + 0.085 * len(name)
    if has_levels:
        axes.plot([x, x + 0.28], [0.2, 0.2], color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.text(x + 0.36, 0.2, "predicted", fontsize=8.5, color=INK, va="center")


def _staircase_alt_text(
    title: str, below: str, held: Mapping[str, Held], moments: Sequence[str],
    levels: Mapping[str, float],
) -> str:  # fmt: skip
    """Describe each panel: its highest moment with the pieces there, and its last moment."""
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


# Which part of the model states each rank holds, at ZeRO stages 0 to 3 -------------------------


def zero_stages(world_size: int = 4, *, title: str | None = None) -> Figure:
    """Draw which parts of parameters, gradients and optimizer state each rank holds.

    There is a row for each ZeRO stage, and a column for each rank. A rank holds what is filled:
    with N ranks, a rank that holds 1/N of a piece has one filled box of N. At the right is the
    number of bytes on each rank for Psi parameters with ZeRO's mixed precision (Rajbhandari et
    al. 2020, section 3.1).
    Raises: ValueError for fewer than 2 ranks, or more than 8.
    """
    if not 2 <= world_size <= 8:
        raise ValueError(f"zero_stages: give 2 to 8 ranks, not {world_size}.")
    sums = ("16Ψ", "4Ψ + 12Ψ/N", "2Ψ + 14Ψ/N", "16Ψ/N")
    figure = Figure(_WIDTH, 4.35)
    words = title or f"What each of {world_size} ranks holds, by ZeRO stage"
    below = "a filled box is held by that rank; an outlined box is held by another rank"
    figure.heading(words, below)
    axes = figure.sheet(0, 0, _WIDTH, 4.35)
    axes.set(xlim=(0, _WIDTH), ylim=(0, 4.35))
    wide, told = 6.2 / world_size, []
    for rank in range(world_size):
        axes.text(1.25 + (rank + 0.46) * wide, 3.6, f"rank {rank}", **centred(8.5, MUTED))
    axes.text(8.35, 3.6, "bytes on each rank", **centred(8.5, MUTED))
    for stage, total in enumerate(sums):
        low = 2.75 - 0.76 * stage
        axes.text(0.15, low + 0.32, f"ZeRO stage {stage}", fontsize=9, color=INK, va="center")
        axes.text(8.35, low + 0.32, total, **centred(9.5, INK))
        divided = list(PIECES)[3 - stage : 3]
        for rank in range(world_size):
            left = 1.25 + rank * wide
            for row, piece in enumerate(list(PIECES)[:3]):
                parts = (rank, world_size) if piece in divided else (0, 1)
                corner = (left, low + 0.46 - 0.23 * row)
                _draw_parts(axes, piece, corner, 0.92 * wide, *parts)
        told.append(f"ZeRO stage {stage}: {total} bytes on each rank, divided: "
                    f"{', '.join(divided) or 'nothing'}")  # fmt: skip
    _draw_key(axes, {"": dict.fromkeys(list(PIECES)[:3], 1.0)})
    figure.alt_text = f"{words} ({below}). {'; '.join(told)}."
    return figure


def _draw_parts(
    axes: Axes, piece: str, corner: tuple[float, float], wide: float, held: int, count: int
) -> None:
    """Draw a piece of memory as `count` boxes, of which the one numbered `held` is filled."""
    fill, hatch = PIECES[piece]
    for part in range(count):
        is_held = part == held
        box = Rectangle((corner[0] + part * wide / count, corner[1]), wide / count, 0.18,
                        facecolor=fill if is_held else "none", hatch=hatch if is_held else "",
                        edgecolor=edge(fill) if is_held else "#B9C0C2", linewidth=0.6,
                        zorder=2 + is_held, gid=f"{piece} held" if is_held else piece)  # fmt: skip
        axes.add_patch(box)
