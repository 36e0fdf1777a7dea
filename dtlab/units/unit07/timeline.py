"""07/timeline: one grid to read, and one in which an action cannot run.

1F1B, three ranks, four microbatches:

    0F0 0F1 0F2  ·   ·  0B0 0F3 0B1  ·  0B2  ·  0B3
     ·  1F0 1F1  ·  1B0 1F2 1B1 1F3 1B2  ·  1B3  ·
     ·   ·  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  ·   ·

A row for each rank, a column for each step; every action takes one step. 2F0 is the forward pass
of microbatch 0 on stage 2; B a full backward pass, I the gradient of the input, W that of the
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import nan
from random import Random
from typing import Final, TypeAlias

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Question, Values
from dtlab.grading.questions.declared import asked, choice, number
from dtlab.schedules import Schedule, as_schedule, gpipe, interleaved, one_f_one_b, zb_h1, zb_h2
from dtlab.schedules.actions import clock

__all__ = ["PART", "SCHEDULES", "laid_out"]

# Schedules as grids of unit steps: laid out, checked, broken in one cell -------------------------

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


# The part ----------------------------------------------------------------------------------------

_SIZES: Final = {  # ranks and microbatches that a line has room for
    "gpipe": ((3, 4), (3, 5), (4, 4), (4, 5), (4, 6)),
    "1f1b": ((3, 4), (3, 5), (3, 6), (4, 4), (4, 5), (4, 6)),
    "interleaved": ((2, 2), (2, 4)),
    "zb_h1": ((3, 4), (3, 5), (4, 4), (4, 5)),
    "zb_h2": ((2, 4), (2, 5), (2, 6), (3, 5)),
}
_TO_BREAK: Final = ("gpipe", "1f1b", "zb_h1")
_BLANK: Final = "\u00a0"  # a browser keeps it


def _draw(draw: Random) -> Values:
    name = draw.choice(list(_SIZES))
    ranks, count = draw.choice(_SIZES[name])
    other = draw.choice([one for one in _TO_BREAK if one != name])
    return {
        "grid_a": laid_out(name, ranks, count),
        "grid_b": broken(laid_out(other, *draw.choice(_SIZES[other])), draw),
        "rank": draw.randrange(ranks),
        "more": ranks * draw.randrange(3, 7),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [*_lines("A", given["grid_a"]), *_lines("B", given["grid_b"])]


def _lines(name: str, grid: Grid) -> list[tuple[str, str]]:
    steps = [str(step) for step in range(len(grid[0]))]
    rows = [(f"{name}, step", steps)]
    rows += [(f"{name}, rank {rank}", cells) for rank, cells in enumerate(grid)]
    return [(label, f"`{_BLANK.join(map(_cell, cells))}`") for label, cells in rows]


def _cell(text: str) -> str:
    return f"{text or '·':^3}".replace(" ", _BLANK)


def _one_of(
    name: str,
    prompt: str,
    options: Mapping[str, str],
    right: Callable[[Values], str],
    hint: str,
    why: Mapping[str, str],
) -> Question:
    """Asks for a name that is read off a grid; `why` is said of each that is not the right one."""

    def unless_right(option: str) -> Callable[[Values], str]:
        return lambda given: "" if right(given) == option else option

    wrong = {unless_right(option): words for option, words in why.items()}
    return choice(name, prompt, options, right, hint, wrong)


PART = Part(
    "07/timeline",
    1,
    "Read a grid, find the impossible cell",
    9,
    3,
    asked(
        _draw,
        _rows,
        _one_of(
            "schedule",
            "grid A: which schedule it is",
            {
                "gpipe": "GPipe",
                "1f1b": "1F1B",
                "interleaved": "interleaved 1F1B",
                "zb_h1": "ZB-H1",
                "zb_h2": "ZB-H2",
            },
            schedule,
            "Look at what rank 0 does before its first backward, and at which letters there are.",
            {
                "gpipe": "there all forwards come before any backward.",
                "1f1b": "there backward is in one piece, and a rank has one stage, where F and B "
                "take turns.",
                "interleaved": "there a rank has more than one stage: 0 and p.",
                "zb_h1": "there backward is in two pieces, and rank 0 makes p forwards before the "
                "first one.",
                "zb_h2": "there backward is in two pieces, and rank 0 makes 2p - 1 forwards "
                "before the first one.",
            },
        ),
        number(
            "before",
            "grid A: forward passes that each rank makes before its first backward, as a list",
            before,
            "Count cells with an F in each row, up to the first `B` or `I`.",
            {
                "[one - 1 for one in answer]": "one fewer each: the forward right before the "
                "first backward counts as well.",
                first_backwards: "these are the steps in which the first backwards run. "
                "Empty cells do not count.",
            },
            exact=True,
        ),
        number(
            "peak",
            "grid A: how many forward passes rank {rank} has under way at its fullest",
            peak,
            "Go along the row: one more at each F, one fewer at each B, or each W where backward "
            "is in two pieces.",
            {
                "answer + 1": "one too many: has one been freed before the last one came in?",
                "answer - 1": "one too few: a backward pass needs what its forward has left, "
                "until it ends.",
                all_forwards: "these are all forward passes of the rank. What is freed on "
                "the way?",
            },
            exact=True,
        ),
        number(
            "idle",
            "grid A: empty cells of each rank from its first action to its last one, as a list",
            idle,
            "In each row: last step less first step, and one; less the cells that are filled.",
            {
                "[row.count('') for row in grid_a]": "these are all empty cells of a row. Those "
                "at its ends do not count.",
                "[one - 1 for one in answer]": "one too few in each row: first and last step "
                "count both.",
            },
            exact=True,
        ),
        number(
            "longer",
            "grid A: how many steps the same schedule would take with {more} microbatches",
            longer,
            "What does each further microbatch add, and what stays as it is?",
            {
                "steps * more / count": "this makes the bubble grow with the microbatches. Which "
                "part of the grid is longer with more of them?",
                "steps + more - count": "a microbatch adds more than one cell to each row.",
                "each * more": "and the bubble?",
            },
            exact=True,
            unit="steps",
        ),
        number(
            "cell",
            "grid B: rank and step of the action that cannot run there, as a list of two",
            "list(impossible(given)[0])",
            "For each action: has what it needs ended in an earlier step, and has it run before?",
            {
                waited_for: "this one can run: what it needs itself has ended. Who comes "
                "too soon, or again?",
                "answer[::-1]": "write the rank first.",
            },
            exact=True,
            points=2,
        ),
        _one_of(
            "reason",
            "grid B: why it cannot run there",
            REASONS,
            reason,
            "Go from its cell to the left, in its own row and in the rows above and below.",
            {
                "forward": "is it a forward pass, and what did the stage before do until then?",
                "backward": "is it a `B` or an `I`, and what did the stage after do until then?",
                "own": "read its own row from the left: what of that microbatch has the stage "
                "done?",
                "twice": "read its own row from the left: where else is it?",
            },
        ),
        where={
            "count_of": count,
            "impossible": impossible,
            "count": "count_of(given)",
            "steps": "len(grid_a[0])",
            "each": "sum(cell[2:] == '0' for cell in grid_a[0])",  # of a rank, for a microbatch
        },
    ),
)
