"""Figures of strategy: the decision tree, ranks in a mesh, and plans.

mesh_figure({"data": 2, "pipeline": 2, "tensor": 4}, gpus_per_node=8)

data 0   pipeline 0   [ 0  1  2  3]          one colour per axis: the lines join the ranks of
         pipeline 1   [ 4  5  6  7]  node 0  a group, and the key says which link they use
data 1   pipeline 0   [ 8  9 10 11]
         ...
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from dtlab.predict.plan import Estimate, Search
from dtlab.predict.strategy import Choice
from dtlab.predict.strategy.decision import ROOT, TREE, Leaf, Step
from dtlab.predict.units import counted, in_gb
from dtlab.show.drawing.charts import Axis, Chart, Numbers, log_ends
from dtlab.show.drawing.style import INK, MUTED, PALETTE, SHEET, Figure, blend, centred, edge
from dtlab.show.words import time_words

__all__ = [
    "AXIS_COLOURS", "decision_tree", "mesh_figure", "plan_chart", "plan_table", "ways_to_split",
]  # fmt: skip

# Three ways to split -----------------------------------------------------------------------------

_WAYS: Final = (  # the way, what a rank has, what is sent; which rank has a part (slice, layer)
    ("data", "the whole model, a quarter of the batch", "gradients, once a step", None),
    ("tensor", "a quarter of every layer, the whole batch", "activations, in every layer", 0),
    ("pipeline", "one layer of four, the whole batch", "activations, between layers", 1),
)


def ways_to_split(*, title: str | None = None) -> Figure:
    """Draw a model of four layers and its batch under data, tensor and pipeline parallelism.

    Each of four ranks has a colour. A layer is a column, and its parts are cells of the column.
    """
    figure = Figure(9.2, 3.3)
    figure.heading(
        title or "Three ways to split the work of four ranks",
        "left the batch, right the model with a column per layer; a colour per rank, grey for all",
    )
    axes = figure.sheet(0, 0, 9.2, 3.3)
    axes.set(xlim=(0, 9.2), ylim=(0, 3.3))

    def cell(x: float, y: float, size: float, colour: str) -> None:
        axes.add_patch(Rectangle((x, y), size, size, facecolor=colour, edgecolor=SHEET, lw=1.2))

    for panel, (name, holds, sent, cut) in enumerate(_WAYS):
        left = 0.3 + 3.0 * panel
        axes.text(left, 2.55, f"{name} parallelism", fontsize=10, color=INK, weight="bold")
        axes.text(left, 0.52, f"a rank has {holds}", fontsize=7.6, color=INK)
        axes.text(left, 0.28, f"sent: {sent}", fontsize=7.6, color=MUTED)
        for piece in range(4):  # of the batch
            cell(left, 0.9 + 0.38 * (3 - piece), 0.34, PALETTE[piece] if cut is None else _PALE)
        axes.text(left + 0.46, 1.64, "→", **centred(11, MUTED))
        for part, layer in itertools.product(range(4), repeat=2):
            if cut is not None:
                x, y = left + 0.66 + 0.38 * layer, 0.9 + 0.38 * (3 - part)
                cell(x, y, 0.34, PALETTE[(part, layer)[cut]])
                continue
            for rank in range(4):  # a small copy of the model for each
                x = left + 0.66 + 1.0 * (rank % 2) + 0.2 * layer
                cell(x, 0.9 + 0.8 * (rank < 2) + 0.17 * (3 - part), 0.15, PALETTE[rank])
    words = (f"{way[0]} parallelism: a rank has {way[1]}; it sends {way[2]}." for way in _WAYS)
    figure.alt_text = f"A model of four layers on four ranks. {' '.join(words)}"
    return figure


# The decision tree -------------------------------------------------------------------------------
#
#     Does a whole replica fit on a GPU?                 642 GB > 80 GB
#     ├─ yes  Is one GPU fast enough?
#     ┗━ no   Do the activations of one microbatch fit?  2 GB <= 80 GB
#             ┣━ yes ...
#
# The figure has one row for each node of `predict.strategy.decision.TREE`. The path of the job is
# thick, dark and marked; the rest is pale.

_WIDTH, _LEFT, _TOP, _BOTTOM = 9.4, 0.2, 0.85, 0.15  # inches
_ROW, _INDENT = 0.245, 0.5  # inches: height of a row; width of a level, with its "yes" or "no"
_NUMBERS: Final = 6.85  # inches from the left to the compared numbers
_LIT: Final = PALETTE[0]
_PALE: Final = "#B9BDB8"


@dataclass(frozen=True)
class _Row:
    """A node with its depth, the answer that leads to it, and the row of its parent question."""

    id: str
    depth: int
    answer: str
    above: int
    lit: bool


def decision_tree(choice: Choice | None = None, *, title: str | None = None) -> Figure:
    """Draw the tree that `dtlab.predict.choose` follows; a `Choice` highlights its path.

    Beside each question on the path are the two numbers that it compares. A mark shows the
    question whose answer decided the choice.
    """
    steps = {} if choice is None else {step.question.id: step for step in choice.path}
    rows = list(_rows(ROOT, 0, "", -1, steps, choice is not None, [0]))
    heading = title or (
        "Which strategy?" if choice is None else choice.strategy[0].upper() + choice.strategy[1:]
    )
    note = "yes means that a number is at most its limit" if choice is None else (
        f"because {choice.because}")  # fmt: skip
    height = _TOP + _ROW * len(rows) + _BOTTOM
    figure = Figure(_WIDTH, height, alt_text=_alt_text(heading, choice))
    figure.heading(heading, note)
    axes = figure.sheet(0, 0, _WIDTH, height)
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, height)
    for lit in (False, True):  # draw the highlighted path last, on top
        for number, row in enumerate(rows):
            if row.above >= 0 and row.lit is lit:
                _draw_branch(axes, row, _y(row.above, height), _y(number, height))
    for number, row in enumerate(rows):
        _draw_node(axes, row, _y(number, height), choice, steps.get(row.id))
    return figure


def _rows(
    node_id: str, depth: int, answer: str, above: int, steps: Mapping[str, Step], lit: bool,
    count: list[int],
) -> Iterator[_Row]:  # fmt: skip
    """Yield a node and its subtree from top to bottom; `count` counts the rows so far."""
    node, place = TREE[node_id], count[0]
    count[0] += 1
    yield _Row(node_id, depth, answer, above, lit)
    if isinstance(node, Leaf):
        return
    step = steps.get(node_id)
    for words, child, holds in (("yes", node.yes, True), ("no", node.no, False)):
        taken = lit and step is not None and step.holds is holds
        yield from _rows(child, depth + 1, words, place, steps, taken, count)


def _y(row: int, height: float) -> float:
    """Return the middle of a row."""
    return height - _TOP - (row + 0.5) * _ROW


def _x(depth: int) -> float:
    """Return the left end of the text of a level."""
    return _LEFT + depth * _INDENT


def _draw_branch(axes: Axes, row: _Row, top: float, y: float) -> None:
    """Draw the line from the parent question to this row, and the answer that leads here."""
    left = _x(row.depth - 1) + 0.06
    colour, width = (_LIT, 2.6) if row.lit else (_PALE, 1.0)
    axes.plot([left, left, left + 0.09], [top - 0.1, y, y], color=colour, linewidth=width,
              solid_joinstyle="miter", gid=f"branch {row.id}")  # fmt: skip
    axes.text(left + 0.13, y, row.answer, fontsize=8, color=INK if row.lit else MUTED,
              weight="bold" if row.lit else "normal", va="center", ha="left")  # fmt: skip


def _draw_node(axes: Axes, row: _Row, y: float, choice: Choice | None, step: Step | None) -> None:
    """Draw a node's text; a strategy is in a box, which is filled at the end of the path."""
    node = TREE[row.id]
    lit, pale = row.lit and choice is not None, not row.lit and choice is not None
    ink = MUTED if pale else INK
    if isinstance(node, Leaf):
        words = axes.text(_x(row.depth) + 0.05, y, node.strategy, fontsize=8, va="center")
        words.set(color="#FFFFFF" if lit else ink, weight="bold" if lit else "normal")
        words.set(gid=f"leaf {row.id}")
        face = _LIT if lit else blend(SHEET, _LIT, 0.04 if pale else 0.14)
        words.set_bbox({"boxstyle": "round,pad=0.25", "facecolor": face, "linewidth": 0.8,
                        "edgecolor": blend(_LIT, "#000000", 0.3) if lit else _PALE})  # fmt: skip
        return
    words = axes.text(_x(row.depth), y, node.text, fontsize=8.5, color=ink, va="center")
    words.set(weight="bold" if lit else "normal", gid=f"question {row.id}")
    if step is not None and choice is not None:
        drove = step is choice.because
        text = f"{_comparison(step)}{'   ◄ decided it' if drove else ''}"
        axes.text(_NUMBERS, y, text, fontsize=8.5, color=INK, va="center", gid=f"step {row.id}",
                  weight="bold" if drove else "normal")  # fmt: skip


def _comparison(step: Step) -> str:
    """Format the two numbers that a step compares, as in `642 GB > 80 GB`."""
    if not step.known:
        return "not known: taken as yes"
    return (" ≤ " if step.holds else " > ").join(step.numbers)


def _alt_text(heading: str, choice: Choice | None) -> str:
    questions = sum(not isinstance(node, Leaf) for node in TREE.values())
    tree = f"A decision tree of {questions} questions and {len(TREE) - questions} strategies"
    if choice is None:
        return f"{heading} {tree}. It begins with: {getattr(TREE[ROOT], 'text', '')}"
    path = [
        f"{step.question.text} {'Yes' if step.holds else 'No'}, {_comparison(step)}."
        for step in choice.path
    ]
    return f"{heading}, because {choice.because}. {tree}; the path: {' '.join(path)}"


# Ranks in a mesh ---------------------------------------------------------------------------------

AXIS_COLOURS: Final[Mapping[str, str]] = {
    "tensor": PALETTE[0], "context": PALETTE[3], "pipeline": PALETTE[1], "data": PALETTE[2],
}  # fmt: skip
_MOST: Final = 4  # places of an axis that are drawn; more are left out with an ellipsis
_CELL, _LINE = 0.78, 0.5  # inches of a rank across, and of a row of ranks
_SLANT_X, _SLANT_Y = 0.42, 0.22  # inches by which one pipeline stage lies behind the one before
_MESH_TOP, _MESH_KEY = 0.8, 0.95


def mesh_figure(
    sizes: Mapping[str, int],
    gpus_per_node: int = 8,
    *,
    links: tuple[str, str] = ("the node's link", "the network"),
    lines: Sequence[str] = (),
    title: str | None = None,
) -> Figure:
    """Draw the ranks of a mesh of up to three axes, with their nodes and a colour for each axis.

    `sizes` has the axes from the outermost to the innermost, as `parallel.mesh.make_mesh` takes
    them. Each tint is a node. The key names the link that an axis uses: `links` are the names of
    the link inside a node and of the link between nodes. Of a long axis, only the first places and
    the last are drawn. `lines` of text are written below the key.
    Raises: ValueError for no axis, more than three, or sizes below 1.
    """
    if not 1 <= len(sizes) <= 3 or min(sizes.values()) < 1:
        raise ValueError(
            f"mesh_figure draws one to three axes of at least 1 rank, not {dict(sizes)}."
        )
    names = ["", "", *sizes][-3:]  # panels, then rows, then columns
    counts = [1, 1, *sizes.values()][-3:]
    shown = [_places(count, 3 if axis == 0 else _MOST) for axis, count in enumerate(counts)]
    panel = _CELL * len(shown[2]) + _SLANT_X * (len(shown[1]) - 1) + 0.35
    lefts = [0.0]  # of the panels; an ellipsis is narrower than a panel
    for place in shown[0]:
        lefts.append(lefts[-1] + (0.9 if place < 0 else panel))
    width = max(7.2, 1.2 + lefts[-1])
    height = _MESH_TOP + (_LINE + _SLANT_Y) * len(shown[1]) + 0.2 + _MESH_KEY + 0.21 * len(lines)
    figure = Figure(width, height)
    ranks = math.prod(counts)
    named = " x ".join(f"{name} {size}" for name, size in sizes.items())
    heading = f"{counted(ranks, 'rank')}: {named}"
    heading = title or heading
    figure.heading(
        heading,
        f"{counted(-(-ranks // gpus_per_node), 'node')} of {counted(gpus_per_node, 'GPU')}; each "
        f"tint is a node",
    )
    axes = figure.sheet(0, 0, width, height)
    axes.set(xlim=(0, width), ylim=(0, height))
    points = {
        (i, j, k): (
            1.25 + lefts[i] + k * _CELL + j * _SLANT_X,
            height - _MESH_TOP - 0.3 - j * (_LINE + _SLANT_Y),
        )
        for i, j, k in itertools.product(*(range(len(places)) for places in shown))
        if shown[0][i] >= 0 or k == 0
    }
    drawn = {at: point for at, point in points.items() if shown[0][at[0]] >= 0}
    _draw_groups(axes, drawn, names)
    for at, point in points.items():
        spot = [places[index] for places, index in zip(shown, at, strict=True)]
        if -1 in spot:
            words = axes.text(*point, "...", **centred(10, MUTED))
            words.set_bbox({"facecolor": SHEET, "edgecolor": "none", "pad": 1.5})
            continue
        rank = (spot[0] * counts[1] + spot[1]) * counts[2] + spot[2]
        _draw_rank(axes, point, rank, rank // gpus_per_node)
    for index, place in enumerate(shown[0]):
        if names[0] and place >= 0:
            x, y = points[index, 0, 0]
            axes.text(x - 0.24, y + 0.3, f"{names[0]} {place}", fontsize=8, color=MUTED)
    for index, place in enumerate(shown[1]):
        if names[1] and place >= 0:
            x, y = points[0, index, 0]
            axes.text(x - 0.34, y, f"{names[1]} {place}", fontsize=8, color=MUTED,
                      ha="right", va="center")  # fmt: skip
    _draw_mesh_key(axes, sizes, gpus_per_node, links, 0.18 + 0.21 * len(lines))
    for number, line in enumerate(reversed(lines)):
        axes.text(0.3, 0.14 + 0.21 * number, line, fontsize=8.5, color=INK, va="center")
    figure.alt_text = " ".join([f"{heading}.", _mesh_words(sizes, gpus_per_node, links), *lines])
    return figure


def _places(count: int, most: int) -> list[int]:
    """Return the places of an axis that are drawn; -1 stands for those that are left out."""
    return list(range(count)) if count <= most else [*range(most - 2), -1, count - 1]


def _draw_groups(
    axes: Axes, points: Mapping[tuple[int, int, int], tuple[float, float]], names: Sequence[str]
) -> None:
    """Draw a line through the ranks of each group; lines of the outermost axis run lower."""
    for axis in range(3):
        if not names[axis]:
            continue
        groups: dict[tuple[int, ...], list[tuple[float, float]]] = {}
        for place, point in points.items():
            key = tuple(each for number, each in enumerate(place) if number != axis)
            groups.setdefault(key, []).append(point)
        colour = AXIS_COLOURS.get(names[axis], PALETTE[axis])
        for number, group in enumerate(groups.values()):
            if len(group) > 1:
                xs, ys = zip(*group, strict=True)
                # Groups of the outermost axis lie side by side, so each runs below the boxes.
                down = 0.17 + 0.035 * (number % _MOST) if axis == 0 else 0.0
                axes.plot(xs, np.array(ys) - down, color=colour, linewidth=2.2 if axis else 1.4,
                          zorder=1, alpha=0.9, gid=f"{names[axis]} group {number}")  # fmt: skip


def _draw_rank(axes: Axes, at: tuple[float, float], rank: int, node: int) -> None:
    tint = blend(("#CFE3F5", "#F5DFC4", "#D9EBCF", "#EAD5E6")[node % 4], SHEET, 0.15)
    box = FancyBboxPatch(
        (at[0] - 0.24, at[1] - 0.13), 0.48, 0.26, boxstyle="round,pad=0.01,rounding_size=0.05",
        facecolor=tint, edgecolor=edge(tint), linewidth=0.8, zorder=3, gid=f"rank {rank}",
    )  # fmt: skip
    axes.add_artist(box)
    axes.text(*at, f"{rank}", **centred(8.5, INK)).set_zorder(4)


def _draw_mesh_key(
    axes: Axes, sizes: Mapping[str, int], per_node: int, links: tuple[str, str], low: float
) -> None:
    for row, (name, size) in enumerate(reversed(list(sizes.items()))):
        y = low + 0.22 * (len(sizes) - 1 - row)
        axes.plot([0.3, 0.75], [y, y], color=AXIS_COLOURS.get(name, INK), linewidth=3)
        words = f"{name}, {counted(size, 'rank')}: {_wire(name, sizes, per_node, links)}"
        axes.text(0.88, y, words,
                  fontsize=8.5, color=INK, va="center")  # fmt: skip


def _wire(name: str, sizes: Mapping[str, int], per_node: int, links: tuple[str, str]) -> str:
    """Return the name of the link that the groups of an axis use."""
    if sizes[name] == 1:
        return "sends nothing"
    inner = list(sizes.values())[list(sizes).index(name) :]
    return f"over {links[0] if per_node % math.prod(inner) == 0 else links[1]}"


def _mesh_words(sizes: Mapping[str, int], per_node: int, links: tuple[str, str]) -> str:
    said = [
        f"{name} of {size}, {_wire(name, sizes, per_node, links)}" for name, size in sizes.items()
    ]
    ranks = counted(math.prod(sizes.values()), "rank")
    return f"A mesh of {ranks}, {per_node} to a node: {'; '.join(said)}."


# The best plans ----------------------------------------------------------------------------------

_COLUMNS: Final = (
    ("tp", 0.4), ("cp", 0.4), ("pp", 0.4), ("dp", 0.5), ("ZeRO", 0.5), ("micro", 0.55),
    ("schedule", 1.15), ("recompute", 0.85), ("memory", 0.8), ("step", 0.75), ("MFU", 0.6),
    ("largest cost beside compute", 2.3),
)  # fmt: skip


def plan_table(found: Search, count: int = 10, *, title: str | None = None) -> Figure:
    """Draw a table of a search's fastest plans, and below it, why how many plans were rejected."""
    best = found.best(count)
    reasons = sorted(found.rejected.items(), key=lambda each: -each[1])
    width = 0.3 + sum(size for _, size in _COLUMNS)
    height = 0.95 + 0.24 * (len(best) + 1) + 0.45 + 0.22 * len(reasons)
    figure = Figure(width, height)
    heading = title or f"The fastest of {counted(len(found), 'plan')} that fit"
    figure.heading(
        heading,
        f"{counted(found.problem.cluster.size, 'GPU')}, {found.problem.card.name}, "
        f"{in_gb(found.problem.memory)} each for tensors; "
        f"{counted(found.problem.batch, 'sequence')} a step; 8s: with sequence parallelism",
    )
    axes = figure.sheet(0, 0, width, height)
    axes.set(xlim=(0, width), ylim=(0, height))
    y = height - 0.85
    _row(axes, y, [name for name, _ in _COLUMNS], MUTED)
    for number, each in enumerate(best):
        y -= 0.24
        if number % 2 == 0:
            axes.add_artist(Rectangle((0.1, y - 0.12), width - 0.2, 0.24, color="#F0F0EA"))
        _row(axes, y, _cells(each), INK)
    y -= 0.42
    axes.text(0.15, y, "Rejected:", fontsize=8.5, color=MUTED, va="center")
    for reason, number in reasons:
        y -= 0.22
        axes.text(1.1, y, f"{number:,}", fontsize=8.5, color=INK, va="center", ha="right")
        axes.text(1.2, y, reason, fontsize=8.5, color=INK, va="center")
    lines = [f"{number}. {each}." for number, each in enumerate(best, start=1)]
    lines += [f"{counted(number, 'plan')} rejected: {reason}." for reason, number in reasons]
    figure.alt_text = " ".join([f"{heading}.", *lines])
    return figure


def _row(axes: Axes, y: float, cells: Sequence[str], colour: str) -> None:
    x = 0.15
    for words, (_, size) in zip(cells, _COLUMNS, strict=True):
        axes.text(x, y, words, fontsize=8.5, color=colour, va="center")
        x += size


def _cells(each: Estimate) -> list[str]:
    plan, total = each.plan, each.step_seconds
    costs = {name: cost for name, cost in each.seconds.items() if name != "compute"}
    worst = max(costs, key=lambda name: costs[name])
    schedule = (
        plan.schedule + f" x {plan.chunks}" * (plan.chunks > 1) if plan.pipeline > 1 else "-"
    )
    return [
        f"{plan.tensor}" + "s" * plan.sequence_parallel, f"{plan.context}", f"{plan.pipeline}",
        f"{plan.data}", f"{plan.zero}", f"{plan.microbatch}", schedule, plan.recompute,
        in_gb(each.bytes), time_words(total), f"{each.mfu:.1%}",
        f"{worst}, {costs[worst] / total:.0%}",
    ]  # fmt: skip


# Memory against time -----------------------------------------------------------------------------

_DRAWN: Final = 6000  # points of each kind at most, evenly chosen


def plan_chart(
    found: Search, *, marked: Mapping[str, Estimate] | None = None, title: str | None = None
) -> Figure:
    """Plot memory per GPU against step time, for every plan that could run with enough memory.

    Plans right of the vertical line do not fit. The fastest plan that fits has a ring, and each
    plan in `marked` has a ring with its name.
    Raises: ValueError if there is no plan to draw.
    """
    nbytes, seconds, fits = found.points()
    if not len(nbytes):
        raise ValueError("plan_chart: no plan can run on these GPUs, whatever memory they have.")
    figure = Figure(8.6, 4.9)
    figure.heading(
        title or "Memory against time",
        f"{counted(len(nbytes), 'plan')}; {int(fits.sum()):,} fit in "
        f"{in_gb(found.problem.memory)}",
    )
    chart = Chart(
        figure, (0.75, 0.6, 5.3, 3.5), [],
        Axis("bytes on the fullest GPU", _ends(nbytes), True, _gb),
        Axis("seconds of a step", _ends(seconds), True, lambda each: f"{each:,g}"),
    )  # fmt: skip
    axes = chart.axes
    for mask, colour, words in ((~fits, "#C9C9C3", "does not fit"), (fits, PALETTE[0], "fits")):
        rows = np.flatnonzero(mask)
        rows = rows[:: max(1, len(rows) // _DRAWN)]
        axes.plot(nbytes[rows], seconds[rows], ".", markersize=2.5, color=colour, alpha=0.5,
                  rasterized=True, label=words, gid=words)  # fmt: skip
    chart.draw_upright(found.problem.memory, "a GPU is full")
    rings = dict(zip(["fastest"], found.best(1), strict=False)) | dict(marked or {})
    for number, (name, each) in enumerate(rings.items()):
        if each.seconds:
            axes.plot(each.bytes, each.step_seconds, "o", markersize=9, zorder=5,
                      markerfacecolor="none", markeredgewidth=2, gid=name,
                      color=PALETTE[1 + number % 3], label=name)  # fmt: skip
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=8.5, frameon=False)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    said = [f"{name}: {each}." for name, each in rings.items()]
    figure.alt_text = (
        f"{title or 'Memory against time'}. {counted(len(nbytes), 'plan')}; {int(fits.sum()):,} "
        f"fit. {' '.join(said)}"
    )
    return figure


def _ends(values: Numbers) -> tuple[float, float]:
    return log_ends(float(values.min()), float(values.max()))


def _gb(nbytes: float) -> str:
    return in_gb(nbytes)
