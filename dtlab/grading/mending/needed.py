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

from dtlab.grading.mending.recognition import Match, defined_names

__all__ = ["Needed", "needed_cells"]

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
    """Returns the released cells without a role that the submission lacks and needs."""
    kept = [piece for piece in match.kept() if match.is_code(piece)]
    code = {piece.place: _without_texts(piece.found.source) for piece in kept}
    defines = {place: _defined(source) for place, source in code.items()}
    uses = {place: _free(source) for place, source in code.items()}
    known = set().union(*defines.values())
    candidates = {
        rank: (cell, _without_texts(cell.source))
        for rank, cell in enumerate(match.sheet.cells)
        if cell.cell_type == "code" and rank not in match.sheet.rank.values()
    }
    needed: dict[int, Needed] = {}
    while True:  # a restored cell may need another one
        wanted = {name: _first(uses, name) for name in set().union(*uses.values()) - known}
        found = [rank for rank in candidates if _defined(candidates[rank][1]) & wanted.keys()]
        if not found:
            return [needed[rank] for rank in sorted(needed)]
        cell, source = candidates.pop(rank := found[-1])
        names = _defined(source)
        users = [wanted[name] for name in names & wanted.keys()]
        definers = [place for place, own in defines.items() if own & names]
        needed[rank] = Needed(rank, cell, below := min(*users, *definers, len(match.pieces)))
        known |= names
        uses[below] = uses.get(below, set()) | _free(source)


def _first(uses: dict[int, set[str]], name: str) -> int:
    return min(place for place, names in uses.items() if name in names)


def _without_texts(source: str) -> str:
    """Returns code without comments and texts; the expressions of an f-string stay."""
    return _TEXT.sub(lambda match: _inside(match[1] or "", match[2] or ""), source)


def _inside(prefix: str, text: str) -> str:
    if "f" not in prefix.lower():
        return " "
    return " ".join(re.findall(r"\{([^{}\n]*+)", text))


def _defined(code: str) -> set[str]:
    """Returns the names that a cell defines for other cells."""
    return {*defined_names(code, imports=False), *_imported(code)}


def _imported(code: str) -> Iterator[str]:
    for match in _IMPORT.finditer(code):
        for words in map(str.split, match[1].strip(" \t()").split(",")):
            if words:
                yield words[-1] if "as" in words else words[0].partition(".")[0]


def _free(code: str) -> set[str]:
    """Returns the names that a cell uses and does not define."""
    local = {
        name
        for match in _LOCAL.finditer(code)
        for group in match.groups()
        if group
        for name in re.findall(r"\w+", group)
    }
    return {*_USE.findall(_IMPORT.sub("", code))} - local - _defined(code)
