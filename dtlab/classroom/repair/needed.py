"""Finds released cells, such as imports and helpers, that a notebook lacks but needs.

    released   import torch          submitted   (deleted)
               def helper(): ...                 (deleted)
               answer                            answer: uses torch   ──> the imports are needed

A cell is needed if it defines a name that another cell uses and that no cell defines. So a learner
may delete a trial, or write the imports again, and nothing is restored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from dtlab.classroom.repair.recognition import Match, defined_names

__all__ = ["Needed", "needed_cells"]

_MOST_CODE = 1_000_000  # characters
# All repetitions are bounded or possessive, and a text without an end counts as ended, so that no
# source takes long.
_TEXT = re.compile(
    r"([a-zA-Z]{0,2})("
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:""")?'
    r"|'''(?:[^'\\]++|\\.|'(?!''))*+(?:''')?"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'(?:[^'\\\n]++|\\.)*+'?)"
    r"|#[^\n]*+",
    re.DOTALL,
)
_IMPORT = re.compile(
    r"^[ \t]*+(?:from[ \t]+[\w.]++[ \t]+)?import\b([ \t]*+\([^)]{0,4000}\)|[^\n;]*+)", re.MULTILINE
)
_LOCAL = re.compile(
    r"^[ \t]++([\w*][\w ,*]*+)(?::[^=\n]{1,200})?=(?!=)"
    r"|\bfor[ \t]+([\w ,()*]{1,200}?)[ \t]+in\b"
    r"|\bas[ \t]+(\w++)"
    r"|\b(?:def|class)[ \t]+(\w++)(?:[ \t]*+\(([^)]{0,2000}))?"
    r"|\blambda\b([^:\n]{0,200}):",
    re.MULTILINE,
)
_USE = re.compile(r"(?<![\w.])([^\W\d]\w*+)(?!\s*+=(?!=))")


@dataclass(frozen=True)
class Needed:
    """A released cell that must be restored: its rank in the release, and what it must precede.

    `below` is the place of the first cell that uses or defines one of its names.
    """

    rank: int
    cell: NotebookNode
    below: int


def needed_cells(match: Match) -> list[Needed]:
    """Returns the released cells without a role that the submission lacks and needs.

    A submission with far more code than an assignment has is not searched, as it may be hostile.
    """
    kept = [piece for piece in match.kept() if match.is_code(piece)]
    if sum(len(piece.found.source) for piece in kept) > _MOST_CODE:
        return []
    candidates = {
        rank: _Code(_without_texts(cell.source))
        for rank, cell in enumerate(match.sheet.cells)
        if cell.cell_type == "code" and rank not in match.sheet.rank.values()
    }
    offered = set[str]().union(*(code.defines for code in candidates.values()))
    code = {piece.place: _Code(_without_texts(piece.found.source)) for piece in kept}
    known = set[str]().union(*(each.defines for each in code.values()))
    wanted: dict[str, int] = {}  # the place of the first cell that uses a name
    for place, each in code.items():
        for name in (each.uses & offered) - known:
            wanted.setdefault(name, place)
    needed: dict[int, Needed] = {}
    while found := [rank for rank in candidates if candidates[rank].defines & wanted.keys()]:
        own = candidates.pop(rank := found[-1])
        users = [wanted[name] for name in own.defines & wanted.keys()]
        definers = [place for place, each in code.items() if each.defines & own.defines]
        below = min([*users, *definers])
        needed[rank] = Needed(rank, match.sheet.cells[rank], below)
        known |= own.defines
        wanted = {name: place for name, place in wanted.items() if name not in known}
        for name in (own.uses & offered) - known:  # a restored cell may need another one
            wanted[name] = min(wanted.get(name, below), below)
    return [needed[rank] for rank in sorted(needed)]


class _Code:
    """The names that a cell defines for other cells, and those that it uses from others."""

    def __init__(self, code: str) -> None:
        self.defines = {*defined_names(code, imports=False), *_imported(code)}
        local = {
            name
            for match in _LOCAL.finditer(code)
            for group in match.groups()
            if group
            for name in re.findall(r"\w+", group)
        }
        self.uses = {*_USE.findall(_IMPORT.sub("", code))} - local - self.defines


def _without_texts(source: str) -> str:
    """Returns code without comments and texts; the expressions of an f-string stay."""
    return _TEXT.sub(lambda match: _inside(match[1] or "", match[2] or ""), source)


def _inside(prefix: str, text: str) -> str:
    if "f" not in prefix.lower():
        return " "
    return " ".join(re.findall(r"\{([^{}\n]*+)", text))


def _imported(code: str) -> Iterator[str]:
    for match in _IMPORT.finditer(code):
        for words in map(str.split, match[1].strip(" \t()").split(",")):
            if words:
                yield words[-1] if "as" in words else words[0].partition(".")[0]
