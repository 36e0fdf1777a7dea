"""Makes a valid notebook from whatever a learner handed in.

    what was handed in ──salvage──> the learner's cells ───┐
    what was handed out ──> graded cells, points, names ───┴─match──> places ──> a sound notebook

The learner's cells stay, word for word and in their order. Each graded cell is there once, as it
was handed out: where the learner has it, and never before the answer that it checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from typing import Any

import nbformat
from nbformat import NotebookNode

from dtlab.grading.mending.recognition import Match, Piece, Sheet, squeezed
from dtlab.grading.mending.salvage import Salvaged, salvage

__all__ = ["Mended", "mend"]

_Key = tuple[int, int, int]  # the place of a learner's cell; before, at or after it; the rank

_SAID = {
    "missing": "{} went missing; the released version stands in.",
    "gap": "{} could not be read; the released version stands in.",
    "named": "{} lacked the name under which it is graded; what the code defines tells it.",
    "repeated": "{} stood there more than once; the last one that is filled in counts.",
    "repeated check": "{} stood there more than once; one is left.",
    "changed": "{} had another text; the released one counts.",
    "marks": "{} had another name, kind, points or lock; the released ones count.",
    "moved": "{} stood above the answer, and moved below it.",
}


@dataclass(frozen=True)
class Mended:
    """A notebook that nbgrader can grade, and what had to be done for that.

    `notebook` is of format 4.5, without outputs, with the released graded cells; `notes` has a
    sentence for each thing that was wrong, for learner and instructor. `readable` is False where
    nothing of the file could be used: then the notebook is the released one.
    """

    notebook: NotebookNode
    notes: tuple[str, ...]
    readable: bool


def mend(submitted: bytes | None, released: NotebookNode) -> Mended:
    """Makes a sound notebook of a submitted file, None where there is none. Never raises.

    `released` is the assignment's notebook as learners got it.
    """
    kernel = str(released.metadata.get("kernelspec", {}).get("name", "python3"))
    salvaged = salvage(submitted, kernel)
    if not salvaged.cells:
        cells = [_as_released(cell) for cell in released.cells]
        return Mended(_notebook(cells, released), tuple(salvaged.notes), readable=False)
    match = Match(salvaged.cells, Sheet(released))
    places = _Places(match, salvaged.damaged)
    placed = [cell for _, cell in sorted(places.all(), key=lambda one: one[0])]
    cells = [_as_written(one, match) if isinstance(one, Piece) else one for one in placed]
    notes = [*salvaged.notes, *_notes(match, salvaged.damaged), *_rename(cells, match.sheet)]
    return Mended(_notebook(cells, released, salvaged), tuple(notes), readable=True)


class _Places:
    """Where each cell goes."""

    def __init__(self, match: Match, damaged: bool) -> None:
        self.match, self.sheet, self.said = match, match.sheet, match.said
        self.damaged = damaged
        self.end = len(match.pieces)
        self.found_at = {self.sheet.rank[name]: piece.place for name, piece in match.of.items()}
        plain = [piece for piece in reversed(match.pieces) if piece.role is None]
        by_text = {squeezed(piece.found.source): piece.place for piece in plain}
        by_id = {piece.found.id: piece.place for piece in plain}
        for rank, cell in enumerate(self.sheet.cells):
            place = by_id.get(cell.id, by_text.get(squeezed(cell.source)))
            if place is not None:
                self.found_at.setdefault(rank, place)

    def all(self) -> Iterator[tuple[_Key, NotebookNode | Piece]]:
        """All cells of the notebook, in no order, with keys to sort them by."""
        for piece in self.match.kept():
            yield (piece.place, 0, 0), piece
        for name, cell in self.sheet.known.items():
            if not self.sheet.is_own(name):
                yield self._of_locked(name), _as_released(cell)
            elif name not in self.match.of:
                yield self._of_blank(name), _as_released(cell)
        if self.damaged:
            yield from self._gaps()

    def _of_locked(self, name: str) -> _Key:
        """Where the learner has it, but not before its answer; else behind that; else last."""
        copy, rank = self.match.of.get(name), self.sheet.rank[name]
        answer = self.sheet.answer_to(name) if self.sheet.is_check(name) else None
        home = self._home(answer) if answer else -1
        if copy:
            if home > copy.place:
                self.said["moved"].append(name)
            return max(copy.place, home), 1, rank
        self.said["missing"].append(name)
        if home < 0:
            home = self.end if self.sheet.is_check(name) else self._behind_what_is_above(rank)
        return home, 1, rank

    def _home(self, answer: str) -> int:
        """The place of an answer; of what defines it where that cell does not. -1: nowhere."""
        held = self.match.of.get(answer)
        symbol = self.sheet.symbols[answer]
        if held and (symbol is None or symbol in held.defines):
            return held.place
        places = [piece.place for piece in self.match.defining(answer)]
        return max([*places, held.place if held else -1])

    def _of_blank(self, name: str) -> _Key:
        """Of an answer that is put back empty: before whatever may define it all the same."""
        self.said["missing"].append(name)
        rank = self.sheet.rank[name]
        if defining := self.match.defining(name):
            return defining[0].place, -1, rank
        checks = [
            one
            for one in self.sheet.known
            if self.sheet.is_check(one) and self.sheet.answer_to(one) == name
        ]
        copies = [self.match.of[check].place for check in checks if check in self.match.of]
        if checks and not copies:
            return self.end, 1, rank
        return self._behind_what_is_above(rank, min(copies, default=self.end)), 1, rank

    def _behind_what_is_above(self, rank: int, below: int | None = None) -> int:
        """The place of the nearest released cell above that the learner has too."""
        limit = self.end if below is None else below
        above = [one for one, place in self.found_at.items() if one < rank and place < limit]
        return self.found_at[max(above)] if above else -1

    def _gaps(self) -> Iterator[tuple[_Key, NotebookNode]]:
        """Code of a damaged file that came with the assignment, like imports, and went lost."""
        known = set(self.sheet.rank.values())
        for rank, cell in enumerate(self.sheet.cells[: max(self.found_at, default=0)]):
            if cell.cell_type == "code" and rank not in known and rank not in self.found_at:
                self.said["gap"].append(cell.id)
                yield (self._behind_what_is_above(rank), 1, rank), _as_released(cell)


def _as_released(cell: NotebookNode) -> NotebookNode:
    fresh = deepcopy(cell)
    if fresh.cell_type == "code":
        fresh.outputs, fresh.execution_count = [], None
    return fresh


def _as_written(piece: Piece, match: Match) -> NotebookNode:
    """A learner's cell; with the released name, kind and points where it has a role."""
    found, released = piece.found, match.sheet.known.get(piece.role or "")
    metadata = {key: value for key, value in found.metadata.items() if key != "nbgrader"}
    cell: dict[str, Any] = {"id": found.id or "", "cell_type": found.kind, "source": found.source}
    if released is not None:
        metadata["nbgrader"] = deepcopy(released.metadata.nbgrader)
        cell |= {"id": released.id, "cell_type": released.cell_type}
    if cell["cell_type"] == "code":
        cell |= {"outputs": [], "execution_count": None}
    elif found.attachments is not None:
        cell["attachments"] = found.attachments
    return nbformat.from_dict(cell | {"metadata": metadata})


def _rename(cells: list[NotebookNode], sheet: Sheet) -> Iterator[str]:
    """Gives an id to each cell that has none, or one that is another's; says of how many."""
    reserved = {cell.id for cell in sheet.known.values()}
    taken = reserved | {cell.id for cell in cells}
    fresh = (name for number in count(1) if (name := f"cell-{number}") not in taken)
    seen: set[str] = set()
    renamed = 0
    for cell in cells:
        if "nbgrader" not in cell.metadata and (cell.id in seen or cell.id in reserved | {""}):
            renamed += cell.id != ""
            cell.id = next(fresh)
        seen.add(cell.id)
    if renamed:
        yield f"{_amount(renamed)} had an id that another cell has, and got a new one."


def _notes(match: Match, damaged: bool) -> Iterator[str]:
    """What is to be said about the cells."""
    unheard = match.of.keys() <= set(match.said["named"])
    if match.sheet.known and unheard and not damaged:
        yield "The notebook has no graded cell of this assignment: is it another one's?"
        return
    for problem, sentence in _SAID.items():
        if names := match.said[problem]:
            yield sentence.format(_listed(names))
    if strangers := match.strangers():
        yield f"{_amount(strangers)} had a role that this assignment does not know, and lost it."


def _amount(number: int) -> str:
    return "One cell" if number == 1 else f"{number} cells"


def _listed(names: list[str]) -> str:
    """The cell 'a'; the cells 'a' and 'b'."""
    quoted = [repr(name) for name in names]
    if len(quoted) == 1:
        return f"The cell {quoted[0]}"
    return f"The cells {', '.join(quoted[:-1])} and {quoted[-1]}"


def _notebook(
    cells: list[NotebookNode], released: NotebookNode, salvaged: Salvaged | None = None
) -> NotebookNode:
    """A notebook of cells; its other parts are the released ones, and dtlab's own stamp."""
    metadata = deepcopy(dict(released.metadata))
    if salvaged and salvaged.stamp is not None:
        metadata.setdefault("dtlab", salvaged.stamp)
    parts = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    return nbformat.from_dict(parts)
