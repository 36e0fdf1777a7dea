"""Matches a learner's cells with the cells of the released notebook.

A cell matches a locked cell with the same text; else the cell with its grade_id; else the cell
with its id; else the missing answer whose name it defines.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nbformat import NotebookNode

from dtlab.classroom.repair.found import Found

__all__ = ["Match", "Piece", "Sheet", "defined_names", "squeezed"]

# Finds definitions that begin in column 0 by a regular expression, since a parser fails on magics
# and unfinished code, and hostile text can crash it. All repetitions are bounded or possessive, so
# that no text takes long.
_REMARK = re.compile(  # a comment, or a docstring; without an end, it ends with the source
    r"^[ \t]*+(?:#[^\n]*+"
    r'|"""(?:[^"\\]++|\\.|"(?!""))*+(?:"""[ \t]*+)?'
    r"|'''(?:[^'\\]++|\\.|'(?!''))*+(?:'''[ \t]*+)?)",
    re.MULTILINE | re.DOTALL,
)
_MOST_BARED = 200_000  # characters
_POINTS = re.compile(r", points=[\d.]+\)")
_DEFINED = re.compile(
    r"^(?:(?:async[ \t]+)?(?:def|class)[ \t]+(\w++)"
    r"|(\w++)[ \t]*+(?::[^=\n]{1,200})?=(?!=)"
    r"|(\([\w ,*]*+\)[ \t]*+|\w[\w ,*]*+)=(?!=)"
    r"|(?:from[ \t]+[\w.]++[ \t]+)?import\b([ \t]*+\([^)]{0,2000}\)|[^\n#]*+))",
    re.MULTILINE,
)


class Sheet:
    """An assignment's released notebook, which defines the graded cells.

    `known` has the cells with a role by their grade_id, in order; `rank` has their positions.
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
        """Whether the learner writes the cell: an answer, or a cell that is graded by hand."""
        marks = _marks_of(self.known[name])
        return bool(marks.get("solution") or marks.get("task"))

    def is_check(self, name: str) -> bool:
        """Whether the cell gives points for an answer in another cell."""
        return bool(_marks_of(self.known[name]).get("grade")) and not self.is_own(name)

    @cached_property
    def symbols(self) -> dict[str, str | None]:
        """The name that each code answer defines; of several names, its grade_id or the last."""
        symbols: dict[str, str | None] = {}
        for name, cell in self.known.items():
            if self.is_own(name) and cell.cell_type == "code":
                defined = defined_names(cell.source, imports=False)
                symbols[name] = name if name in defined else next(reversed(defined), None)
        return symbols

    @cached_property
    def bare(self) -> dict[str, str]:
        """The released code of each answer, without spaces and remarks."""
        return {name: _bare(self.known[name].source) for name in self.symbols}

    def answer_to(self, check: str) -> str | None:
        """Returns a check's answer: "ring" for "ring-check", else the last answer above it."""
        if (name := check.removesuffix("-check")) in self.symbols:
            return name
        above = [name for name in self.symbols if self.rank[name] < self.rank[check]]
        return above[-1] if above else None

    def named_by_text(self, found: Found) -> str | None:
        """Returns the locked cell with the same text; prefers the one with its grade_id or id."""
        same = self._locked.get(squeezed(found.source), [])
        claimed = (_marks_of(found).get("grade_id"), self._ids.get(found.id or ""))
        return next((name for name in claimed if name in same), next(iter(same), None))

    def named_by_marks(self, found: Found) -> str | None:
        """Returns the cell with the same grade_id."""
        name = _marks_of(found).get("grade_id")
        return name if isinstance(name, str) and name in self.known else None

    def named_by_id(self, found: Found) -> str | None:
        """Returns the cell with the same id."""
        return self._ids.get(found.id or "")


@dataclass
class Piece:
    """A cell of the learner with its place; `role` is the grade_id of the matching cell."""

    place: int
    found: Found
    role: str | None

    @cached_property
    def defines(self) -> set[str]:
        """The names that its code defines."""
        return set(defined_names(self.found.source))

    @cached_property
    def bare(self) -> str:
        """Its code without spaces and remarks."""
        return _bare(self.found.source)


class Match:
    """The learner's cells, each with at most one role; each answer has at most one cell.

    `of` maps each role to its cell, which is the first copy for a locked cell. `problems` maps
    each problem to the names of its cells.
    """

    def __init__(self, found: list[Found], sheet: Sheet) -> None:
        self.sheet = sheet
        self.problems: dict[str, list[str]] = defaultdict(list)
        self.of: dict[str, Piece] = {}
        self.pieces = [Piece(place, cell, None) for place, cell in enumerate(found)]
        self._left_out: set[int] = set()  # places of blank copies
        self._recognise()
        self._take_answers_out_of_checks()
        self._name_the_nameless()
        for name in sheet.known:
            if held := self._held(name):
                self._settle(name, held)
        for name in sheet.symbols:
            self._leave_out_blanks(name)

    def kept(self) -> list[Piece]:
        """Returns all cells except copies of locked ones, and blank copies of answers."""
        kept = [p for p in self.pieces if p.role is None or self.sheet.is_own(p.role)]
        return [piece for piece in kept if piece.place not in self._left_out]

    def strangers(self) -> int:
        """Returns the number of cells with a role that this assignment does not have."""
        names = [marks.get("grade_id") for marks in self._marks() if _has_role(marks)]
        return sum(not isinstance(name, str) or name not in self.sheet.known for name in names)

    def _marks(self) -> list[dict[str, Any]]:
        return [_marks_of(piece.found) for piece in self.pieces if piece.role is None]

    def defining(self, answer: str) -> list[Piece]:
        """Returns the code cells that define the name of an answer."""
        symbol = self.sheet.symbols.get(answer)
        return [p for p in self.kept() if symbol in p.defines and self.is_code(p)]

    def _held(self, name: str) -> list[Piece]:
        return [piece for piece in self.pieces if piece.role == name]

    def is_code(self, piece: Piece) -> bool:
        """Whether a cell is code, or was code in the release."""
        kind = self.sheet.known[piece.role].cell_type if piece.role else piece.found.kind
        return bool(kind == "code")

    def is_blank(self, piece: Piece, answer: str) -> bool:
        """Whether a cell is the released form of an answer, except for spaces and remarks."""
        released = self.sheet.known[answer]
        if released.cell_type != "code":
            return squeezed(piece.found.source) == squeezed(released.source)
        return piece.bare == self.sheet.bare[answer]

    def answered_by(self, answer: str) -> list[Piece]:
        """Returns the cells that define an answer's name, if the answer's own cell is blank."""
        own = self.of.get(answer)
        if own is None or not self.is_blank(own, answer):
            return []
        return [piece for piece in self.defining(answer) if not self.is_blank(piece, answer)]

    def _is_changed(self, piece: Piece) -> bool:
        return piece.role is None or piece.found.source != self.sheet.known[piece.role].source

    def _recognise(self) -> None:
        """Gives cells their roles. An id counts only if no cell matches by text or grade_id."""
        for piece in self.pieces:
            found = piece.found
            piece.role = self.sheet.named_by_text(found) or self.sheet.named_by_marks(found)
        taken = {piece.role for piece in self.pieces}
        for piece in self.pieces:
            if piece.role is None and (name := self.sheet.named_by_id(piece.found)) not in taken:
                piece.role = name

    def _take_answers_out_of_checks(self) -> None:
        """Makes a changed check the answer to a question whose answer cell is not filled in.

        The check must define the name of that answer. This happens if cells are merged or swapped.
        """
        altered = [piece for piece in self.pieces if piece.role and self._is_changed(piece)]
        filled = {piece.role for piece in altered}
        for piece in altered:
            if piece.role and not self.sheet.is_own(piece.role):
                lost = (name for name in self.sheet.symbols if name not in filled)
                held = [name for name in lost if self.sheet.symbols[name] in piece.defines]
                if held:
                    piece.role = held[0]
                    filled.add(held[0])
                    self.problems["named"].append(held[0])

    def _name_the_nameless(self) -> None:
        """Gives the role of an answer to the last learner's cell that defines it.

        Only if no cell has this role, except blank ones.
        """
        released = {squeezed(cell.source) for cell in self.sheet.cells}
        for name in self.sheet.symbols:
            is_open = all(self.is_blank(piece, name) for piece in self._held(name))
            candidates = [
                piece
                for piece in (self.defining(name) if is_open else [])
                if piece.role is None
                and squeezed(piece.found.source) not in released
                and not self.is_blank(piece, name)
            ]
            if candidates:
                candidates[-1].role = name
                self.problems["named"].append(name)

    def _leave_out_blanks(self, name: str) -> None:
        """Leaves out blank copies of an answer that is filled in, since they would undo it."""
        chosen = self.of.get(name)
        blank = [piece for piece in self.pieces if self.is_blank(piece, name)]
        if any(piece is chosen for piece in blank) and not self.answered_by(name):
            return
        extra = [piece for piece in blank if piece.role is None and self.is_code(piece)]
        self._left_out |= {piece.place for piece in extra}
        if extra and name not in self.problems["repeated"]:
            self.problems["blank copy"].append(name)

    def _settle(self, name: str, held: list[Piece]) -> None:
        """Gives the role to one of the cells in `held`, and records the problems of the role."""
        own = self.sheet.is_own(name)
        symbol, changed = self.sheet.symbols.get(name), self._is_changed
        filled = [piece for piece in held if changed(piece)]
        best = sorted(
            held,
            key=lambda p: (
                own and not self.is_blank(p, name), changed(p), symbol in p.defines, p.place
            ),
        )  # fmt: skip
        self.of[name] = chosen = best[-1] if own else held[0]
        if len(held) > 1:
            self.problems["repeated" if own else "repeated check"].append(name)
        for piece in held:
            piece.role = name if piece is chosen or not own else None
        cell, found = self.sheet.known[name], chosen.found
        # If the instructor has changed the points of a part, the learner did not change the cell.
        other_points = found.source != cell.source and _pointless(found) == _pointless(cell)
        if filled and not own and not other_points:
            self.problems["changed"].append(name)
        left_out = ("points", "checksum") if other_points else ()
        submitted, released = (
            {key: value for key, value in _marks_of(source).items() if key not in left_out}
            for source in (found, cell)
        )
        marks = found.kind, submitted, found.id or cell.id
        if marks != (cell.cell_type, released, cell.id) and name not in self.problems["named"]:
            self.problems["marks"].append(name)


def _bare(source: str) -> str:
    """Returns code without spaces, comments and docstrings; a huge source stays as it is."""
    return source if len(source) > _MOST_BARED else squeezed(_REMARK.sub("", source))


def _pointless(cell: Found | NotebookNode) -> str:
    """Returns the source of a check without the points of its assignment."""
    return _POINTS.sub(")", str(cell.source))


def _marks_of(cell: Found | NotebookNode) -> dict[str, Any]:
    """Returns nbgrader's metadata of a cell; empty if missing or not a dict."""
    marks = cell.metadata.get("nbgrader")
    return marks if isinstance(marks, dict) else {}


def _has_role(marks: dict[str, Any]) -> bool:
    return any(marks.get(role) for role in ("grade", "solution", "locked", "task"))


def squeezed(source: str) -> str:
    """Returns a source without whitespace, for comparisons that ignore it."""
    return "".join(source.split())


def defined_names(source: str, imports: bool = True) -> list[str]:
    """Returns the names that code defines in column 0."""
    groups = (m[1] or m[2] or m[3] or (imports and m[4]) for m in _DEFINED.finditer(source))
    return [name for names in groups if names for name in re.findall(r"\w+", names)]
