"""07/timeline: read the grid of a schedule, and find the impossible action in another one.

1F1B, three ranks, four microbatches:

    0F0 0F1 0F2  ·   ·  0B0 0F3 0B1  ·  0B2  ·  0B3
     ·  1F0 1F1  ·  1B0 1F2 1B1 1F3 1B2  ·  1B3  ·
     ·   ·  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  ·   ·

There is a row for each rank and a column for each step; every action takes one step. 2F0 is the
forward pass of microbatch 0 on stage 2; B is a full backward pass, I the gradient of the input, W
that of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import nan
from random import Random
from typing import Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.declared import asked, choice, formula, number
from dtlab.predict import peak_in_flight
from dtlab.schedules import Schedule, as_schedule, gpipe, interleaved, one_f_one_b, zb_h1, zb_h2
from dtlab.schedules.actions import clock

Grid = list[list[str]]  # rows of actions; a cell in which nothing runs is empty
Cell = tuple[int, int]  # rank and step

SCHEDULES: Final[dict[str, Callable[[int, int], Schedule]]] = {  # for p ranks, m microbatches
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": partial(interleaved, num_chunks=2),
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
}
_ZERO_BUBBLE: Final = ((2, 4), (2, 5), (2, 6), (3, 5))  # m >= 2p - 1: H1 and H2 differ on rank 0
_SIZES: Final = {  # ranks and microbatches whose grid fits on a line
    "gpipe": ((3, 4), (3, 5), (4, 4), (4, 5), (4, 6)),
    "1f1b": ((3, 4), (3, 5), (3, 6), (4, 4), (4, 5), (4, 6)),
    "interleaved": ((2, 2), (2, 4)),
    "zb_h1": _ZERO_BUBBLE,
    "zb_h2": _ZERO_BUBBLE,
}
_TO_BREAK: Final = ("gpipe", "1f1b", "zb_h1")
_REASONS: Final = {
    "forward": "the stage before has not ended its forward pass of that microbatch",
    "backward": "the stage after has not ended its backward pass of that microbatch",
    "own": "its own stage has not ended what comes first: F before B or I, I before W",
    "twice": "it has run before",
}

# Grid A, which is valid --------------------------------------------------------------------------


def laid_out(name: str, ranks: int, count: int) -> Grid:
    """The grid of a schedule in which each action runs as early as possible."""
    schedule = SCHEDULES[name](ranks, count)
    slots = clock(schedule).slots
    grid: Grid = [[""] * (1 + max(row[-1] for row in slots)) for _ in slots]
    for cells, actions, places in zip(grid, schedule, slots, strict=True):
        for action, slot in zip(actions, places, strict=True):
            cells[slot] = str(action)
    return grid


def _actions(grid: Grid) -> Schedule:
    return as_schedule([[cell for cell in row if cell] for row in grid])


def _name(grid: Grid) -> str:
    """The name of the schedule that a grid shows."""
    actions = _actions(grid)
    count = 1 + max(action.microbatch for action in actions[0])
    return next(name for name, make in SCHEDULES.items() if actions == make(len(grid), count))


def _first_backward(row: list[str]) -> int:
    return next(step for step, cell in enumerate(row) if cell[1:2] in ("B", "I"))


def _idle(row: list[str]) -> int:
    """The number of empty cells between the first and the last action."""
    steps = [step for step, cell in enumerate(row) if cell]
    return steps[-1] + 1 - steps[0] - len(steps)


# Grid B, in which one action cannot run ----------------------------------------------------------


def _needs(action: str, last: int) -> Iterator[tuple[str, str]]:
    """Yields each action that must end before this one, and the reason if it has not."""
    stage, kind, microbatch = int(action[0]), action[1], action[2:]
    if kind == "F" and stage > 0:
        yield f"{stage - 1}F{microbatch}", "forward"
    if kind in "BI" and stage < last:
        yield f"{stage + 1}{kind}{microbatch}", "backward"
    if kind in "BIW":
        yield f"{stage}{'I' if kind == 'W' else 'F'}{microbatch}", "own"


def _faults(grid: Grid) -> dict[Cell, str]:
    """The cells whose action cannot run in their step, with the reason, or all of them."""
    faults: dict[Cell, str] = {}
    ended: set[str] = set()
    for step, column in enumerate(zip(*grid, strict=True)):
        for rank, cell in enumerate(column):
            needs = _needs(cell, len(grid) - 1) if cell else ()
            reasons = ["twice"] * (cell in ended) + [
                why for need, why in needs if need not in ended
            ]
            if reasons:
                faults[rank, step] = " and ".join(reasons)
        ended.update(filter(None, column))
    return faults


def _broken(grid: Grid, draw: Random) -> Grid:
    """A copy with one impossible action: two cells of a rank are exchanged, or one is doubled.

    Of three such exchanges, the one between the nearest cells is taken.
    """
    wanted = draw.choice(list(_REASONS))
    candidates: list[tuple[int, Grid]] = []
    while len(candidates) < 3:
        rank = draw.randrange(len(grid))
        here, there = draw.sample(range(len(grid[0])), 2)
        row = list(grid[rank])
        if not row[here] or (wanted == "twice" and row[there]):
            continue
        row[here], row[there] = row[here] if wanted == "twice" else row[there], row[here]
        tried = [row if number == rank else list(grid[number]) for number in range(len(grid))]
        if list(_faults(tried).values()) == [wanted] and any(row[-1] for row in tried):
            candidates.append((abs(here - there), tried))
    return candidates[0][1] if wanted == "twice" else min(candidates)[1]


def _impossible(grid: Grid) -> tuple[Cell, str]:
    """The cell whose action cannot run, and the reason."""
    ((cell, why),) = _faults(grid).items()
    return cell, why


def _waited_for(grid: Grid) -> list[int]:
    """The cell of the action that the impossible one needs; of a doubled one, its first run."""
    (rank, step), why = _impossible(grid)
    action = grid[rank][step]
    if why != "twice":
        action = next(need for need, whose in _needs(action, len(grid) - 1) if whose == why)
    first, rank = min((row.index(action), rank) for rank, row in enumerate(grid) if action in row)
    return [rank, first]


# The part ----------------------------------------------------------------------------------------


def _draw(draw: Random) -> Values:
    name = draw.choice(list(_SIZES))
    ranks, count = draw.choice(_SIZES[name])
    other = draw.choice([each for each in _TO_BREAK if each != name])
    return {
        "grid_a": laid_out(name, ranks, count),
        "grid_b": _broken(laid_out(other, *draw.choice(_SIZES[other])), draw),
        "rank": draw.randrange(ranks),
        "more": ranks * draw.randrange(3, 7),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, grid in (("A", given["grid_a"]), ("B", given["grid_b"])):
        lines = {"step": map(str, range(len(grid[0])))}
        lines |= {f"rank {rank}": cells for rank, cells in enumerate(grid)}
        for label, cells in lines.items():
            text = " ".join(f"{cell or '·':^3}" for cell in cells)
            rows.append(  # with spaces that browsers keep
                (f"{name}, {label}", f"`{text}`".replace(" ", "\u00a0"))
            )
    return rows


def _one_of(
    name: str,
    prompt: str,
    options: Mapping[str, str],
    right: str,
    hint: str,
    why: Mapping[str, str],
) -> Question:
    """Makes a question with names as options; `why` has a hint for each wrong name."""
    wrong = {
        formula(f"'' if {right} == {option!r} else {option!r}"): words
        for option, words in why.items()
    }
    return choice(name, prompt, options, formula(right), hint, wrong)


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
            "grid A: which schedule is it",
            {
                "gpipe": "GPipe",
                "1f1b": "1F1B",
                "interleaved": "interleaved 1F1B",
                "zb_h1": "ZB-H1",
                "zb_h2": "ZB-H2",
            },
            "schedule",
            "Look at what rank 0 does before its first backward, and at which letters occur.",
            {
                "gpipe": "there all forwards come before any backward.",
                "1f1b": "there backward is in one piece, and on a rank's one stage F and B "
                "alternate.",
                "interleaved": "there a rank has more than one stage: 0 and p.",
                "zb_h1": "there backward is in two pieces, and rank 0 first does p forwards.",
                "zb_h2": "there backward is in two pieces, and rank 0 first does 2p - 1 forwards.",
            },
        ),
        number(
            "before",
            "grid A: forward passes that each rank makes before its first backward, as a list",
            "[sum(map(bool, row[: first(row)])) for row in grid_a]",
            "Count cells with an F in each row, up to the first `B` or `I`.",
            {
                "[count - 1 for count in answer]": "each is one too few: the forward before the "
                "first backward counts as well.",
                "[first(row) for row in grid_a]": "these are the steps in which the first "
                "backwards run. Empty cells do not count.",
            },
            exact=True,
        ),
        number(
            "peak",
            "grid A: the most forward passes that rank {rank} has in flight at once",
            "peak_in_flight(actions)[rank]",
            "Go along the row: one more at each F, one fewer at each B, or at each W if backward "
            "is in two pieces.",
            {
                "answer + 1": "one too many: is a microbatch freed before the last one begins?",
                "answer - 1": "one too few: until a backward pass ends, it needs what its forward "
                "pass has stored.",
                "forwards if forwards > answer + 1 else nan": "these are all forward passes of "
                "the rank. Which are freed in between?",
            },
            exact=True,
        ),
        number(
            "idle",
            "grid A: empty cells of each rank from its first action to its last one, as a list",
            "[idle_in(row) for row in grid_a]",
            "In each row: last step minus first step, plus one, minus the cells that are filled.",
            {
                "[row.count('') for row in grid_a]": "these are all empty cells of a row. Those "
                "at its ends do not count.",
                "[count - 1 for count in answer]": "one too few in each row: both the first and "
                "the last step count.",
            },
            exact=True,
        ),
        number(
            "longer",
            "grid A: how many steps the same schedule would take with {more} microbatches",
            "len(laid_out(schedule, len(grid_a), more)[0])",
            "What does each further microbatch add, and what stays as it is?",
            {
                "steps * more / count": "this makes the bubble grow with the microbatches. Which "
                "part of the grid is longer with more of them?",
                "steps + more - count": "a microbatch adds more than one cell to each row.",
                "each * more": "what about the bubble?",
            },
            exact=True,
            unit="steps",
        ),
        number(
            "cell",
            "grid B: rank and step of the action that cannot run there, as a list of two",
            "list(impossible[0])",
            "For each action: did what it needs end in an earlier step, and did it run before?",
            {
                "waited_for(grid_b)": "this action can run: what it needs has ended. Which action "
                "runs too early, or twice?",
                "answer[::-1]": "write the rank first.",
            },
            exact=True,
            points=2,
        ),
        _one_of(
            "reason",
            "grid B: why it cannot run there",
            _REASONS,
            "impossible[1]",
            "Look to the left of its cell, in its own row and in the rows above and below.",
            {
                "forward": "is it a forward pass, and what did the stage before do until then?",
                "backward": "is it a `B` or an `I`, and what did the stage after do until then?",
                "own": "read its own row from the left: which actions of that microbatch came "
                "before?",
                "twice": "read its own row from the left: where else is it?",
            },
        ),
        where={
            "nan": nan,
            "laid_out": laid_out,
            "peak_in_flight": peak_in_flight,
            "first": _first_backward,
            "idle_in": _idle,
            "waited_for": _waited_for,
            "actions_of": _actions,
            "name_of": _name,
            "impossible_of": _impossible,
            "actions": "actions_of(grid_a)",
            "schedule": "name_of(grid_a)",
            "impossible": "impossible_of(grid_b)",
            "steps": "len(grid_a[0])",
            "forwards": "sum(action.kind == 'F' for action in actions[0])",
            "count": "1 + max(action.microbatch for action in actions[0])",
            "each": "sum(action.microbatch == 0 for action in actions[0])",  # for a microbatch
        },
    ),
)
