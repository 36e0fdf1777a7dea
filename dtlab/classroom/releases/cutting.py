"""Reduces a level's notebook to the chosen parts, and changes their points.

A part consists of the cells from the text with its line of points to its check:

    title, imports, rules      for all parts: kept
    part 1: text with *8 points · 25 minutes · difficulty ●○○*, hints, blank, ..., check
    part 2: ...
    what is next, a last run   kept if the level is complete

The table in the title loses the rows of removed parts. One sentence replaces the text above the
table, which describes the complete level.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

from nbformat import NotebookNode

from dtlab.checks.parts import Part
from dtlab.errors import DtlabError

__all__ = ["cut", "extra_points"]

Weights = Mapping[str, float]

_PARTS_BY_NUMBER = re.compile(r"\b[Pp]arts? (\d+(?:(?:, | and |, and | to )\d+)*)")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+\.ipynb)(?:#[^)\s]*)?\)")


def cut(
    notebook: NotebookNode, parts: Sequence[Part], weights: Weights, names: Mapping[str, str]
) -> NotebookNode:
    """Returns a copy of a level's notebook with only the parts in `weights`, and their points.

    `parts` are all parts of the level, in order. `names` maps those files of the unit that the
    assignment also contains to their names in it; links to other notebooks become plain text.
    Raises `DtlabError` if the beginning of a part is not found.
    """
    new = deepcopy(notebook)
    cells, spans = new.cells, _spans(new.cells, parts)
    first, end = min(span.start for span in spans.values()), max(s.stop for s in spans.values())
    whole = all(part.name in weights for part in parts)
    if not whole or any(weights[part.name] != part.points for part in parts):
        _retitle(cells[:first], parts, weights)
    for part in parts:
        if weights.get(part.name, part.points) != part.points:
            _reweigh([cells[place] for place in spans[part.name]], part, weights[part.name])
    gone = {place for part in parts if part.name not in weights for place in spans[part.name]}
    if not whole:
        gone |= {place for place in range(end, len(cells)) if not _has_points(cells[place])}
    elif any(_links_elsewhere(cell, names) for cell in cells[end:]):
        gone |= {place for place in range(end, len(cells)) if _is_prose(cells[place])}
    new.cells = [cell for place, cell in enumerate(cells) if place not in gone]
    for cell in filter(_is_prose, new.cells):
        cell.source = _LINK.sub(lambda link: _link(link, names), cell.source)
    return new


def _spans(cells: Sequence[NotebookNode], parts: Sequence[Part]) -> dict[str, range]:
    """Returns the range of cells of each part."""
    places = {cell.id: place for place, cell in enumerate(cells)}
    spans, free = {}, 0
    for part in sorted(parts, key=lambda part: places[part.grade_id]):
        before = range(free, places[part.answer_id])
        line = _line(part)
        start = [place for place in before if _is_prose(cells[place], line)]
        if not start:
            raise DtlabError(
                f"the beginning of part {part.name} was not found: no text between the check "
                f"before it and its cell {part.answer_id!r} has the line *{line}*. Add that line."
            )
        free = places[part.grade_id] + 1
        spans[part.name] = range(start[0], free)
    return spans


def extra_points(parts: Sequence[Part], weights: Weights) -> float:
    """Returns the points of extra parts, at levels of which required parts are chosen too."""
    chosen = [part for part in parts if part.name in weights]
    required = {(part.unit, part.level) for part in chosen if not part.stretch}
    extra = (part for part in chosen if part.stretch and (part.unit, part.level) in required)
    return sum(weights[part.name] for part in extra)


def _line(part: Part) -> str:
    """Returns the line at the top of a part; tests/test_units.py checks that it is there."""
    return f"{part.points:g} points · {part.minutes} minutes · difficulty {part.dots}"


def _has_points(cell: NotebookNode) -> bool:
    """Whether the cell has metadata of nbgrader."""
    return bool(cell.metadata.get("nbgrader"))


def _is_prose(cell: NotebookNode, about: str = "") -> bool:
    """Whether this is a text cell without nbgrader metadata that contains `about`."""
    return (
        cell.cell_type == "markdown" and not _has_points(cell) and about in cell.source
    )


def _link(link: re.Match[str], names: Mapping[str, str]) -> str:
    return link[0].replace(link[2], names[link[2]]) if link[2] in names else link[1]


def _links_elsewhere(cell: NotebookNode, names: Mapping[str, str]) -> bool:
    return any(link[2] not in names for link in _LINK.finditer(cell.source))


def _reweigh(cells: Sequence[NotebookNode], part: Part, points: float) -> None:
    """Changes the points in a part's text, and in the call and metadata of its check."""
    text = next(cell for cell in cells if _is_prose(cell, _line(part)))
    before, line, after = text.source.partition(_line(part))
    rest, gap, below = after.partition("\n\n")
    worth = f"they give {_count(points)} in this assignment, in proportion"
    counts = "table" if part.by_hand else "check"
    note = f"The {counts} counts {_count(part.points)}; {worth if points else 'here none count'}."
    line = line.replace(f"{part.points:g} points", _count(points), 1)
    text.source = f"{before}{line}{rest}\n\n{note}{gap}{below}"
    check = next(cell for cell in cells if cell.id == part.grade_id)
    points = int(points) if points == int(points) else points
    check.metadata.nbgrader.points = points
    if not part.by_hand:
        check.source = check.source.replace(part.call, f"{part.call[:-1]}, points={points})")


def _retitle(cells: Sequence[NotebookNode], parts: Sequence[Part], weights: Weights) -> None:
    """Makes the title cell describe the chosen parts."""
    title = next((cell for cell in cells if _is_prose(cell, "# ")), None)
    if title is None:
        return
    heading, *blocks = _blocks(title.source)
    at = next((place for place, block in enumerate(blocks) if block.startswith("|")), 0)
    absent = {str(n) for n, part in enumerate(parts, 1) if part.name not in weights}
    above = [] if absent else [block for block in blocks[:at] if "points" not in block]
    shown = [heading, *above, _summary(parts, weights)]
    for block in blocks[at:]:
        named = {
            number for phrase in _PARTS_BY_NUMBER.findall(block) for number in _numbers(phrase)
        }
        if block.startswith("|"):
            shown.append(_table(block, parts, weights))
        elif not named & absent:
            shown.append(block)
    title.source = "\n\n".join(shown)


def _summary(parts: Sequence[Part], weights: Weights) -> str:
    asked = [part for part in parts if part.name in weights]
    effort = _count(sum(weights[part.name] for part in asked))
    extra = extra_points(asked, weights)
    minutes = sum(part.minutes for part in asked if not (extra and part.stretch))
    effort += f", {extra:g} of them for extra parts" if extra else ""
    effort += f", about {minutes} minutes" + " without these" * bool(extra)
    if len(asked) == len(parts):
        return f"In this assignment the level has {effort}."
    verb = "is" if len(asked) == 1 else "are"
    return (
        f"Of the {len(parts)} parts of this level, {len(asked)} {verb} asked for here: {effort}.\n"
        "They keep their numbers; part numbers in the text refer to the complete level."
    )


def _table(block: str, parts: Sequence[Part], weights: Weights) -> str:
    """Returns the table without removed parts; the third column from the right has the points."""
    lines = []
    for line in block.split("\n"):
        part = next((part for part in parts if f"`{part.symbol}`" in line), None)
        if part is None:
            lines.append(line)
        elif part.name in weights:
            columns = line.split("|")
            columns[-4] = f" {weights[part.name]:g} "
            lines.append("|".join(columns))
    return "\n".join(lines)


def _blocks(text: str) -> Iterator[str]:
    """Yields the paragraphs, tables and fenced code blocks of a text."""
    block: list[str] = []
    fenced = False
    for line in [*text.split("\n"), ""]:
        fenced ^= line.startswith("```")
        if line.strip() or fenced:
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []


def _numbers(text: str) -> set[str]:
    """Returns the numbers in "1, 2 and 4" or "2 to 4"."""
    numbers = re.findall(r"\d+", text)
    if " to " in text:
        return {str(number) for number in range(int(numbers[0]), int(numbers[-1]) + 1)}
    return set(numbers)


def _count(points: float) -> str:
    return "1 point" if points == 1 else f"{points:g} points"
