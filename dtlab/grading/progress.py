"""`dtlab.progress`: shows which parts are passed, and which part is next."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from dtlab.errors import DtlabError
from dtlab.grading.course import Course
from dtlab.grading.learners import best_shares
from dtlab.grading.parts import Part, known_parts

__all__ = ["Progress", "progress"]

_LEVELS = {1: "Level I", 2: "Level II", 3: "Level III"}


@dataclass(frozen=True)
class Row:
    """One part and the best share of its points so far; None if it was never checked."""

    part: Part
    share: float | None

    @property
    def passed(self) -> bool:
        return self.share is not None and self.share >= 1

    @property
    def state(self) -> str:
        """The state in words: "passed", "7 of 10", "open", or "by hand" if there is no check."""
        if self.part.by_hand:
            return "by hand"
        if self.passed:
            return "passed"
        if not self.share:
            return "open"
        return f"{self.share * self.part.points:g} of {self.part.points:g}"

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The cells of a line of the table."""
        part = self.part
        extra = " (extra)" if part.stretch else ""
        return _LEVELS[part.level], part.name + extra, self.state, f"{part.minutes} min", part.dots


@dataclass(frozen=True, repr=False)
class Progress:
    """The parts of all units in course order, as text and as a table."""

    rows: Sequence[Row]

    @property
    def next(self) -> Part | None:
        """The next open part: required parts first, then extra ones; None if all are passed.

        The search begins after the last passed part, since a learner may have begun with a later
        unit, and then continues at the first part. It skips parts that are graded by hand, whose
        result is not known on this machine.
        """
        last = max((at for at, row in enumerate(self.rows) if row.passed), default=-1)
        onwards = [*self.rows[last + 1 :], *self.rows[: last + 1]]
        unfinished = [row.part for row in onwards if not row.passed and not row.part.by_hand]
        return min(unfinished, key=lambda part: part.stretch, default=None)

    def __repr__(self) -> str:
        width = [
            max(map(len, column)) for column in zip(*(r.cells for r in self.rows), strict=True)
        ]
        lines = []
        for title, rows in self._units():
            lines.append(title)
            lines += ["  " + "  ".join(map(str.ljust, row.cells, width)).rstrip() for row in rows]
        return "\n".join([*lines, "", *self._outlook()])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        cell = "padding:.2em 1em .2em 0;text-align:left"
        table = ""
        for title, rows in self._units():
            table += (
                f'<tr style="background:none"><th colspan="5" style="{cell}">{title}</th></tr>'
            )
            for row in rows:
                line = "".join(f'<td style="{cell}">{html.escape(td)}</td>' for td in row.cells)
                table += f'<tr style="background:none">{line}</tr>'
        outlook = "<br>".join(html.escape(line) for line in self._outlook())
        return (
            '<table style="color:inherit;border-collapse:collapse;margin:0">'
            f"<tbody>{table}</tbody></table><p>{outlook}</p>"
        )

    def _units(self) -> Iterator[tuple[str, list[Row]]]:
        for number, rows in groupby(self.rows, key=lambda row: row.part.unit):
            unit = list(rows)
            checked = [row for row in unit if not row.part.by_hand]
            passed = sum(row.passed for row in checked)
            yield f"{_title(number)}: {passed} of {len(checked)} parts passed", unit

    def _outlook(self) -> list[str]:
        part = self.next
        if part is None:
            return ["Everything is passed."]
        where = ""
        with suppress(DtlabError):  # the working folder may be outside the course
            course = Course.find()
            where = f"   {course.shown(course.worked_on(part))}"
        return [f"Next: {part.name}, {part.title}, {part.minutes} minutes{where}"]


def progress() -> Progress:
    """Returns the progress on all parts, from the results that `check` stored on this machine."""
    best = best_shares()
    return Progress([Row(part, best.get(part.name)) for part in known_parts()])


def _title(number: str) -> str:
    """Returns the title of a unit: "01 Ranks and collectives"."""
    with suppress(DtlabError):
        name = Course.find().unit(number).partition("_")[2]
        return f"{number} {name.replace('_', ' ').capitalize()}"
    return number
