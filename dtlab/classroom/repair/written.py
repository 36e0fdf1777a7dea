"""Finds what a learner wrote outside the cell for a text that a person grades.

    ## Part 5: defend your plan        (released)
    **The plan:**                      (the cell for the answer, as released)
    The plan is stage 2, because ...   (a new cell)  ──> a person must read this

nbgrader gives 0 points to such a cell if it is unchanged, without showing it to a person. So a
sentence is added to the cell: nbgrader then asks a person for points, who finds the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from nbformat import NotebookNode

from dtlab.classroom.repair.recognition import Match, Piece, squeezed

__all__ = ["pointed_to_texts"]

_HEADING = re.compile(r"\s*#{1,3} ")
_LONGEST = 40  # characters of a text in a note
_POINTER = (
    "\n\n> *Nothing was written in this cell, but the learner wrote in {} of this part. A person "
    "must read it as the answer.*"
)


def pointed_to_texts(
    cells: list[NotebookNode], match: Match, found_at: Mapping[int, int]
) -> Iterator[str]:
    """Adds a sentence to unchanged cells for texts if the text is elsewhere; yields notes.

    `cells` are those of the repaired notebook; `found_at` has the places of released cells.
    """
    for name, released in match.sheet.known.items():
        by_hand = released.metadata.nbgrader.get("grade") and match.sheet.is_own(name)
        if not by_hand or released.cell_type != "markdown":
            continue
        cell = next(cell for cell in cells if cell.id == released.id)
        texts = [*_texts(match, found_at, match.sheet.rank[name])]
        if cell.source != released.source or not texts:
            continue
        number = "one other cell" if len(texts) == 1 else f"{len(texts)} other cells"
        cell.source += _POINTER.format(number)
        begins = ", ".join(f'"{_beginning(piece)}"' for piece in texts[:3])
        more = ", ..." * (len(texts) > 3)
        has = "has" if len(texts) == 1 else "have"
        yield (
            f"The cell {name!r} was left as released, but {number} of its part {has} text of the "
            f"learner ({begins}{more}). So a person grades this part."
        )


def _texts(match: Match, found_at: Mapping[int, int], rank: int) -> Iterator[Piece]:
    """Yields the learner's cells with text in the part of the released cell at `rank`.

    Text cells below the last released cell count too.
    """
    first, last = _section(match, rank)
    rank_of = {place: rank for rank, place in found_at.items()}
    bottom = max(found_at.values(), default=-1)
    released = {squeezed(cell.source) for cell in match.sheet.cells}
    above = -1  # the rank of the nearest released cell above
    for piece in match.pieces:
        above = rank_of.get(piece.place, above)
        here = first <= above < last
        at_end = piece.place > bottom and piece.found.kind != "code"
        text = squeezed(piece.found.source)
        if piece.role is None and text and text not in released and (here or at_end):
            yield piece


def _section(match: Match, rank: int) -> tuple[int, int]:
    """Returns the first rank of a part, and the first one after it."""
    cells = match.sheet.cells
    heads = [
        place
        for place, cell in enumerate(cells)
        if cell.cell_type == "markdown" and _HEADING.match(cell.source)
    ]
    bounds = pairwise([0, *heads, len(cells)])
    return next(bound for bound in bounds if bound[0] <= rank < bound[1])


def _beginning(piece: Piece) -> str:
    line = " ".join(piece.found.source.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
