"""What is read from the grids of 07/timeline: A, which can run, and B, which cannot."""

from __future__ import annotations

from math import nan

from dtlab.grading.questions.answers import Values
from dtlab.schedules import as_schedule
from dtlab.units.unit07.grids import (
    SCHEDULES,
    Cell,
    faults,
    in_flight,
    laid_out,
    needs,
    place,
)

__all__ = ["all_forwards", "before", "count", "first_backwards", "idle", "impossible", "longer",
           "peak", "reason", "schedule", "waited_for"]  # fmt: skip


# Grid A ----------------------------------------------------------------------------------------


def count(given: Values) -> int:
    """Microbatches of grid A."""
    return 1 + max(int(cell[2:]) for cell in given["grid_a"][0] if cell)


def schedule(given: Values) -> str:
    """Which schedule grid A is."""
    grid, microbatches = given["grid_a"], count(given)
    actions = as_schedule([[cell for cell in row if cell] for row in grid])
    return next(
        name for name, make in SCHEDULES.items() if actions == make(len(grid), microbatches)
    )


def _first_backward(row: list[str]) -> int:
    return next(step for step, cell in enumerate(row) if cell[1:2] in ("B", "I"))


def first_backwards(given: Values) -> list[int]:
    """The steps in which the ranks begin with backward passes."""
    return list(map(_first_backward, given["grid_a"]))


def before(given: Values) -> list[int]:
    """Forwards of each rank before its first backward."""
    return [sum(map(bool, row[: _first_backward(row)])) for row in given["grid_a"]]


def peak(given: Values) -> int:
    """Forward passes that the drawn rank has under way at its fullest."""
    return max(in_flight(given["grid_a"][given["rank"]]))


def idle(given: Values) -> list[int]:
    """Empty cells of each rank between its first and its last action."""
    found = []
    for row in given["grid_a"]:
        steps = [step for step, cell in enumerate(row) if cell]
        found.append(steps[-1] + 1 - steps[0] - len(steps))
    return found


def longer(given: Values) -> int:
    """Steps with more microbatches."""
    return len(laid_out(schedule(given), len(given["grid_a"]), given["more"])[0])


def all_forwards(given: Values) -> float:
    """All forward passes of a rank, where they are clearly more than it has under way."""
    forwards = sum(cell[1:2] == "F" for cell in given["grid_a"][0])
    return forwards if forwards > peak(given) + 1 else nan


# Grid B ----------------------------------------------------------------------------------------


def impossible(given: Values) -> tuple[Cell, str]:
    """The cell of grid B that cannot run, and the reason."""
    ((cell, why),) = faults(given["grid_b"]).items()
    return cell, why


def waited_for(given: Values) -> list[int]:
    """The cell of what the impossible action needs; of a doubled one, the first time it runs."""
    grid = given["grid_b"]
    (rank, step), why = impossible(given)
    action = grid[rank][step]
    if why == "twice":
        return list(place(grid, action))
    last = len(grid) - 1
    return list(place(grid, next(one for one, whose in needs(action, last) if whose == why)))


def reason(given: Values) -> str:
    """Why it cannot run."""
    return impossible(given)[1]
