"""A schedule as text: a line per rank, a column per slot of the clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dtlab.schedules.actions import Row, as_schedule
from dtlab.schedules.clock import Clock, clock

__all__ = ["MOST", "grid"]

MOST = 60  # columns: what a page is wide


def grid(
    schedule: Iterable[Row],
    *,
    marked: Collection[tuple[int, int]] = (),
    most: int = MOST,
    times: Clock | None = None,
) -> str:
    """The schedule drawn as if each action took one slot.

    Actions `marked`, as (rank, index), stand in brackets. A grid of more than `most` columns is
    cut; what is shown then begins shortly before the first that is marked.
    """
    rows = as_schedule(schedule)
    slots = (times or clock(rows)).slots
    columns = max((row[-1] + 1 for row in slots if row), default=0)
    first, end = _window(columns, most, [slots[rank][index] for rank, index in marked])
    texts = [[""] * columns for _ in rows]
    for rank, row in enumerate(rows):
        for index, (action, slot) in enumerate(zip(row, slots[rank], strict=True)):
            if first <= slot < end:
                texts[rank][slot] = f"[{action}]" if (rank, index) in marked else str(action)
    width = max((len(text) for row in texts for text in row), default=1)
    names = [f"rank {rank}" for rank in range(len(rows))]
    left = max(map(len, names), default=0)
    heads = ["", *names]
    lines = [[str(slot) for slot in range(columns)], *texts]
    drawn = [
        f"{head:{left}} " + " ".join(f"{text:^{width}}" for text in line[first:end])
        for head, line in zip(heads, lines, strict=True)
    ]
    cut = f"\n(slots {first} to {end - 1} of {columns})" if end - first < columns else ""
    return "\n".join(line.rstrip() for line in drawn) + cut


def _window(columns: int, most: int, marked: list[int]) -> tuple[int, int]:
    """The columns that are shown, from the first to before the last."""
    start = min(marked, default=0) - most // 4
    first = max(0, min(start, columns - most))
    return first, min(columns, first + most)
