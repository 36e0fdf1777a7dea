"""Schedules as grids of unit steps: laid out, checked, broken in one cell.

1F1B, three ranks, four microbatches:

    0F0 0F1 0F2  ·   ·  0B0 0F3 0B1  ·  0B2  ·  0B3
     ·  1F0 1F1  ·  1B0 1F2 1B1 1F3 1B2  ·  1B3  ·
     ·   ·  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  ·   ·

A row for each rank, a column for each step; every action takes one step. 2F0 is the forward pass
of microbatch 0 on stage 2; B a full backward pass, I the gradient of the input, W that of the
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Final, TypeAlias

from dtlab.schedules import Schedule, gpipe, interleaved, one_f_one_b, zb_h1, zb_h2
from dtlab.schedules.clock import clock

__all__ = ["REASONS", "SCHEDULES", "Cell", "Grid", "broken", "faults", "in_flight", "laid_out",
           "needs", "place"]  # fmt: skip

Grid: TypeAlias = list[list[str]]
"""Rows of actions; a cell in which nothing runs is empty."""
Cell: TypeAlias = tuple[int, int]
"""Rank and step."""

REASONS: Final = {
    "forward": "the stage before has not ended its forward pass of that microbatch",
    "backward": "the stage after has not ended its backward pass of that microbatch",
    "own": "its own stage has not ended what comes first: F before B or I, I before W",
    "twice": "it has run before",
}

_TRIES: Final = 3  # of which the least conspicuous one is taken


SCHEDULES: Final[dict[str, Callable[[int, int], Schedule]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": partial(interleaved, num_chunks=2),
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
}
"""For so many ranks and microbatches."""


# Grids -----------------------------------------------------------------------------------------


def laid_out(name: str, ranks: int, count: int) -> Grid:
    """The grid of a schedule in which each action runs as early as it can."""
    schedule = SCHEDULES[name](ranks, count)
    slots = clock(schedule).slots
    grid: Grid = [[""] * (1 + max(row[-1] for row in slots)) for _ in slots]
    for cells, actions, places in zip(grid, schedule, slots, strict=True):
        for action, slot in zip(actions, places, strict=True):
            cells[slot] = str(action)
    return grid


def needs(action: str, last: int) -> Iterator[tuple[str, str]]:
    """What has to end before an action can run, each with the reason for which it cannot."""
    stage, kind, microbatch = int(action[0]), action[1], action[2:]
    if kind == "F" and stage > 0:
        yield f"{stage - 1}F{microbatch}", "forward"
    if kind in "BI" and stage < last:
        yield f"{stage + 1}{kind}{microbatch}", "backward"
    if kind in "BIW":
        yield f"{stage}{'I' if kind == 'W' else 'F'}{microbatch}", "own"


def _missing(action: str, last: int, ended: set[str]) -> str:
    """Why an action cannot run; empty if it can."""
    return next((why for needed, why in needs(action, last) if needed not in ended), "")


def faults(grid: Grid) -> dict[Cell, str]:
    """The cells whose action cannot run in their step, with the reason."""
    last = max(int(cell[0]) for row in grid for cell in row if cell)
    found: dict[Cell, str] = {}
    ended: set[str] = set()
    for step, column in enumerate(zip(*grid, strict=True)):
        for rank, cell in enumerate(column):
            why = "twice" if cell in ended else _missing(cell, last, ended) if cell else ""
            if cell and why:
                found[rank, step] = why
        ended.update(filter(None, column))
    return found


def broken(grid: Grid, draw: Random) -> Grid:
    """A copy in which one action cannot run: two cells of a rank exchanged, or one doubled."""
    wanted = draw.choice(list(REASONS))
    found: list[tuple[int, Grid]] = []
    while len(found) < _TRIES:
        rank = draw.randrange(len(grid))
        here, there = draw.sample(range(len(grid[0])), 2)
        row = list(grid[rank])
        if not row[here] or (wanted == "twice" and row[there]):
            continue
        row[here], row[there] = row[here] if wanted == "twice" else row[there], row[here]
        tried = [row if one == rank else list(grid[one]) for one in range(len(grid))]
        if list(faults(tried).values()) == [wanted] and any(row[-1] for row in tried):
            found.append((abs(here - there), tried))
    return found[0][1] if wanted == "twice" else min(found)[1]


def place(grid: Grid, action: str) -> Cell:
    """Where an action runs first."""
    return min(
        ((rank, row.index(action)) for rank, row in enumerate(grid) if action in row),
        key=lambda cell: cell[1],
    )


def in_flight(row: Sequence[str]) -> list[int]:
    """After each step, how many forward passes of a rank have left what is still to be used."""
    split = any(cell[1:2] == "W" for cell in row)
    freed = "W" if split else "B"
    counts, now = [], 0
    for cell in row:
        now += {"F": 1, freed: -1}.get(cell[1:2], 0)
        counts.append(now)
    return counts
