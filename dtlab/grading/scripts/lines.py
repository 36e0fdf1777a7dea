"""The line of a script at which it is broken: by its number or its text, as learners write it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from dtlab.grading.checking.checks import Verdict, blocked, lost, ok
from dtlab.grading.questions.quantities import short, whole

__all__ = ["judge_line", "numbered"]

_FEWEST = 4  # characters of a line that say which one is meant
_NUMBER = re.compile(r"\s*(?:line\s*)?(\d+)\s*:?\s*", re.IGNORECASE)
_FORM = 'Write its number in the cell, counted from the line with def as 1, or its text: "line": 1'


def numbered(script: Callable[..., Any]) -> list[str]:
    """The lines of a script; the one with def is line 1, at place 0."""
    return inspect.getsource(script).rstrip().splitlines()


def judge_line(script: Callable[..., Any], said: Any, right: Sequence[str], look: str) -> Verdict:
    """Judges a line, by number or text; `right` are the texts of those that are meant.

    `look` says where to look next, of a line that is none of them.
    """
    lines = numbered(script)
    if said is None or said == "":
        return blocked("not answered yet")
    found = _places(lines, said)
    if not found:
        return lost(f"{script.__name__} has no line {short(said)}. {_FORM}")
    wanted = {place for text in right for place in _places(lines, text)}
    named = f"`{lines[min(found)].partition('#')[0].strip()}`"
    if found <= wanted:
        return ok(f"the line is {named}")
    if found & wanted:
        return lost(f"{len(found)} lines have that text: write the whole line, or its number.")
    return lost(f"line {min(found) + 1}, {named}, does what it should here. {look}")


def _places(lines: Sequence[str], said: Any) -> set[int]:
    """The places of the lines that are meant; those that read so, else those that have it."""
    number = whole(said) if not isinstance(said, str) else None
    typed = _NUMBER.fullmatch(said) if isinstance(said, str) else None
    if typed:
        number = int(typed[1])
    if number is not None:
        return {number - 1} if 1 <= number <= len(lines) else set()
    if not isinstance(said, str):
        return set()
    text = _bare(said)
    alike = {place for place, line in enumerate(lines) if text and _bare(line) == text}
    if alike or len(text) < _FEWEST:
        return alike
    return {place for place, line in enumerate(lines) if text in _bare(line)}


def _bare(line: str) -> str:
    """A line without blanks, comment, and the colon at its end; quotes of one kind."""
    return re.sub(r"\s+", "", line.partition("#")[0]).rstrip(":").replace("'", '"')
