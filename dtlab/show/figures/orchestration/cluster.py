"""A figure of a simulated cluster: the jobs on each GPU over time, and the nodes that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from dtlab.predict.units import counted
from dtlab.show.drawing.style import COLOURS, INK, LANE, MUTED, SHEET, Figure, centred, edge
from dtlab.show.drawing.time_axis import time_axes

__all__ = ["JobBar", "cluster_lanes"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.75, 0.3, 0.95, 0.55  # inches around the lanes
_LANE, _NODES = 0.2, 0.12  # inches: height of a lane, extra gap between nodes
_JOB, _LOST, _DOWN = COLOURS["forward"], COLOURS["communication"], COLOURS["idle"]
_MINUTE: Final = 60.0  # seconds


class JobBar(NamedTuple):
    """A job on some GPUs, from `begin` to `end`; its progress is kept up to `kept`. In minutes.

    `finished` is False if a failure stopped it.
    """

    name: str
    gpus: Sequence[tuple[str, int]]
    begin: float
    kept: float
    end: float
    finished: bool = True


def cluster_lanes(
    nodes: Mapping[str, int],
    bars: Sequence[JobBar],
    down: Sequence[tuple[str, float, float]] = (),
    *,
    title: str = "Jobs on the cluster",
    note: str = "",
) -> Figure:
    """Draw a lane for each GPU: its jobs, the work lost by failures, and when its node was down.

    `nodes` maps the name of each node to its number of GPUs. `down` has a node's name and two
    minutes. A bar's orange part was computed after the last checkpoint, and is lost.
    """
    lanes = [(node, number) for node, count in nodes.items() for number in range(count)]
    gaps = list(nodes)
    height = _TOP + _BOTTOM + _LANE * len(lanes) + _NODES * (len(nodes) - 1)
    figure = Figure(9.6, height, alt_text=_alt_text(title, note, bars, down))
    figure.heading(title, note)
    box = (_LEFT, _BOTTOM, 9.6 - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
    end = max([bar.end for bar in bars] + [back for _, _, back in down], default=1.0)
    axes = time_axes(figure, box, _MINUTE * end, "the first job")
    _minutes(axes, end)
    tops = {
        (node, number): height - _TOP - _LANE * place - _NODES * gaps.index(node)
        for place, (node, number) in enumerate(lanes)
    }
    for (node, number), top in tops.items():
        axes.axhspan(top - _LANE + 0.02, top, color=LANE, linewidth=0, zorder=0)
        if number == 0:
            middle = top - _LANE * nodes[node] / 2
            axes.text(-0.01 * _MINUTE * end, middle, node, fontsize=9, color=INK, ha="right",
                      va="center")  # fmt: skip
    for node, begin, back in down:
        for number in range(nodes[node]):
            _box(axes, tops[node, number], begin, back, _DOWN, "////")
    for bar in bars:
        for gpu in bar.gpus:
            if gpu in tops:
                _draw(figure, axes, bar, tops[gpu])
    _legend(figure, height)
    return figure


def _draw(figure: Figure, axes: Axes, bar: JobBar, top: float) -> None:
    _box(axes, top, bar.begin, bar.kept, _JOB)
    _box(axes, top, bar.kept, bar.end, _LOST, "..")
    words = f"{bar.name}: minute {bar.begin:g} to {bar.end:g}"
    if not bar.finished:
        words += f", stopped by a failure; kept up to minute {bar.kept:g}"
    inches = axes.get_position().width * figure.get_size_inches()[0] / axes.get_xlim()[1]
    if (bar.kept - bar.begin) * _MINUTE * inches > 0.08 * len(bar.name) + 0.03:
        middle = (bar.begin + bar.kept) / 2 * _MINUTE
        axes.text(middle, top - _LANE / 2, bar.name, **centred(7.5, INK), zorder=4)
    left, right = bar.begin * _MINUTE, bar.end * _MINUTE
    figure.add_hint(axes, (left, right, top - _LANE, top), words)


def _box(axes: Axes, top: float, begin: float, end: float, fill: str, hatch: str = "") -> None:
    if end > begin:
        corner, width = (begin * _MINUTE, top - _LANE + 0.02), (end - begin) * _MINUTE
        axes.add_patch(_rectangle(corner, width, _LANE - 0.02, fill, hatch))


def _minutes(axes: Axes, end: float) -> None:
    """Label the axis in minutes, however long it is."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1e9) if end / s <= 10)
    ticks = [step * k for k in range(int(end // step) + 1)]
    axes.set_xticks([tick * _MINUTE for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set_xlabel("minutes", fontsize=8, color=MUTED)


def _legend(figure: Figure, height: float) -> None:
    axes = figure.sheet(0.15, height - 0.82, 9.3, 0.2)
    axes.set(xlim=(0, 9.3), ylim=(0, 0.2))
    entries = ((_JOB, "", "a job"), (_LOST, "..", "a job, lost with its node: after the last "
               "checkpoint"), (_DOWN, "////", "the node is down"))  # fmt: skip
    left = 0.0
    for fill, hatch, words in entries:
        axes.add_patch(_rectangle((left, 0.04), 0.22, 0.12, fill, hatch))
        axes.text(left + 0.3, 0.1, words, fontsize=8, color=MUTED, va="center")
        left += 0.6 + 0.052 * len(words)


def _rectangle(
    corner: tuple[float, float], width: float, height: float, fill: str, hatch: str
) -> Rectangle:
    line = SHEET if hatch else edge(fill)
    return Rectangle(
        corner, width, height, facecolor=fill, edgecolor=line, hatch=hatch, linewidth=0.6, zorder=3
    )


def _alt_text(
    title: str, note: str, bars: Sequence[JobBar], down: Sequence[tuple[str, float, float]]
) -> str:
    jobs = [
        f"{bar.name} on {counted(len(bar.gpus), 'GPU')} from minute {bar.begin:g} to {bar.end:g}"
        + (" (stopped by a failure)" if not bar.finished else "")
        for bar in bars
    ]
    nodes = [f"{node} is down from minute {begin:g} to {back:g}" for node, begin, back in down]
    return f"{'. '.join(filter(None, [title, note, *jobs, *nodes]))}."
