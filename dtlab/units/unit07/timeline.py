"""07/timeline: one grid to read, and one in which an action cannot run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Question, Values
from dtlab.grading.questions.declared import asked, choice, number
from dtlab.units.unit07 import reading
from dtlab.units.unit07.grids import REASONS, Grid, broken, laid_out

__all__ = ["PART"]

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
            reading.schedule,
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
            reading.before,
            "Count cells with an F in each row, up to the first `B` or `I`.",
            {
                "[one - 1 for one in answer]": "one fewer each: the forward right before the "
                "first backward counts as well.",
                reading.first_backwards: "these are the steps in which the first backwards run. "
                "Empty cells do not count.",
            },
            exact=True,
        ),
        number(
            "peak",
            "grid A: how many forward passes rank {rank} has under way at its fullest",
            reading.peak,
            "Go along the row: one more at each F, one fewer at each B, or each W where backward "
            "is in two pieces.",
            {
                "answer + 1": "one too many: has one been freed before the last one came in?",
                "answer - 1": "one too few: a backward pass needs what its forward has left, "
                "until it ends.",
                reading.all_forwards: "these are all forward passes of the rank. What is freed on "
                "the way?",
            },
            exact=True,
        ),
        number(
            "idle",
            "grid A: empty cells of each rank from its first action to its last one, as a list",
            reading.idle,
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
            reading.longer,
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
            "list(reading.impossible(given)[0])",
            "For each action: has what it needs ended in an earlier step, and has it run before?",
            {
                reading.waited_for: "this one can run: what it needs itself has ended. Who comes "
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
            reading.reason,
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
            "reading": reading,
            "count": "reading.count(given)",
            "steps": "len(grid_a[0])",
            "each": "sum(cell[2:] == '0' for cell in grid_a[0])",  # of a rank, for a microbatch
        },
    ),
)
