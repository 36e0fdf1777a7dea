"""Figures of tasks: where the data of several tasks is, and which task needs which.

 driver  x                  driver  x, ref              a 2 s ──► b 3 s ──► d 1 s
   │ x   │ x                   │ put once                    └──► c 1 s ────┘
┌──▼─────▼──┐               ┌──▼────────┐
│  x     x  │ object store  │  x        │             task_graph
└──┊─────┊──┘               └──┊─────┊──┘
worker worker               worker worker           object_store
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path

from dtlab.predict.tasks import critical_path
from dtlab.predict.units import counted
from dtlab.show.drawing.style import (
    COLOURS,
    GRID,
    INK,
    LANE,
    MUTED,
    PALETTE,
    Figure,
    blend,
    centred,
    edge,
)
from dtlab.show.words import byte_words, list_words, short_words, time_words

__all__ = ["object_store", "task_graph"]

_COPY: Final = COLOURS["communication"]
_OBJECT: Final = blend(COLOURS["input"], "#FFFFFF", 0.3)
_BOX: Final = 0.42  # inches: side of an object

# Where the data is -------------------------------------------------------------------------------

_PANEL, _HEIGHT = 3.05, 4.55
_STORE, _WORKERS, _DRIVER = 1.75, 0.95, 3.1  # inches from below: lower ends


def object_store(size: float = 25e6, *, title: str | None = None) -> Figure:
    """Draw a driver that passes `size` bytes to four tasks: by value, by reference, on two nodes.

    Each node has an object store in shared memory. Orange arrows copy bytes; dotted lines are
    workers that read an object in place.
    Raises: ValueError if `size` is under 0.
    """
    if size < 0:
        raise ValueError(f"object_store: size must be 0 bytes or more, not {size!r}.")
    heading = title or f"One object of {_bytes(size)}, four tasks: how many copies?"
    below = (
        "orange: bytes are copied; dotted: a worker reads an object in place. "
        "The driver gets a reference (a future) to each result at once"
    )
    figure = Figure(3 * _PANEL + 0.25, _HEIGHT)
    figure.heading(heading, below)
    axes = figure.sheet(0, 0, 3 * _PANEL + 0.25, _HEIGHT)
    axes.set(xlim=(0, 3 * _PANEL + 0.25), ylim=(0, _HEIGHT))
    panels: list[tuple[str, str, Sequence[int]]] = [
        ("by value", "f.remote(x)", (4,)),
        ("by reference", "r = ray.put(x);  f.remote(r)", (1,)),
        ("by reference, two nodes", "r = ray.put(x);  f.remote(r)", (1, 1)),
    ]
    told = []
    for number, (name, code, copies) in enumerate(panels):
        left = 0.2 + number * _PANEL
        axes.text(left, 3.78, name, fontsize=10, color=INK, weight="bold", va="center")
        axes.text(left, 3.56, code, fontsize=8, color=MUTED, family="monospace", va="center")
        _draw_panel(axes, left, copies)
        held = sum(copies)
        words = f"{counted(held, 'copy', 'copies')}, {_bytes(held * size)}"
        words += "; one crosses the network" if len(copies) > 1 else " in the store"
        axes.text(left, 0.28, words, fontsize=8.5, color=INK, va="center")
        told.append(f"{name}, {code.replace(';  ', '; ')}: {words}")
    figure.alt_text = (
        f"{heading} The driver gets a reference (a future) to each result at once. In each of "
        "three panels: a driver, the object store of each node, and four workers that read the "
        f"object in place. {'. '.join(told)}."
    )
    return figure


def _draw_panel(axes: Axes, left: float, copies: Sequence[int]) -> None:
    """Draw a driver, the store of each node with `copies` objects, and four workers."""
    wide = _PANEL - 0.25
    driver = left + (wide / 2 if len(copies) == 1 else wide / 4)
    _draw_box(axes, (driver - 0.55, _DRIVER), (1.1, 0.3), "driver", "driver: x")
    step = wide / len(copies)
    first: tuple[float, float] | None = None
    for node, count in enumerate(copies):
        start, across = left + node * step, step - 0.1
        node_box = (start, 0.5), across, _STORE + 1.0 - 0.5
        axes.add_patch(Rectangle(*node_box, fill=False, edgecolor=GRID, linewidth=1.2, gid="node"))
        name = "object store" if len(copies) == 1 else f"node {node}"
        axes.text(start + 0.1, _STORE + 0.88, name, fontsize=7.5, color=MUTED, va="center")
        axes.add_patch(Rectangle((start + 0.1, _STORE), across - 0.2, 0.58, facecolor=LANE,
                                 edgecolor=GRID, zorder=0, gid="store"))  # fmt: skip
        objects = [
            (start + across * (place + 0.5) / count - _BOX / 2, _STORE + 0.08)
            for place in range(count)
        ]
        for x, y in objects:
            axes.add_patch(Rectangle((x, y), _BOX, _BOX, facecolor=_OBJECT, linewidth=0.8,
                                     edgecolor=edge(_OBJECT), gid="object"))  # fmt: skip
            axes.text(x + _BOX / 2, y + _BOX / 2, "x", **centred(10, INK, "bold"))
            if first is None or node == 0:
                _draw_copy(axes, (driver, _DRIVER), (x + _BOX / 2, y + _BOX))
            else:
                _draw_copy(axes, (first[0] + _BOX, y + _BOX / 2), (x, y + _BOX / 2))
            first = first or (x, y)
        workers = 4 // len(copies)
        for place in range(workers):
            middle = start + across * (place + 0.5) / workers
            _draw_box(axes, (middle - 0.31, _WORKERS - 0.3), (0.62, 0.28), "worker", "worker")
            x, y = objects[place % count] if count > 1 else objects[0]
            axes.plot([middle, x + _BOX / 2], [_WORKERS - 0.02, y], color=INK, linewidth=1.2,
                      linestyle=(0, (1, 2)), zorder=1, gid="read")  # fmt: skip


def _draw_box(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], gid: str, words: str
) -> None:
    axes.add_patch(
        FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.06", zorder=2,
                       facecolor="#FFFFFF", edgecolor=MUTED, linewidth=0.9, gid=gid)
    )  # fmt: skip
    axes.text(corner[0] + size[0] / 2, corner[1] + size[1] / 2, words, zorder=3,
              **centred(8, INK))  # fmt: skip


def _draw_copy(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(_arrow(start, end, color=_COPY, linewidth=2.0, gid="copy"))


def _arrow(*ends: tuple[float, float], **style: Any) -> FancyArrowPatch:
    look: dict[str, Any] = {
        "arrowstyle": "-|>",
        "mutation_scale": 11,
        "shrinkA": 0,
        "shrinkB": 0,
        "zorder": 3,
    }
    return FancyArrowPatch(*ends, **(look | style))


def _bytes(count: float) -> str:
    return short_words(byte_words(count))


# Which task needs which --------------------------------------------------------------------------

_ROW, _TALL = 0.62, 0.36  # inches
_GAP, _CHARACTER = 0.5, 0.085  # inches between columns; of a character, at most
_CRITICAL: Final = PALETTE[0]
_Node = str | tuple[str, str]


def task_graph(
    tasks: Mapping[str, tuple[float, Sequence[str]]],
    *,
    critical: bool = False,
    title: str | None = None,
) -> Figure:
    """Draw which task needs the results of which tasks, and the seconds that each takes.

    `tasks` maps a name to its seconds and to the names of the tasks that it needs, which come
    before it. `critical` emphasises the critical path. See `dtlab.predict.scheduled`.
    Raises: ValueError as `dtlab.predict.critical_path`, and if there is nothing to draw.
    """
    longest, chain = critical_path(tasks)
    if not tasks:
        raise ValueError("task_graph: nothing to draw. Give it tasks.")
    places = _places(tasks)
    columns = max(column for _, column in places) + 1
    rows = 1 + 2 * max(places.values())
    labels = {
        name: f"{name}   {short_words(time_words(seconds))}"
        for name, (seconds, _) in tasks.items()
    }
    wide = max(1.0, 0.2 + _CHARACTER * max(map(len, labels.values())))
    heading = title or counted(len(tasks), "task")
    width = max(4.2, columns * (wide + _GAP), 0.3 + 0.1 * len(heading))
    height = rows * _ROW + 1.0
    below = "an arrow leads from a task to one that needs its result"
    if critical:
        below = f"bold: the critical path, {short_words(time_words(longest))}"
    figure = Figure(width, height)
    figure.heading(heading, below)
    axes = figure.sheet(0, 0, width, height)
    axes.set(xlim=(0, width), ylim=(0, height))
    middle = (height - 0.6) / 2
    at: dict[_Node, list[tuple[float, float]]] = defaultdict(list)
    for (node, column), row in places.items():
        at[node].append((0.25 + column * (wide + _GAP), middle + row * _ROW))
    steps = {*pairwise(chain)} if critical else set()
    for name, (_, needs) in tasks.items():
        ((x, y),) = at[name]
        on_path = critical and name in chain
        axes.add_patch(
            FancyBboxPatch(
                (x, y - _TALL / 2), wide, _TALL, boxstyle="round,pad=0,rounding_size=0.07",
                facecolor="#FFFFFF", edgecolor=_CRITICAL if on_path else MUTED, zorder=2,
                linewidth=2.4 if on_path else 0.9, gid=f"task {name}",
            )
        )  # fmt: skip
        axes.text(x + wide / 2, y, labels[name], zorder=4, **centred(9.5, INK))
        for need in needs:
            bends = [(left + side, row) for left, row in at[need, name] for side in (0, wide)]
            points = [(at[need][0][0] + wide, at[need][0][1]), *bends, (x, y)]
            bold = (need, name) in steps
            axes.add_patch(
                _arrow(
                    path=Path(points), color=_CRITICAL if bold else INK, gid="need",
                    linewidth=2.4 if bold else 1.0, alpha=1.0 if bold else 0.75,
                )
            )  # fmt: skip
    facts = [
        f"{name} takes {short_words(time_words(seconds))}"
        + (f" and needs {list_words(list(needs))}" if needs else "")
        for name, (seconds, needs) in tasks.items()
    ]
    figure.alt_text = f"{heading} ({below}). {'; '.join(facts)}."
    if critical:
        figure.alt_text += f" The critical path is {list_words(chain)}."
    return figure


def _places(tasks: Mapping[str, tuple[float, Sequence[str]]]) -> dict[tuple[_Node, int], float]:
    """Return the row of each node in its column, counted from the middle of the column.

    A node is a task, or an arrow (from, to) in a column that it crosses.
    """
    columns: dict[str, int] = {}
    for name, (_, needs) in tasks.items():
        columns[name] = max((columns[need] + 1 for need in needs), default=0)
    rows: dict[tuple[_Node, int], float] = {}
    for column in range(max(columns.values()) + 1):
        before: dict[_Node, Sequence[str]] = {}
        for name, (_, needs) in tasks.items():
            if columns[name] == column:
                before[name] = needs
            crossing = [need for need in needs if columns[need] < column < columns[name]]
            before |= {(need, name): [need] for need in crossing}
        nodes = list(before)
        if column:  # near the tasks that they need, to cross few arrows
            nodes.sort(key=lambda node: -fmean(rows[each, columns[each]] for each in before[node]))
        for number, node in enumerate(nodes):
            rows[node, column] = (len(nodes) - 1) / 2 - number
    return rows
