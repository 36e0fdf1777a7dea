"""Makes a valid notebook from any submitted file.

    submitted file ──salvage──> the learner's cells ───────────┐
    released notebook ──> graded cells, points, names ─────────┴─match──> places ──> valid notebook

The learner's cells stay unchanged and in their order. Each graded cell occurs once, in its
released form: at the learner's position, but never before the answer that it checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from typing import Any

import nbformat
from nbformat import NotebookNode

from dtlab.classroom.repair.needed import needed_cells
from dtlab.classroom.repair.recognition import Match, Piece, Sheet, squeezed
from dtlab.classroom.repair.salvage import Salvaged, salvage
from dtlab.classroom.repair.written import pointed_to_texts

__all__ = ["Repaired", "repair"]

_Key = tuple[int, int, int]  # the place of a learner's cell; before, at or after it; the rank

_MESSAGES = {  # messages by problem
    "missing": "{} went missing; the released version was inserted.",
    "gap": "{} could not be read; the released version was inserted.",
    "named": "{} lacked a name for grading, which was inferred from the code.",
    "repeated": "{} occurred more than once; the last one that is filled in counts.",
    "repeated check": "{} occurred more than once; the others were left out.",
    "changed": "{} had another text; the released one counts.",
    "marks": "{} had another name, kind, points or lock; the released ones count.",
    "blank copy": "A blank copy of {} was left out, since it would undo the answer.",
    "blank below": "{} was blank and stood below its answer; it was moved above it.",
    "needed": "{} went missing, and other cells need it; the released version was restored.",
    "moved": "{} stood above the answer, and was moved below it.",
}


@dataclass(frozen=True)
class Repaired:
    """A notebook that nbgrader can grade, with notes on the repairs.

    `notebook` has format 4.5, no outputs, and the released graded cells. `notes` has a sentence
    for each problem, for learner and instructor. If nothing in the file was usable, `readable` is
    False and the notebook is the released one.
    """

    notebook: NotebookNode
    notes: tuple[str, ...]
    readable: bool


def repair(submitted: bytes | None, released: NotebookNode) -> Repaired:
    """Makes a valid notebook from a submitted file, which is None if missing. Never raises.

    `released` is the assignment's notebook as learners got it.
    """
    kernel = str(released.metadata.get("kernelspec", {}).get("name", "python3"))
    salvaged = salvage(submitted, kernel)
    if not salvaged.cells:
        cells = [_as_released(cell) for cell in released.cells]
        return Repaired(_notebook(cells, released), tuple(salvaged.notes), readable=False)
    match = Match(salvaged.cells, Sheet(released))
    places = _Places(match, salvaged.damaged)
    placed = [cell for _, cell in sorted(places.all(), key=lambda entry: entry[0])]
    cells = [_as_written(cell, match) if isinstance(cell, Piece) else cell for cell in placed]
    notes = [*salvaged.notes, *_notes(match, salvaged.damaged), *_rename(cells, match.sheet)]
    notes += pointed_to_texts(cells, match, places.found_at)
    return Repaired(_notebook(cells, released, salvaged), tuple(notes), readable=True)


class _Places:
    """Computes the place of each cell in the repaired notebook."""

    def __init__(self, match: Match, damaged: bool) -> None:
        self.match, self.sheet, self.problems = match, match.sheet, match.problems
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
        """Yields all cells of the notebook, unsorted, with keys to sort them by."""
        for piece in self.match.kept():
            yield self._of_piece(piece), piece
        for name, cell in self.sheet.known.items():
            if not self.sheet.is_own(name):
                yield self._of_locked(name), _as_released(cell)
            elif name not in self.match.of:
                yield self._of_blank(name), _as_released(cell)
        yield from self._gaps() if self.damaged else self._needed()

    def _of_piece(self, piece: Piece) -> _Key:
        """Returns a learner's place of a cell; above the answer, for a blank that is below it."""
        answers = self.match.answered_by(piece.role) if piece.role in self.sheet.symbols else []
        if piece.role and answers and answers[0].place < piece.place:
            self.problems["blank below"].append(piece.role)
            return answers[0].place, -1, self.sheet.rank[piece.role]
        return piece.place, 0, 0

    def _of_locked(self, name: str) -> _Key:
        """Returns the place of a locked cell: the learner's, or a default, below the answer."""
        copy, rank = self.match.of.get(name), self.sheet.rank[name]
        answer = self.sheet.answer_to(name) if self.sheet.is_check(name) else None
        home = self._home(answer) if answer else -1
        if copy:
            if home > copy.place:
                self.problems["moved"].append(name)
            return max(copy.place, home), 1, rank
        self.problems["missing"].append(name)
        if home < 0:
            home = self.end if self.sheet.is_check(name) else self._place_above(rank)
        return home, 1, rank

    def _home(self, answer: str) -> int:
        """Returns the place of an answer, or of another cell that defines it, or -1."""
        held = self.match.of.get(answer)
        symbol = self.sheet.symbols[answer]
        if elsewhere := self.match.answered_by(answer):
            return elsewhere[-1].place
        if held and (symbol is None or symbol in held.defines):
            return held.place
        places = [piece.place for piece in self.match.defining(answer)]
        return max([*places, held.place if held else -1])

    def _of_blank(self, name: str) -> _Key:
        """Returns the place for a missing answer's blank: before any cell that defines it."""
        self.problems["missing"].append(name)
        rank = self.sheet.rank[name]
        if defining := self.match.defining(name):
            return defining[0].place, -1, rank
        checks = [
            check
            for check in self.sheet.known
            if self.sheet.is_check(check) and self.sheet.answer_to(check) == name
        ]
        copies = [self.match.of[check].place for check in checks if check in self.match.of]
        if checks and not copies:
            return self.end, 1, rank
        return self._place_above(rank, min(copies, default=self.end)), 1, rank

    def _place_above(self, rank: int, below: int | None = None) -> int:
        """Returns the place of the nearest released cell above that the learner also has.

        Only places before `below` count. Returns -1 if there is none.
        """
        limit = self.end if below is None else below
        above = [other for other, at in self.found_at.items() if other < rank and at < limit]
        return self.found_at[max(above)] if above else -1

    def _needed(self) -> Iterator[tuple[_Key, NotebookNode]]:
        """Yields released cells, such as imports, that the learner deleted but needs."""
        for needed in needed_cells(self.match):
            self.problems["needed"].append(needed.cell.id)
            cell = _as_released(needed.cell)
            if needed.rank in self.found_at:  # the learner changed the cell, and keeps it
                cell.id = f"{cell.id[:55]}-released"
            yield (self._place_above(needed.rank, needed.below), 1, needed.rank), cell

    def _gaps(self) -> Iterator[tuple[_Key, NotebookNode]]:
        """Yields released code, such as imports, that is missing from a damaged file."""
        known = set(self.sheet.rank.values())
        for rank, cell in enumerate(self.sheet.cells[: max(self.found_at, default=0)]):
            if cell.cell_type == "code" and rank not in known and rank not in self.found_at:
                self.problems["gap"].append(cell.id)
                yield (self._place_above(rank), 1, rank), _as_released(cell)


def _as_released(cell: NotebookNode) -> NotebookNode:
    fresh = deepcopy(cell)
    if fresh.cell_type == "code":
        fresh.outputs, fresh.execution_count = [], None
    return fresh


def _as_written(piece: Piece, match: Match) -> NotebookNode:
    """Returns a learner's cell, with the released name, kind and points if it has a role."""
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
    """Gives a new id to cells without an id or with another cell's id; yields a note."""
    reserved = {cell.id for cell in sheet.known.values()}
    taken = reserved | {cell.id for cell in cells}
    fresh = (name for number in count(1) if (name := f"cell-{number}") not in taken)
    used: set[str] = set()
    renamed = 0
    for cell in cells:
        if "nbgrader" not in cell.metadata and (cell.id in used or cell.id in reserved | {""}):
            renamed += cell.id != ""
            cell.id = next(fresh)
        used.add(cell.id)
    if renamed:
        yield f"{_amount(renamed)} had an id that another cell has, and got a new one."


def _notes(match: Match, damaged: bool) -> Iterator[str]:
    """Yields the notes on the cells."""
    unmatched = match.of.keys() <= set(match.problems["named"])
    if match.sheet.known and unmatched and not damaged:
        yield "The notebook has no graded cell of this assignment: is it from another assignment?"
        return
    for problem, sentence in _MESSAGES.items():
        if names := match.problems[problem]:
            yield sentence.format(_listed(names))
    if strangers := match.strangers():
        yield f"{_amount(strangers)} had a role that is not in this assignment; it was removed."


def _amount(number: int) -> str:
    return "One cell" if number == 1 else f"{number} cells"


def _listed(names: list[str]) -> str:
    """Returns "The cell 'a'" or "The cells 'a' and 'b'"."""
    quoted = [repr(name) for name in names]
    if len(quoted) == 1:
        return f"The cell {quoted[0]}"
    return f"The cells {', '.join(quoted[:-1])} and {quoted[-1]}"


def _notebook(
    cells: list[NotebookNode], released: NotebookNode, salvaged: Salvaged | None = None
) -> NotebookNode:
    """Builds a notebook from cells, with the released metadata and the submission's stamp."""
    metadata = deepcopy(dict(released.metadata))
    if salvaged and salvaged.stamp is not None:
        metadata.setdefault("dtlab", salvaged.stamp)
    parts = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    return nbformat.from_dict(parts)
