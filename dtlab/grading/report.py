"""What a check says: criteria with their points, as text, as a table, and as nbgrader's number."""

from __future__ import annotations

import html
import importlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any, Literal

__all__ = ["Criterion", "Reference", "Report", "Status"]

Status = Literal["ok", "lost", "blocked"]

# White on a filled badge reads the same on a light and on a dark page; the word says it too.
_BADGES: dict[Status, str] = {"ok": "#1b7f4b", "lost": "#b3261e", "blocked": "#5f6368"}


@dataclass(frozen=True)
class Criterion:
    """One thing that counts: its points, what was earned, and why.

    `status` is "ok", "lost", or "blocked" where it could not be judged because another failed.
    """

    name: str
    points: float
    earned: float
    status: Status
    message: str


@dataclass(frozen=True)
class Reference:
    """The library's own version of a part: its dotted name, its place, its source."""

    name: str
    place: str
    source: str

    @classmethod
    def of(cls, name: str) -> Reference:
        """Reads the source of the function `name`, as "dtlab.collectives.tree_broadcast"."""
        module, _, symbol = name.rpartition(".")
        function = getattr(importlib.import_module(module), symbol)
        lines, first = inspect.getsourcelines(function)
        file = Path(inspect.getsourcefile(function) or "")
        root = Path(__file__).parents[2]  # what holds the package
        shown = file.relative_to(root) if file.is_relative_to(root) else file.name
        return cls(name, f"{shown}, line {first}", "".join(lines).rstrip())


@dataclass(frozen=True, repr=False)
class Report:
    """The verdict on one part. As the last value of a graded cell it is nbgrader's partial credit.

    ring_all_reduce   7 of 10 points
      ok    4/4  the sum is right on 1, 2, 3, 4 and 5 ranks
      lost  0/3  each rank sent 12.6 MB; a ring needs 2(N-1)/N x 4.2 MB = 6.3 MB
      ok    2/2  only the two neighbours talk
      ok    1/1  2(N-1) = 6 rounds

    A passed part carries the library's `reference`, to be read beside the learner's own.
    """

    title: str
    criteria: Sequence[Criterion]
    reference: Reference | None = None

    @property
    def score(self) -> float:
        """Points earned."""
        return sum(criterion.earned for criterion in self.criteria)

    @property
    def max_score(self) -> float:
        """Points that can be had."""
        return sum(criterion.points for criterion in self.criteria)

    @property
    def passed(self) -> bool:
        """Whether nothing was lost."""
        return all(criterion.status == "ok" for criterion in self.criteria)

    @property
    def headline(self) -> str:
        """Title and points in one line."""
        return f"{self.title}   {self.score:g} of {self.max_score:g} points"

    def __str__(self) -> str:
        width = max((len(criterion.status) for criterion in self.criteria), default=0)
        lines = [self.headline]
        for criterion in self.criteria:
            label = f"  {criterion.status:<{width}}  {criterion.earned:g}/{criterion.points:g}  "
            lines.append(label + indent(criterion.message, " " * len(label)).lstrip())
        if self.reference is not None:
            lines.append(f"  The library's own: {self.reference.name}, {self.reference.place}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cell = "padding:.3em .8em .3em 0;vertical-align:top;text-align:left"
        rows = "".join(
            f'<tr style="background:none"><td style="{cell}">{_badge(criterion.status)}</td>'
            f'<td style="{cell};white-space:nowrap">{criterion.earned:g} of '
            f'{criterion.points:g}</td><td style="{cell};white-space:pre-line">'
            f"{html.escape(criterion.message)}</td></tr>"
            for criterion in self.criteria
        )
        return (
            f'<table style="color:inherit;border-collapse:collapse;margin:0">'
            f'<caption style="color:inherit;text-align:left;padding:.3em 0">'
            f"<b>{html.escape(self.title)}</b>&emsp;{self.score:g} of {self.max_score:g} points"
            f"</caption><tbody>{rows}</tbody></table>{self._reference_html()}"
        )

    def _reference_html(self) -> str:
        """The library's version, folded away under the table."""
        if self.reference is None:
            return ""
        name, place = html.escape(self.reference.name), html.escape(self.reference.place)
        return (
            f'<details style="margin:.5em 0"><summary style="cursor:pointer">Compare with the '
            f"library's own: <code>{name}</code> ({place})</summary>"
            '<pre style="color:inherit;background:none;overflow-x:auto;padding:.5em 0 0 1em">'
            f"{html.escape(self.reference.source)}</pre></details>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """The table for people; for nbgrader, which reads `text/plain` as points, the number."""
        plain = f"{self.score:g}" if _in_a_kernel() else str(self)
        return {"text/plain": plain, "text/html": self._repr_html_()}


def _badge(status: Status) -> str:
    style = (
        f"background:{_BADGES[status]};color:#fff;border-radius:.3em;padding:.1em .5em;"
        "font-weight:600"
    )
    return f'<span style="{style}">{status}</span>'


def _in_a_kernel() -> bool:
    """Whether this is a notebook's kernel; IPython in a terminal shows `text/plain` to people."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
