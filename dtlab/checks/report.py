"""`Report`: the criteria of a check with their points, as text, HTML and nbgrader's score."""

from __future__ import annotations

import html
import importlib
import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import fill, indent
from typing import Any, Literal

from dtlab.checks.learners import graded_student
from dtlab.ranks.system import has_front_end, in_a_kernel

__all__ = ["Criterion", "Reference", "Report", "Status", "as_html", "as_text", "scaled"]

Status = Literal["ok", "lost", "blocked", "open"]

# White text on a filled badge is readable on light and dark pages. The status is also in words.
_FILLED = "color:#fff;background:"
_BADGES: dict[Status, str] = {
    "ok": f"{_FILLED}#1b7f4b",
    "lost": f"{_FILLED}#b3261e",
    "blocked": f"{_FILLED}#5f6368",
    "open": "box-shadow:inset 0 0 0 1px",  # a frame in the page's text colour
}

# A page's colours for code may not suit the background of the table, so code inherits its colours.
_CODE = '<code style="color:inherit;background:none;padding:0">'
_NAMED = re.compile(r"`([^`\n]+)`")

# Style and pattern of table lines in a message, such as a pipeline's grid: their columns align.
_TABLE = f"{_CODE[:-2]};display:block;white-space:pre;overflow-x:auto\">"
_COLUMNS = re.compile(r"\S {2,}\S")


def as_html(text: str) -> str:
    """Returns a message as escaped HTML, with the text in backticks as code."""
    return _NAMED.sub(rf"{_CODE}\1</code>", html.escape(text))


def _shown(message: str) -> str:
    """Returns a message of several lines as HTML, with lines of a table in a monospace font."""
    lines = message.split("\n")
    rows = {line.split()[0] for line in lines if _COLUMNS.search(line)}  # first words of the rows
    parts = []
    for in_table, block in groupby(lines, lambda line: not rows.isdisjoint(line.split()[:1])):
        text = as_html("\n".join(block))
        parts.append(f"{_TABLE}{text}</code>" if in_table else text)
    return "".join(parts)


def as_text(text: str) -> str:
    """Returns a message for a terminal, without its backticks."""
    return _NAMED.sub(r"\1", text)


@dataclass(frozen=True)
class Criterion:
    """One graded criterion: its points, the points earned, and the reason.

    `status` is "ok", "lost", "blocked" if another failure kept the criterion from being judged, or
    "open" if there is no answer yet. `message` has names of code in backticks. A criterion without
    points is a remark. `case` is the number of a case that shows the loss and can be run again; 0
    if there is none. `mistake` is the known mistake that lost the criterion, in words that are the
    same for all learners; "" if no known mistake matched. Reports do not show it.
    """

    name: str
    points: float
    earned: float
    status: Status
    message: str
    case: int = 0
    mistake: str = ""


@dataclass(frozen=True)
class Reference:
    """The library's implementation of a part: its dotted name, its file and line, its source."""

    name: str
    place: str
    source: str

    @classmethod
    def of(cls, name: str) -> Reference:
        """Reads the source of the function `name`, such as "dtlab.collectives.tree_broadcast"."""
        module, _, symbol = name.rpartition(".")
        function = getattr(importlib.import_module(module), symbol)
        lines, first = inspect.getsourcelines(function)
        file = Path(inspect.getsourcefile(function) or "")
        root = Path(__file__).parents[2]  # the folder that contains the package
        shown = file.relative_to(root) if file.is_relative_to(root) else file.name
        return cls(name, f"{shown}, line {first}", "".join(lines).rstrip())


@dataclass(frozen=True, repr=False)
class Report:
    """The result of checking one part; the last value of a graded cell, nbgrader's partial credit.

    ring_all_reduce   7 of 10 points
      ok    4/4  the sum is right on 1, 2, 3, 4 and 5 ranks
      lost  0/3  each rank sent 12.6 MB; a ring needs 2(N-1)/N x 4.2 MB = 6.3 MB
      ok    2/2  only neighbours exchange messages
      ok    1/1  2(N-1) = 6 rounds

    The report of a passed part has the library's `reference` implementation, for comparison, and a
    `discussion`, which says why it is so.
    `cell_points` are the points of the graded cell, if an assignment sets them. If `part` is set,
    each lost criterion shows how to run a failing case of this part again.
    """

    title: str
    criteria: Sequence[Criterion]
    reference: Reference | None = None
    cell_points: float | None = None
    part: str = ""
    discussion: str = ""

    @property
    def score(self) -> float:
        """The points earned."""
        return sum(criterion.earned for criterion in self.criteria)

    @property
    def max_score(self) -> float:
        """The highest possible score."""
        return sum(criterion.points for criterion in self.criteria)

    @property
    def credit(self) -> float:
        """The score for nbgrader: the points earned, scaled to the points of the cell."""
        worth = self.max_score if self.cell_points is None else self.cell_points
        return min(round(scaled(self.score, self.max_score, worth), 6), worth)

    @property
    def number(self) -> str:
        """The credit as text that nbgrader parses."""
        return f"{self.credit:.10g}"

    @property
    def passed(self) -> bool:
        """Whether all criteria that have points are ok."""
        return all(criterion.status == "ok" for criterion in self.criteria if criterion.points)

    @property
    def headline(self) -> str:
        """The title and the points, in one line."""
        return f"{self.title}   {self._earned}"

    @property
    def _earned(self) -> str:
        """The points in words: "7 of 10 points, for 14 of 20 in this assignment"."""
        earned = f"{self.score:g} of {self.max_score:g} point{'s' * (self.max_score != 1)}"
        if self.cell_points in (None, self.max_score):
            return earned
        return f"{earned}, for {self.credit:g} of {self.cell_points:g} in this assignment"

    def _again(self, criterion: Criterion) -> str:
        """The call that runs a case of a lost criterion again; empty if there is none."""
        if not (criterion.case and self.part):
            return ""
        return f'dtlab.practice("{self.part}", {self.title}, case={criterion.case})'

    def __str__(self) -> str:
        width = max((len(criterion.status) for criterion in self.criteria), default=0)
        lines = [self.headline]
        for criterion in self.criteria:
            share = f"{criterion.earned:g}/{criterion.points:g}" if criterion.points else "   "
            label = f"  {criterion.status:<{width}}  {share}  "
            message = as_text(criterion.message)
            if call := self._again(criterion):
                message += f"\nRun this case: {call}"
            lines.append(label + indent(message, " " * len(label)).lstrip())
        if self.discussion:
            text = fill(as_text(self.discussion), 94)
            lines += ["", indent(text, "  "), ""]
        if self.reference is not None:
            lines.append(f"  The library's version: {self.reference.name}, {self.reference.place}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cell = "padding:.3em .8em .3em 0;vertical-align:top;text-align:left"
        narrow = f"{cell};white-space:nowrap"
        # Long words break, and a wide table in a message scrolls by itself: the report never does.
        rest = f"{cell};width:100%;max-width:0;white-space:pre-wrap;overflow-wrap:anywhere"
        rows = "".join(
            f'<tr style="background:none"><td style="{narrow}">{_badge(criterion.status)}</td>'
            f'<td style="{narrow}">{_share(criterion)}</td>'
            f'<td style="{rest}">{_shown(criterion.message)}'
            f"{_again_html(self._again(criterion))}</td></tr>"
            for criterion in self.criteria
        )
        return (
            '<table style="color:inherit;border-collapse:collapse;margin:0;width:100%;'
            'table-layout:auto">'
            f'<caption style="color:inherit;text-align:left;padding:.3em 0">'
            f'<b>{html.escape(self.title)}</b>&emsp;<span style="white-space:nowrap">'
            f"{self._earned}</span>"
            f"</caption><tbody>{rows}</tbody></table>{self._discussion_html()}"
            f"{self._reference_html()}"
        )

    def _discussion_html(self) -> str:
        """The discussion of a passed part, below the table."""
        text = as_html(self.discussion)
        return f'<p style="margin:.5em 0;max-width:50em">{text}</p>' if text else ""

    def _reference_html(self) -> str:
        """The library's version, collapsed, below the table."""
        if self.reference is None:
            return ""
        name, place = html.escape(self.reference.name), html.escape(self.reference.place)
        return (
            f'<details style="margin:.5em 0"><summary style="cursor:pointer">Compare with the '
            f"library's version: {_CODE}{name}</code> ({place})</summary>"
            '<pre style="color:inherit;background:none;overflow-x:auto;padding:.5em 0 0 1em">'
            f"{html.escape(self.reference.source)}</pre></details>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Returns the report as HTML and as text.

        In a kernel that nbgrader or nbclient runs, the text is the number that nbgrader parses.
        """
        is_read = graded_student() is None and (has_front_end() or not in_a_kernel())
        plain = str(self) if is_read else self.number
        return {"text/plain": plain, "text/html": self._repr_html_()}


def _share(criterion: Criterion) -> str:
    return f"{criterion.earned:g} of {criterion.points:g}" if criterion.points else ""


def _again_html(call: str) -> str:
    shown = f"\nRun this case: {_CODE}{html.escape(call)}</code>"
    return f'<span style="opacity:.8">{shown}</span>' if call else ""


def _badge(status: Status) -> str:
    style = f"{_BADGES[status]};border-radius:.3em;padding:.1em .5em;font-weight:600"
    return f'<span style="{style}">{status}</span>'


def scaled(score: float, max_score: float, cell_points: float) -> float:
    """Scales `score`, out of a check's `max_score`, to a cell worth `cell_points`.

    A full score becomes exactly `cell_points`, because nbgrader refuses a higher score. Raises
    `ValueError` if `score` is not between 0 and `max_score`, or if `cell_points` is negative or
    not finite.
    """
    if not 0 <= score <= max_score or not 0 <= cell_points < math.inf:
        raise ValueError(
            f"{score} of {max_score} points cannot be scaled to a cell of {cell_points} points"
        )
    if score == max_score:
        return cell_points if max_score else 0.0
    if cell_points == max_score:
        return score
    return min(score * cell_points / max_score, cell_points)
