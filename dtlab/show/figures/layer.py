"""Figures of a transformer layer: its tensor-parallel weights, and its activations.

    rank 0   norm ─ f ─ q, k, v ─ head 0 ─ proj. ─ g ─ + ─ norm ─ f ─ first ─ GELU ─ second ─ g ─ +
                    ¦                              ¦              ¦                         ¦
    rank 1   norm ─ f ─ q, k, v ─ head 1 ─ proj. ─ g ─ + ─ norm ─ f ─ first ─ GELU ─ second ─ g ─ +

In the forward pass a box stands for its layer's output, in the backward pass for the gradient of
its layer's input. Shoeybi et al. 2019, "Megatron-LM", section 3; with sequence parallelism
Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4.2.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from dtlab.predict.transformer import Recompute, activation_pieces
from dtlab.show.drawing.style import (
    COLOURS,
    INK,
    MUTED,
    PALETTE,
    SHEET,
    Figure,
    blend,
    centred,
    edge,
)
from dtlab.show.words import byte_words, list_words, rank_words

__all__ = ["activation_bars", "parallel_block"]

_COLUMNS: Final = (
    "norm", "f", "q, k, v", "heads", "proj.", "g", "+",
    "norm", "f", "first", "GELU", "second", "g", "+",
)  # fmt: skip
_PLACES: Final = {
    "norm": "outside", "+": "outside", "q, k, v": "column", "first": "column",
    "heads": "inside", "GELU": "inside", "proj.": "row", "second": "row",
}  # fmt: skip
_HATCHES: Final = {"whole": "", "shard": "", "own tokens": "....", "a part of a sum": "////"}
_WIDTH, _LEFT, _RIGHT = 9.6, 0.8, 0.15  # inches
_TOP, _LANE, _GAP, _BELOW, _KEY = 0.98, 0.5, 0.16, 0.5, 0.4
_WHOLE: Final = "#DDE1E1"
_MOST_RANKS: Final = 4


def parallel_block(
    ranks: int = 2,
    num_heads: int = 4,
    sequence_parallel: bool = False,
    backward: bool = False,
    *,
    title: str | None = None,
) -> Figure:
    """Draw a tensor-parallel transformer block: a lane per rank, a box per layer.

    Each f and g is a bar through all lanes, filled if ranks communicate there in this pass, and
    empty otherwise. A grey box is replicated on every rank. A box in the rank's colour holds its
    shard; strokes mean a partial sum, dots mean the rank's own tokens.
    Raises: ValueError for other than 1 to 4 ranks, or ranks that do not divide the heads.
    """
    if not 1 <= ranks <= _MOST_RANKS or num_heads < 1 or num_heads % ranks:
        raise ValueError(
            f"parallel_block draws 1 to {_MOST_RANKS} ranks that divide the heads, not {ranks} "
            f"with {num_heads} heads."
        )
    states = _states(sequence_parallel, backward)
    sent = _sent(ranks, sequence_parallel, backward)
    direction = "backward pass, from right to left" if backward else "forward pass"
    heading = title or f"A block on {ranks} rank{'s' * (ranks > 1)}: {direction}"
    height = _TOP + ranks * (_LANE + _GAP) - _GAP + _BELOW + _KEY
    figure = Figure(_WIDTH, height)
    figure.heading(heading, sent)
    axes = figure.sheet(0, 0, _WIDTH, height)
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, height)
    for rank in range(ranks):
        low = height - _TOP - rank * (_LANE + _GAP) - _LANE
        _draw_lane(axes, rank, low, states, rank_words(_heads_of(rank, ranks, num_heads)))
    _draw_bars(axes, height, ranks, sequence_parallel, backward)
    _draw_key(axes, states)
    figure.alt_text = _alt_text(f"{heading} ({sent})", ranks, num_heads, states)
    return figure


def _states(sequence_parallel: bool, backward: bool) -> dict[str, str]:
    """Return what a rank holds after each kind of layer; in backward, of its input's gradient."""
    sums = "a part of a sum"
    return {
        "outside": "own tokens" if sequence_parallel else "whole",
        "column": sums if backward else "shard",
        "inside": "shard",
        "row": "shard" if backward else sums,
    }


def _call(name: str, ranks: int, sequence_parallel: bool, backward: bool) -> str:
    """Return the collective that f or g runs in this pass, or an empty string."""
    adds_up = (name == "f") == backward
    if ranks == 1 or (not adds_up and not sequence_parallel):
        return ""
    if not sequence_parallel:
        return "all-reduce"
    return "reduce-scatter" if adds_up else "all-gather"


def _sent(ranks: int, sequence_parallel: bool, backward: bool) -> str:
    """Describe all collectives of the pass, and the elements that a rank sends on a ring."""
    if ranks == 1:
        return "one rank sends nothing"
    bars = (name for name in _COLUMNS if name in "fg")
    calls = Counter(_call(name, ranks, sequence_parallel, backward) for name in bars)
    again = 2 if sequence_parallel and backward else 0  # inputs of both column parallel layers
    calls["all-gather"] += again
    passes = calls["all-reduce"] * 2 + calls["all-gather"] + calls["reduce-scatter"]
    words = [f"{count} {name}s" for name, count in calls.items() if name and count]
    more = " (two of them gather the column-parallel inputs again)" if again else ""
    return f"{list_words(words)}{more}: a rank sends {passes}bsh(t-1)/t elements"


def _heads_of(rank: int, ranks: int, num_heads: int) -> range:
    per_rank = num_heads // ranks
    return range(rank * per_rank, (rank + 1) * per_rank)


def _middle(column: int) -> float:
    """Return the middle of a column, in inches from the left."""
    return _LEFT + (column + 0.5) * (_WIDTH - _LEFT - _RIGHT) / len(_COLUMNS)


def _look(state: str, rank: int) -> tuple[str, str]:
    """Return colour and hatch of a state on a rank."""
    fill = _WHOLE if state == "whole" else blend(PALETTE[rank], "#FFFFFF", 0.62)
    return fill, _HATCHES[state]


def _draw_lane(axes: Axes, rank: int, low: float, states: dict[str, str], heads: str) -> None:
    """Draw a rank's name and its boxes, on a line."""
    middle = low + _LANE / 2
    axes.text(_LEFT - 0.12, middle, f"rank {rank}", fontsize=9, color=INK, ha="right", va="center")
    axes.plot([_LEFT, _WIDTH - _RIGHT], [middle, middle], color=MUTED, linewidth=1, zorder=1)
    for column, name in enumerate(_COLUMNS):
        if name not in _PLACES:
            continue
        state = states[_PLACES[name]]
        fill, hatch = _look(state, rank)
        wide = 0.26 if name == "+" else 0.56
        axes.add_artist(
            Rectangle((_middle(column) - wide / 2, low), wide, _LANE, facecolor=fill, hatch=hatch,
                      edgecolor=edge(fill), linewidth=0.7, zorder=2, gid=f"rank {rank} {state}")
        )  # fmt: skip
        words = f"heads\n{heads}" if name == "heads" else name
        text = axes.text(_middle(column), middle, words, zorder=4, **centred(7.5, INK))
        text.set_bbox({"facecolor": SHEET, "edgecolor": "none", "pad": 0.8, "alpha": 0.85})


def _draw_bars(
    axes: Axes, height: float, ranks: int, sequence_parallel: bool, backward: bool
) -> None:
    """Draw f and g as bars through all lanes, and below each the collective it runs."""
    top, low = height - _TOP + 0.07, _KEY + _BELOW - 0.07
    for column, name in enumerate(_COLUMNS):
        if name in _PLACES:
            continue
        x, call = _middle(column), _call(name, ranks, sequence_parallel, backward)
        fill = COLOURS["communication"] if call else SHEET
        axes.add_artist(
            Rectangle((x - 0.08, low), 0.16, top - low, facecolor=fill, edgecolor=edge(fill),
                      linewidth=0.7, linestyle="-" if call else ":", zorder=3,
                      gid=f"{name} {call or 'nothing'}")
        )  # fmt: skip
        axes.text(x, top + 0.1, name, **centred(9.5, INK, "bold"))
        words = (call or "nothing").replace("reduce-scatter", "reduce-\nscatter")
        axes.text(x, low - 0.17, words, linespacing=1.05, **centred(7.5, INK if call else MUTED))


def _draw_key(axes: Axes, states: dict[str, str]) -> None:
    """Draw a sample of each state, in the colours of rank 0."""
    words = {
        "whole": "whole: the same on every rank", "own tokens": "own tokens",
        "shard": "a shard: heads or features", "a part of a sum": "a part of a sum",
    }  # fmt: skip
    x = _LEFT
    for state in dict.fromkeys(states.values()):
        fill, hatch = _look(state, 0)
        axes.add_artist(Rectangle((x, 0.12), 0.28, 0.15, facecolor=fill, hatch=hatch,
                                  edgecolor=edge(fill), linewidth=0.5))  # fmt: skip
        axes.text(x + 0.36, 0.195, words[state], fontsize=8.5, color=INK, va="center")
        x += 0.7 + 0.085 * len(words[state])


def _alt_text(heading: str, ranks: int, num_heads: int, states: dict[str, str]) -> str:
    """Describe what each rank holds, layer by layer."""
    heads = [
        f"rank {rank} heads {rank_words(_heads_of(rank, ranks, num_heads))}"
        for rank in range(ranks)
    ]
    layers = [f"{name}: {states[place]}" for name, place in _PLACES.items()]
    return f"{heading}. {list_words(heads)}. {'; '.join(layers)}."


# The bytes that a transformer layer keeps for its backward pass, piece by piece, by switches -----
#
# Bytes by V. A. Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
# Models", section 4.1: s b h (34 + 5 a s / h) in 16 bits, with one byte for an element of a mask;
# s is the sequence length, b the microbatch size, h the hidden size, a the number of heads.

_ACTIVATION_WIDTH, _ACTIVATION_LEFT, _ACTIVATION_RIGHT = 9.4, 1.35, 0.3
_ACTIVATION_TOP, _ROW, _BAR, _ACTIVATION_KEY = 0.8, 0.52, 0.34, 0.23
_CHARACTER: Final = 0.075
_COLOURS: Final = (*PALETTE[:5], PALETTE[6])  # no black: it would hide hatches and labels
_ACTIVATION_HATCHES: Final = ("", "....", "", "\\\\\\\\", "", "////")


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
    """Draw the bytes that one layer keeps with these switches, next to the default switches.

    Both bars follow the formula. `measured` adds a bar with the bytes that autograd saved.
    Raises: ValueError as `activation_pieces` does, and for `measured` below 0.
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
    height = (
        _ACTIVATION_TOP + _ROW * len(bars) + 0.25 + _ACTIVATION_KEY * ((len(names) + 1) // 2) + 0.1
    )
    figure = Figure(_ACTIVATION_WIDTH, height)
    figure.heading(heading, note)
    _activation_draw_bars(figure, bars, names, max(sum(each.values()) for each in bars.values()))
    _activation_draw_key(figure, names, now)
    facts = [f"{name} {byte_words(size)}" for name, size in now.items()]
    figure.alt_text = f"{heading} ({note}). {', '.join(facts)}; all kept {byte_words(before)}."
    if measured is not None:
        share = f"{measured / total:.3g} times the formula"
        figure.alt_text += f" Measured {byte_words(measured)}, {share}."
    return figure


def _switches(dropout: bool, fused_attention: bool, recompute: str) -> str:
    """Describe the switches in words."""
    words = ["dropout" if dropout else "no dropout"]
    words.append("fused attention" if fused_attention else "attention matrices kept")
    if recompute == "full":
        return "full recomputation, only inputs are kept"
    return ", ".join(words) + (", selective recomputation" if recompute == "selective" else "")


def _activation_look(names: list[str], name: str) -> tuple[str, str]:
    """Return colour and hatch of a piece."""
    if name not in names or names.index(name) >= len(_ACTIVATION_HATCHES):
        return "#B9C0C2", ""
    place = names.index(name)
    return _COLOURS[place], _ACTIVATION_HATCHES[place]


def _activation_draw_bars(
    figure: Figure, bars: Mapping[str, Mapping[str, float]], names: list[str], most: float
) -> None:
    """Draw the bars below each other, on one scale of bytes, with the sum at each end."""
    height = float(figure.get_size_inches()[1])
    room = (
        _ACTIVATION_WIDTH - _ACTIVATION_LEFT - _ACTIVATION_RIGHT - 0.95
    )  # inches for the longest bar, without the sum after it
    axes = figure.sheet(0, 0, _ACTIVATION_WIDTH, height)
    axes.set_xlim(0, _ACTIVATION_WIDTH)
    axes.set_ylim(0, height)
    for row, (words, pieces) in enumerate(bars.items()):
        low, left = height - _ACTIVATION_TOP - row * _ROW - _BAR, _ACTIVATION_LEFT
        axes.text(0.15, low + _BAR / 2, words, fontsize=9, color=INK, va="center")
        for name, size in pieces.items():
            width = room * size / most if most else 0.0
            _draw_piece(axes, (left, low, width), name, _activation_look(names, name), size)
            left += width
        whole = byte_words(sum(pieces.values()))
        axes.text(left + 0.08, low + _BAR / 2, whole, fontsize=8.5, color=INK, va="center")


def _draw_piece(
    axes: Axes, box: tuple[float, float, float], name: str, look: tuple[str, str], size: float
) -> None:
    """Draw a piece of a bar, with its bytes on it if they fit."""
    (left, low, width), (fill, hatch) = box, look
    piece = Rectangle((left, low), width, _BAR, facecolor=fill, edgecolor=edge(fill), hatch=hatch,
                      linewidth=0.5, gid=name)  # fmt: skip
    axes.add_artist(piece)
    words = byte_words(size)
    if name != "measured" and len(words) * _CHARACTER + 0.1 < width:
        text = axes.text(left + width / 2, low + _BAR / 2, words, **centred(7.5, INK))
        text.set_bbox({"facecolor": "#FAFAF7", "edgecolor": "none", "pad": 1.2})


def _activation_draw_key(figure: Figure, names: list[str], now: Mapping[str, int]) -> None:
    """Draw a sample of each piece in two columns, with its bytes under these switches."""
    height = float(figure.get_size_inches()[1])
    axes = figure.sheet(0, 0, _ACTIVATION_WIDTH, height)
    axes.set_xlim(0, _ACTIVATION_WIDTH)
    axes.set_ylim(0, height)
    rows = (len(names) + 1) // 2
    for place, name in enumerate(names):
        column, row = divmod(place, rows)
        x, y = _ACTIVATION_LEFT + 3.9 * column, 0.1 + _ACTIVATION_KEY * (rows - row - 0.5)
        fill, hatch = _activation_look(names, name)
        axes.add_artist(Rectangle((x, y - 0.07), 0.28, 0.14, facecolor=fill, hatch=hatch,
                                  edgecolor=edge(fill), linewidth=0.5))  # fmt: skip
        words = f"{name}: {byte_words(now[name])}" if name in now else f"{name}: not kept"
        colour = INK if name in now else MUTED
        axes.text(x + 0.38, y, words, fontsize=8.5, color=colour, va="center")
