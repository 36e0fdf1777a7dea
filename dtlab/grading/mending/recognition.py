"""Matches a learner's cells with the cells that nbgrader knows.

equal to a locked cell > grade_id > cell id > defines what a lost answer should define
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nbformat import NotebookNode

from dtlab.grading.mending.found import Found

__all__ = ["Match", "Piece", "Sheet", "squeezed"]

# What code defines at its margin, by its looks: a parser stops at magics and half-written code,
# and a hostile text can crash it. All of it is bounded, so that no text takes long.
_POINTS = re.compile(r", points=[\d.]+\)")
_DEFINED = re.compile(
    r"^(?:(?:async[ \t]+)?(?:def|class)[ \t]+(\w++)"
    r"|(\w++)[ \t]*+(?::[^=\n]{1,200})?=(?!=)"
    r"|(\([\w ,*]*+\)[ \t]*+|\w[\w ,*]*+)=(?!=)"
    r"|(?:from[ \t]+[\w.]++[ \t]+)?import\b([ \t]*+\([^)]{0,2000}\)|[^\n#]*+))",
    re.MULTILINE,
)


class Sheet:
    """An assignment's notebook as it was handed out: the authority on all that is graded.

    `known` has the cells with a role by their grade_id, in their order; `rank` says where.
    """

    def __init__(self, released: NotebookNode) -> None:
        self.cells: list[NotebookNode] = released.cells
        self.known: dict[str, NotebookNode] = {}
        self.rank: dict[str, int] = {}
        for rank, cell in enumerate(self.cells):
            if _has_role(marks := _marks_of(cell)):
                self.known[marks["grade_id"]] = cell
                self.rank[marks["grade_id"]] = rank
        self._ids = {cell.id: name for name, cell in self.known.items()}
        self._locked: dict[str, list[str]] = defaultdict(list)
        for name, cell in self.known.items():
            if not self.is_own(name):
                self._locked[squeezed(cell.source)].append(name)

    def is_own(self, name: str) -> bool:
        """Whether what stands in the cell is the learner's: an answer, or graded by hand."""
        marks = _marks_of(self.known[name])
        return bool(marks.get("solution") or marks.get("task"))

    def is_check(self, name: str) -> bool:
        """Whether the cell gives points for an answer in another cell."""
        return bool(_marks_of(self.known[name]).get("grade")) and not self.is_own(name)

    @cached_property
    def symbols(self) -> dict[str, str | None]:
        """What each answer in code defines: of several names its own, else the last."""
        symbols: dict[str, str | None] = {}
        for name, cell in self.known.items():
            if self.is_own(name) and cell.cell_type == "code":
                defined = _defined(cell.source, imports=False)
                symbols[name] = name if name in defined else next(reversed(defined), None)
        return symbols

    def answer_to(self, check: str) -> str | None:
        """The answer that a check is for: "ring" of "ring-check", else the last one above it."""
        if (name := check.removesuffix("-check")) in self.symbols:
            return name
        above = [name for name in self.symbols if self.rank[name] < self.rank[check]]
        return above[-1] if above else None

    def named_by_text(self, found: Found) -> str | None:
        """The locked cell that has the same text; of several the one that it claims to be."""
        same = self._locked.get(squeezed(found.source), [])
        claimed = (_marks_of(found).get("grade_id"), self._ids.get(found.id or ""))
        return next((name for name in claimed if name in same), next(iter(same), None))

    def named_by_marks(self, found: Found) -> str | None:
        """The cell whose grade_id it has."""
        name = _marks_of(found).get("grade_id")
        return name if isinstance(name, str) and name in self.known else None

    def named_by_id(self, found: Found) -> str | None:
        """The cell whose id it has."""
        return self._ids.get(found.id or "")


@dataclass
class Piece:
    """A cell of the learner, at its place; `role` is the grade_id of the cell that it is."""

    place: int
    found: Found
    role: str | None

    @cached_property
    def defines(self) -> set[str]:
        """The names to which its code gives a meaning."""
        return set(_defined(self.found.source))


class Match:
    """The learner's cells, each with at most one role; no answer has two.

    `of` has for each role the cell that has it: of a locked cell the first copy. `said` names
    the cells with which something was wrong.
    """

    def __init__(self, found: list[Found], sheet: Sheet) -> None:
        self.sheet = sheet
        self.said: dict[str, list[str]] = defaultdict(list)
        self.of: dict[str, Piece] = {}
        self.pieces = [Piece(place, one, None) for place, one in enumerate(found)]
        self._recognise()
        self._take_answers_out_of_checks()
        self._name_the_nameless()
        for name in sheet.known:
            if held := self._held(name):
                self._settle(name, held)

    def kept(self) -> list[Piece]:
        """All cells but copies of locked ones."""
        return [one for one in self.pieces if one.role is None or self.sheet.is_own(one.role)]

    def strangers(self) -> int:
        """How many cells have a role that this assignment does not know."""
        names = [marks.get("grade_id") for marks in self._marks() if _has_role(marks)]
        return sum(not isinstance(name, str) or name not in self.sheet.known for name in names)

    def _marks(self) -> list[dict[str, Any]]:
        return [_marks_of(piece.found) for piece in self.pieces if piece.role is None]

    def defining(self, answer: str) -> list[Piece]:
        """The cells of code that define what an answer should define."""
        symbol = self.sheet.symbols.get(answer)
        return [one for one in self.kept() if symbol in one.defines and self._is_code(one)]

    def _held(self, name: str) -> list[Piece]:
        return [piece for piece in self.pieces if piece.role == name]

    def _is_code(self, piece: Piece) -> bool:
        kind = self.sheet.known[piece.role].cell_type if piece.role else piece.found.kind
        return bool(kind == "code")

    def _is_changed(self, piece: Piece) -> bool:
        return piece.role is None or piece.found.source != self.sheet.known[piece.role].source

    def _recognise(self) -> None:
        """Gives cells their roles. An id alone does not count where a cell has more to show."""
        for piece in self.pieces:
            found = piece.found
            piece.role = self.sheet.named_by_text(found) or self.sheet.named_by_marks(found)
        taken = {piece.role for piece in self.pieces}
        for piece in self.pieces:
            if piece.role is None and (name := self.sheet.named_by_id(piece.found)) not in taken:
                piece.role = name

    def _take_answers_out_of_checks(self) -> None:
        """An altered check that has the answer, where no other cell has: merged, or exchanged."""
        altered = [piece for piece in self.pieces if piece.role and self._is_changed(piece)]
        filled = {piece.role for piece in altered}
        for piece in altered:
            if piece.role and not self.sheet.is_own(piece.role):
                lost = (name for name in self.sheet.symbols if name not in filled)
                held = [name for name in lost if self.sheet.symbols[name] in piece.defines]
                if held:
                    piece.role = held[0]
                    filled.add(held[0])
                    self.said["named"].append(held[0])

    def _name_the_nameless(self) -> None:
        """An answer without name or id: the last cell of the learner's own that defines it."""
        released = {squeezed(cell.source) for cell in self.sheet.cells}
        for name in self.sheet.symbols:
            own = [
                one
                for one in ([] if self._held(name) else self.defining(name))
                if one.role is None and squeezed(one.found.source) not in released
            ]
            if own:
                own[-1].role = name
                self.said["named"].append(name)

    def _settle(self, name: str, held: list[Piece]) -> None:
        """Leaves the role to one cell, and says what is wrong with it."""
        own = self.sheet.is_own(name)
        symbol, changed = self.sheet.symbols.get(name), self._is_changed
        filled = [piece for piece in held if changed(piece)]
        best = sorted(held, key=lambda one: (changed(one), symbol in one.defines, one.place))
        self.of[name] = chosen = best[-1] if own else held[0]
        if len(held) > 1:
            self.said["repeated" if own else "repeated check"].append(name)
        for piece in held:
            piece.role = name if piece is chosen or not own else None
        cell, found = self.sheet.known[name], chosen.found
        # An instructor may have given a part other points since: that is no change of a learner's.
        other_points = found.source != cell.source and _pointless(found) == _pointless(cell)
        if filled and not own and not other_points:
            self.said["changed"].append(name)
        left_out = ("points", "checksum") if other_points else ()
        its, released = (
            {key: value for key, value in _marks_of(one).items() if key not in left_out}
            for one in (found, cell)
        )
        marks = found.kind, its, found.id or cell.id
        if marks != (cell.cell_type, released, cell.id) and name not in self.said["named"]:
            self.said["marks"].append(name)


def _pointless(cell: Found | NotebookNode) -> str:
    """The source of a check without the points that its assignment gives."""
    return _POINTS.sub(")", str(cell.source))


def _marks_of(cell: Found | NotebookNode) -> dict[str, Any]:
    """nbgrader's metadata of a cell; empty where there are none, or no dict."""
    marks = cell.metadata.get("nbgrader")
    return marks if isinstance(marks, dict) else {}


def _has_role(marks: dict[str, Any]) -> bool:
    return any(marks.get(role) for role in ("grade", "solution", "locked", "task"))


def squeezed(source: str) -> str:
    """A source without blanks and line ends: what is compared where those do not count."""
    return "".join(source.split())


def _defined(source: str, imports: bool = True) -> list[str]:
    """The names that code defines at its margin."""
    found = (
        one[1] or one[2] or one[3] or (imports and one[4]) for one in _DEFINED.finditer(source)
    )
    return [name for names in found if names for name in re.findall(r"\w+", names)]
