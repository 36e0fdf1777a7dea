"""Where the steps of a training loop begin and end in a trace, and which of them can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dtlab.profiling.replay import is_input
from dtlab.trace.columns import COMPUTE, MARK, Columns, Floats, Ints

__all__ = ["find_steps", "readable_steps"]

_FEW: Final = 0.05  # share of the events; if so few have no times, no verdict changes


def find_steps(columns: Columns, ranks: Sequence[int]) -> tuple[str, Floats]:
    """The span that marks steps, "" if there is none, and the borders of each rank's steps."""
    names = np.array([_marker(name) for name in columns.names], dtype=object)[columns.name]
    spans = np.isin(columns.role, (COMPUTE, MARK))
    for marker in ("ProfilerStep", "step", "optimizer", "input", "forward"):
        marks = [np.flatnonzero(spans & (names == marker) & (columns.rank == r)) for r in ranks]
        count = min(map(len, marks))  # a profiler may stop in the middle of a step
        if not count or "microbatch" in columns.extras[marks[0][0]]:  # several in a step
            continue
        borders = []
        for rank, every in zip(ranks, marks, strict=True):
            rows = every[:count]
            mine = columns.rank == rank
            first, last = columns.start[mine].min(), columns.end[mine].max()
            if marker == "optimizer":
                borders.append([first, *columns.end[rows]])
            else:
                whole = marker in ("ProfilerStep", "step")
                last = columns.end[rows].max() if whole else last
                borders.append([*columns.start[rows], last])
        return marker, np.maximum.accumulate(np.array(borders), axis=1)
    events = [np.flatnonzero(columns.rank == rank) for rank in ranks]
    return "", np.array([(columns.start[mine].min(), columns.end[mine].max()) for mine in events])


def _marker(name: str) -> str:
    """The kind of step marker that a span with this name is."""
    if name.startswith("ProfilerStep"):
        return "ProfilerStep"
    if name.startswith("Optimizer.step"):
        return "optimizer"
    return "input" if is_input(name) else name


def readable_steps(columns: Columns, ranks: Sequence[int], borders: Floats) -> tuple[Ints, int]:
    """The steps without events whose times cannot be read, and how many prevent a verdict.

    The steps are all steps if each of them has such an event.
    """
    faulty: list[int] = []  # the step of each event whose place is known
    anywhere, steps = 0, borders.shape[1] - 1
    for row in np.flatnonzero(columns.role == MARK).tolist():
        extra = columns.extras[row]
        if extra.get("anywhere"):
            anywhere += 1
        elif extra.get("unreadable"):
            mine = borders[list(ranks).index(int(columns.rank[row]))]
            step = int(np.searchsorted(mine, columns.start[row], side="right")) - 1
            faulty += [step] * (0 <= step < steps)
    good = np.array([step for step in range(steps) if step not in faulty], dtype=np.int64)
    lost = anywhere if len(good) else anywhere + len(faulty)
    lost = lost if lost > _FEW * np.count_nonzero(columns.role != MARK) else 0
    return (good if len(good) else np.arange(steps)), lost
