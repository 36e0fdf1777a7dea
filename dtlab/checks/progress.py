"""`dtlab.progress`: shows what is passed in each unit, and what is next."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from math import isclose
from pathlib import Path
from urllib.parse import quote

from dtlab.checks.course import Course
from dtlab.checks.learners import best_shares, notebook_folder, stored_mistakes, stored_results
from dtlab.checks.parts import Part, known_parts
from dtlab.checks.report import as_html, as_text
from dtlab.errors import DtlabError

__all__ = ["Progress", "progress", "tasks_in"]

_LEVELS = {1: "Level I, reason", 2: "Level II, build", 3: "Level III, design and diagnose"}
_GREEN = "#1b7f4b"  # visible on a light and on a dark page
_PRACTICE = re.compile(r"^\s*dtlab\.practice\(\s*(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One part and the best share of its points so far; None if it was never checked."""

    part: Part
    share: float | None

    @property
    def passed(self) -> bool:
        return self.share is not None and self.share >= 1

    @property
    def points(self) -> float:
        """The points earned."""
        return (self.share or 0) * self.part.points

    @property
    def state(self) -> str:
        """The state in words: "passed", "7 of 10", "open", or "by hand" if there is no check."""
        if self.part.by_hand:
            return "by hand"
        if self.passed:
            return "passed"
        if not self.share:
            return "open"
        return f"{_number(self.points)} of {_number(self.part.points)}"

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The cells of a line of the table."""
        part = self.part
        extra = " (extra)" if part.stretch else ""
        return self.state, part.name, part.title + extra, f"{part.minutes} min", part.dots


@dataclass(frozen=True)
class Task:
    """A practice task of a lesson, named after its function, and the cell that checks it."""

    name: str
    cell: str
    passed: bool

    @property
    def state(self) -> str:
        return "passed" if self.passed else "open"


@dataclass(frozen=True)
class Lesson:
    """A unit's lesson, with its title as written and its practice tasks."""

    unit: str
    title: str
    minutes: str = ""
    tasks: Sequence[Task] = ()

    @property
    def passed(self) -> int:
        """The number of tasks that are passed."""
        return sum(task.passed for task in self.tasks)

    @property
    def count(self) -> str:
        """How many tasks are passed, in words."""
        return f"{self.passed} of {len(self.tasks)} task{'s' * (len(self.tasks) != 1)}"

    def has(self, result: str) -> bool:
        """Whether a stored result is that of one of the tasks."""
        return any(result == f"practice/{task.name}" for task in self.tasks)


@dataclass(frozen=True)
class Unit:
    """The lesson and the parts of one unit.

    `saved` is the time at which the learner last saved a copy of its notebooks; 0 without copies.
    """

    lesson: Lesson
    rows: Sequence[Row]
    saved: float = 0.0

    @property
    def begun(self) -> bool:
        return self.lesson.passed > 0 or any(row.share for row in self.rows)

    def levels(self) -> Iterator[tuple[str, list[Row]]]:
        """Yields the name and the parts of each level."""
        for level, rows in groupby(self.rows, key=lambda row: row.part.level):
            yield _LEVELS[level], list(rows)


@dataclass(frozen=True, repr=False)
class Progress:
    """The progress on all units in course order, as text and as a table with links.

    `latest` is the part, or the practice task, that was improved last. If `only` is the number of
    a unit, only this unit is shown, with all its parts. `mistakes` are the parts in which the
    learner made each known mistake.
    """

    units: Sequence[Unit]
    latest: str = ""
    only: str = ""
    mistakes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def next(self) -> Part | Lesson | None:
        """The next open part or lesson; None if all parts are passed.

        The search begins at the part that was improved last, and first covers the rest of its
        unit, then the units that the learner has started, then the units that follow. Required
        parts of levels without full points come before all other parts, except the part that was
        improved last. The search skips parts that are graded by hand, whose result
        is not known on this machine, and a lesson if the learner has already begun its exercises.
        """
        shown = self._shown()
        numbers = [unit.lesson.unit for unit in shown]
        here = numbers.index(self._here) if self._here in numbers else 0
        units = [*shown[here:], *shown[:here]]
        units[1:] = sorted(units[1:], key=lambda unit: not (unit.begun or unit.saved))
        steps = [self._steps(unit) for unit in units]
        if steps:  # in the unit itself, continue after the latest part
            names = [step.name if isinstance(step, Part) else "" for step in steps[0]]
            at = names.index(self.latest) if self.latest in names else 0
            steps[0] = [*steps[0][at:], *steps[0][:at]]
        done = {row.part.name for unit in shown for row in unit.rows if row.passed}
        left = [
            step
            for unit in steps
            for step in unit
            if isinstance(step, Lesson) or step.name not in done
        ]
        full = {
            row.part.name
            for unit in shown
            for _, rows in unit.levels()
            if isclose(*_sum(rows))
            for row in rows
        }
        return min(left, key=lambda step: self._comes_late(step, full), default=None)

    def __repr__(self) -> str:
        shown = self._shown()
        width = max((len(unit.lesson.title) for unit in shown), default=0)
        lines = []
        for unit in shown:
            lines.append(f"{unit.lesson.title:{width}}  {_text_bar(unit.rows)}")
            if self.only:
                lines += _details(unit)
            elif unit.lesson.tasks:
                lines[-1] += f"  lesson: {unit.lesson.count}"
        first = [path, ""] if (path := self._short_path()) else []
        again = as_text(self._again())
        return "\n".join([*first, *lines, "", *self._outlook(), *filter(None, [again])])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        following = self.next
        here = following.unit if following else ""
        units = "".join(
            _unit_page(unit, unfolded=bool(self.only) or unit.lesson.unit == here)
            for unit in self._shown()
        )
        text = html.escape(self._outlook()[0])
        if following and not self._command(following):
            name = html.escape(_name(following))
            cell = following.answer_id if isinstance(following, Part) else ""
            text = text.replace(name, _link(following, name, cell), 1)
        path = f"<p>{html.escape(self._short_path())}</p>" if self._short_path() else ""
        again = f"<p>{as_html(self._again())}</p>" if self._again() else ""
        return f'<div style="color:inherit">{path}{units}<p>{text}</p>{again}</div>'

    def _short_path(self) -> str:
        """How far the learner is on the short path; "" for a single unit, and at its end."""
        rows = [row for unit in self.units for row in unit.rows if row.part.short_path]
        left = [row.part for row in rows if not row.passed]
        if self.only or not left:
            return ""
        part, done = left[0], f"{len(rows) - len(left)} of {len(rows)}"
        read = f"sections {part.short_path} of lesson {part.unit}"
        return f"Short path, 7 to 11 hours: {done} parts. Next on it: {read}, then {part.name}"

    def _again(self) -> str:
        """A sentence on the known mistake made in most parts; "" if none was made in several."""
        mistake = max(self.mistakes, key=lambda each: len(self.mistakes[each]), default="")
        parts = self.mistakes.get(mistake, ())
        where = f"in {len(parts)} parts, most recently in {parts[-1]}" if len(parts) > 1 else ""
        return f"Twice or more: {mistake.rstrip('.')} ({where})." if where else ""

    @property
    def _here(self) -> str:
        """The number of the unit that the learner works on."""
        for unit in self.units:
            if unit.lesson.has(self.latest):
                return unit.lesson.unit
        first = next((unit for unit in self.units if unit.saved), None)
        if not self.latest and first:
            return first.lesson.unit
        return self.latest.partition("/")[0]

    def _shown(self) -> list[Unit]:
        return [unit for unit in self.units if self.only in ("", unit.lesson.unit)]

    def _comes_late(self, step: Part | Lesson, full: Collection[str]) -> bool:
        """Whether a step is an extra part, or a part of a level that has all of its points."""
        if not isinstance(step, Part) or step.name == self.latest:
            return False
        return step.stretch or step.name in full

    def _steps(self, unit: Unit) -> list[Part | Lesson]:
        """Returns the lesson of a unit, unless it is skipped, and its parts."""
        lesson, parts = unit.lesson, [row.part for row in unit.rows if not row.part.by_hand]
        offered = lesson.passed < len(lesson.tasks) and (lesson.has(self.latest) or not unit.begun)
        return [lesson, *parts] if offered else [*parts]

    def _command(self, step: Part | Lesson) -> str:
        """Returns the command that creates the learner's copies, before the unit is begun."""
        unit = next(unit for unit in self.units if unit.lesson.unit == step.unit)
        is_new = not unit.begun and not unit.saved and _course()
        return f"dtlab start {step.unit}" if is_new else ""

    def _outlook(self) -> list[str]:
        following = self.next
        if following is None:
            where = f" in unit {self.only}" if self.only else ""
            return [f"Every exercise{where} is passed."]
        minutes = following.minutes
        time = f", {minutes} minutes" if minutes else ""
        title = f", {following.title}" if isinstance(following, Part) else ""
        where = self._command(following) or _where(following)
        lines = [f"Next: {_name(following)}{title}{time}" + f"   {where}" * bool(where)]
        if not self.only:
            lines.append(f"All parts of a unit: dtlab progress {following.unit}")
        return lines


def progress(unit: str | None = None) -> Progress:
    """Returns the progress on all units, or on the unit with this number, such as "01".

    The progress is computed from the results that `check` and `practice` stored on this machine.
    Raises `DtlabError` for an unknown unit.
    """
    best, results = best_shares(), stored_results()
    units = [
        Unit(
            _lesson(number, best),
            [Row(part, best.get(part.name)) for part in parts],
            _saved(number),
        )
        for number, parts in groupby(known_parts(), key=lambda part: part.unit)
    ]
    only = str(unit).zfill(2) if unit else ""
    if only and all(only != known.lesson.unit for known in units):
        only = Course.find().unit(str(unit))[:2]
    return Progress(units, results[-1][0] if results else "", only, stored_mistakes())


def _lesson(number: str, best: Mapping[str, float]) -> Lesson:
    """Returns the lesson's title, minutes and practice tasks; if unreadable, only its number."""
    with suppress(DtlabError, OSError, ValueError, KeyError, TypeError):
        course = Course.find()
        text = (course.material / course.lesson(number)).read_text(encoding="utf-8")
        first, *others = json.loads(text)["cells"]
        opening = "".join(first["source"])
        title = next(iter(re.findall(r"^# (.+)", opening, re.MULTILINE)), number)
        minutes = re.search(r"about (\d+) minutes for the lesson", text)
        tasks = [
            Task(name, cell["id"], best.get(f"practice/{name}") == 1)
            for cell in others
            if cell["cell_type"] == "code"
            for name in tasks_in("".join(cell["source"]))
        ]
        return Lesson(number, title.strip(), minutes[1] if minutes else "", tasks)
    return Lesson(number, number)


def tasks_in(source: str) -> list[str]:
    """Returns the names of the practice tasks that the source of cells checks."""
    return _PRACTICE.findall(source)


def _saved(number: str) -> float:
    """Returns when a copy of the unit's notebooks was last saved; 0 without copies."""
    with suppress(DtlabError, OSError):
        course = Course.find()
        used = {each: course.in_use(each) for each in course.handed_out(course.unit(number))}
        copies = [course.root / copy for notebook, copy in used.items() if copy != notebook]
        return max((copy.stat().st_mtime for copy in copies), default=0.0)
    return 0.0


def _name(step: Part | Lesson) -> str:
    return step.name if isinstance(step, Part) else f"lesson {step.title}"


def _number(points: float) -> str:
    return f"{round(points, 1):g}"


def _split(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Returns the required and the extra parts, without those that a person grades."""
    judged = [row for row in rows if not row.part.by_hand]
    required = [row for row in judged if not row.part.stretch]
    return required, [row for row in judged if row.part.stretch]


def _sum(rows: Sequence[Row]) -> tuple[float, float]:
    """Returns the points earned, and all points, of required parts.

    Points of extra parts replace missing points of required parts of the same level. So if a
    level has two halves with equal points, of which one is extra, either half gives full points.
    """
    earned = total = 0.0
    for level in {row.part.level for row in rows}:
        required, extra = _split(row for row in rows if row.part.level == level)
        points = sum(row.part.points for row in required)
        earned += min(points, sum(row.points for row in (*required, *extra)))
        total += points
    return earned, total


def _points(rows: Sequence[Row], with_extra: bool = True) -> str:
    """Returns the points in words: "8 of 18 points, 0 of 14 extra"."""
    required, extra = _split(rows)
    done, total = _sum(rows)
    replaced = done - sum(row.points for row in required)
    source = f" ({_number(replaced)} from extra parts)" if replaced > 1e-9 else ""
    words = [f"{_number(done)} of {_number(total)} points{source}"] if required else []
    earned, of = (sum(row.points for row in extra) - replaced,
                  sum(row.part.points for row in extra) - replaced)  # fmt: skip
    if with_extra and of > 1e-9:
        words.append(f"{_number(earned)} of {_number(of)} extra")
    return ", ".join(words)


def _course() -> Course | None:
    with suppress(DtlabError):
        return Course.find()
    return None


def _notebook(step: Part | Lesson) -> tuple[Course, Path] | None:
    """Returns the notebook of a part or a lesson; None if it is not in the learner's folder."""
    course = _course()
    if course is None:
        return None
    with suppress(DtlabError):
        if isinstance(step, Part):
            path = course.worked_on(step)
        else:
            path = course.in_use(course.lesson(step.unit))
        return (course, path) if (course.root / path).is_file() else None
    return None


def _where(step: Part | Lesson) -> str:
    """Returns the path of the notebook, or the command that creates it; "" outside a course."""
    place = _notebook(step)
    if place is None:
        return f"dtlab start {step.unit}" if _course() else ""
    return place[0].shown(place[1])


# As text -----------------------------------------------------------------------------------------


def _text_bar(rows: Sequence[Row]) -> str:
    """Returns a bar of ten characters, and the points."""
    done, total = _sum(rows)
    filled = max(int(10 * done / total), done > 0) if total else 0
    points = f"{_number(done):>4} of {_number(total):>3} points"
    return f"{'█' * filled}{'░' * (10 - filled)}{points}"


def _details(unit: Unit) -> Iterator[str]:
    """Yields lines on the lesson and on each level of a unit."""
    lesson = unit.lesson
    if lesson.tasks:
        yield from ("", f"Lesson: {lesson.count}", f"  {_where(lesson)}")
        yield from (f"  {task.state:6}  {task.name}" for task in lesson.tasks)
    width = [max(map(len, column)) for column in zip(*(r.cells for r in unit.rows), strict=True)]
    for level, rows in unit.levels():
        yield from ("", f"{level}: {_points(rows)}")
        yield f"  {_where(rows[0].part)}"
        for row in rows:
            yield "  " + "  ".join(map(str.ljust, row.cells, width)).rstrip()


# In a notebook -----------------------------------------------------------------------------------


def _unit_page(unit: Unit, unfolded: bool) -> str:
    """Returns a unit's title with its bar, which unfolds into the lesson and the parts."""
    lesson = unit.lesson
    numbers = _points(unit.rows, with_extra=False)
    numbers += f", lesson: {lesson.count}" if lesson.tasks else ""
    summary = (
        f'<summary><span style="display:inline-block;width:25em">{html.escape(lesson.title)}'
        f"</span>{_bar(unit.rows)} {numbers}</summary>"
    )
    lines = [_heading(_link(lesson, "Lesson"), lesson.count)] if lesson.tasks else []
    lines += [
        _line(task.state, "practice", _link(lesson, task.name, task.cell), "", "")
        for task in lesson.tasks
    ]
    for level, rows in unit.levels():
        lines.append(_heading(_link(rows[0].part, level), _points(rows)))
        for row in rows:
            state, name, title, *rest = map(html.escape, row.cells)
            lines.append(_line(state, name, _link(row.part, title, row.part.answer_id), *rest))
    table = (
        '<table style="color:inherit;border-collapse:collapse;margin:.3em 0 .8em 1.2em">'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    return f"<details{' open' * unfolded}>{summary}{table}</details>"


def _bar(rows: Sequence[Row]) -> str:
    done, total = _sum(rows)
    width = round(100 * done / total) if total else 0
    return (
        '<span style="display:inline-block;width:9em;height:.7em;border:1px solid currentColor;'
        'border-radius:3px;margin-right:.6em" aria-hidden="true">'
        f'<span style="display:block;height:100%;width:{width}%;background:{_GREEN}"></span>'
        "</span>"
    )


_CELL = "padding:.15em 1em .15em 0;text-align:left"


def _heading(link: str, count: str) -> str:
    return (
        f'<tr style="background:none"><th colspan="3" style="{_CELL}">{link}</th>'
        f'<th colspan="2" style="{_CELL}">{count}</th></tr>'
    )


def _line(*cells: str) -> str:
    shown = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
    return f'<tr style="background:none">{shown}</tr>'


def _link(step: Part | Lesson, text: str, cell: str = "") -> str:
    """Returns a link that JupyterLab opens: to the notebook of a part, and to a cell in it."""
    place = _notebook(step)
    if place is None:
        return text
    course, notebook = place
    path = quote(Path(os.path.relpath(course.root / notebook, notebook_folder())).as_posix())
    anchor = f"#cell-id={quote(cell)}" if cell else ""
    return f'<a href="{path}{anchor}">{text}</a>'
