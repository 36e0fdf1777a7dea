"""Judges the faulty line of a script, which learners give by its number or its text."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from dtlab.checks.functions.checks import UNANSWERED, Verdict, lost, ok
from dtlab.checks.questions.quantities import short, whole

__all__ = ["judge_line", "numbered"]

_FEWEST = 4  # characters that identify a line by a part of its text
_NUMBER = re.compile(r"\s*(?:line\s*)?(\d+)\s*:?\s*", re.IGNORECASE)
_FORM = 'Write its number in the cell, counted from the line with def as 1, or its text: "line": 1'


def numbered(script: Callable[..., Any]) -> list[str]:
    """Returns the lines of a script; the line with def is line 1, at index 0.

    They have no type hints, as in the cell that shows the script.
    """
    source = inspect.getsource(script).rstrip()
    lines = source.splitlines()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and lines[function.lineno - 1].endswith(":"):
            for argument in function.args.args:
                argument.annotation = None
            head = f"def {function.name}({ast.unparse(function.args)}):"
            lines[function.lineno - 1] = " " * function.col_offset + head
    return lines


def judge_line(
    script: Callable[..., Any], answer: Any, right: Sequence[str], look: str
) -> Verdict:
    """Judges a line, given by number or text; `right` are the texts of the faulty lines.

    `look` says where to look next if the line is wrong.
    """
    lines = numbered(script)
    if answer is None or answer == "":
        return UNANSWERED
    places = _places(lines, answer)
    if not places:
        return lost(f"{script.__name__} has no line {short(answer)}. {_FORM}")
    wanted = {place for text in right for place in _places(lines, text)}
    code = lines[min(places)].partition("#")[0].strip()
    named = f"`{code}`"
    if places <= wanted:
        return ok(f"the line is {named}")
    if places & wanted:
        return lost(f"{len(places)} lines have that text: write the whole line, or its number.")
    where = f"{named} (line {min(places) + 1}, counted from def)"
    if not code:
        return lost(f"line {min(places) + 1}, counted from def, has no code. {look}")
    return lost(f"{where} does what it should here. {look}")


def _places(lines: Sequence[str], answer: Any) -> set[int]:
    """Returns the indices of the lines with this number or text, else of those that contain it."""
    number = whole(answer) if not isinstance(answer, str) else None
    typed = _NUMBER.fullmatch(answer) if isinstance(answer, str) else None
    if typed:
        number = int(typed[1])
    if number is not None:
        return {number - 1} if 1 <= number <= len(lines) else set()
    if not isinstance(answer, str):
        return set()
    text = _bare(answer)
    alike = {place for place, line in enumerate(lines) if text and _bare(line) == text}
    if alike or len(text) < _FEWEST:
        return alike
    return {place for place, line in enumerate(lines) if text in _bare(line)}


def _bare(line: str) -> str:
    """Returns a line without whitespace, comment and final colon, and with double quotes only."""
    return re.sub(r"\s+", "", line.partition("#")[0]).rstrip(":").replace("'", '"')
