"""The report of `dtlab grade`: a line for each student, and what to look at afterwards."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from textwrap import wrap

from dtlab.grading.classroom.grade import Outcome
from dtlab.grading.classroom.verdicts import changes
from dtlab.grading.late import Lateness

__all__ = ["clean", "fitted", "line", "summary"]

LONGEST_NAME = 24  # columns of a terminal
MANY = 4  # names that are told one by one


def clean(text: str) -> str:
    """The text without what steers a terminal or turns the direction of writing."""
    kinds = ((one, unicodedata.category(one)) for one in text)
    return "".join("?" if kind in ("Cc", "Cf", "Cs", "Zl", "Zp") else one for one, kind in kinds)


def fitted(text: str, width: int | None) -> str:
    """The text in so many columns of a terminal, cut or filled; as it is where width is None."""
    if width is None:
        return text
    kept, used = "", 0
    for one in text:
        columns = _columns(one)
        if used + columns > width or (used + columns == width and len(kept) + 1 < len(text)):
            kept, used = f"{kept}…", used + 1
            break
        kept, used = kept + one, used + columns
    return kept + " " * (width - used)


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def line(outcome: Outcome, width: int | None) -> str:
    """One student: points, seconds, and what a human should know; in less than `width` columns."""
    name = clean(outcome.student)
    name = fitted(name, LONGEST_NAME) if width else f"{name:<{LONGEST_NAME}}"
    if outcome.record is None:
        told = f"{name}  not graded: {_last_line(outcome.trouble)}"
    else:
        record = outcome.record
        points = f"{record.score:.6g} of {record.max_score:.6g}"
        took = "as before" if outcome.skipped else f"{record.seconds:.1f} s"
        told = "  ".join([name, f"{points:>12}", f"{took:>9}", ", ".join(_remarks(outcome))])
    return fitted(told, width and width - 1).rstrip()


def _remarks(outcome: Outcome) -> Iterator[str]:
    assert outcome.record is not None
    if outcome.trouble:
        yield "in part: see below"
    old = outcome.before.score if outcome.before and not outcome.skipped else None
    if old is not None and abs(old - outcome.record.score) > 1e-9:
        yield f"was {old:.6g}"
    if outcome.waiting:
        yield f"{sum(points for _, points in outcome.waiting):.6g} to be given by hand"
    if outcome.by_hand:
        yield "points by hand besides"
    if outcome.late:
        yield f"late: -{outcome.late[1]:.4g}" if outcome.late[1] else "late"
    if not outcome.skipped and (notes := sum(map(len, outcome.record.notes.values()))):
        yield f"{notes} note{'s' * (notes != 1)}"


def summary(seen: Iterable[Outcome], folder: str, width: int | None) -> Iterator[str]:
    """What to look at once all is done; lines of at most `width` columns."""
    seen = list(seen)
    graded = [one for one in seen if one.record is not None and not one.skipped]
    count = Counter(
        "not graded" if one.record is None else "as before" if one.skipped else "graded"
        for one in seen
    )
    yield ""
    yield ", ".join(f"{number} {what}" for what, number in sorted(count.items())) + "."
    walls = dict.fromkeys(wall for one in graded if one.record for wall in one.record.missing)
    for title, lines in (
        ("Late:", [_late(one.student, *one.late) for one in seen if one.late]),
        ("What had to be mended, or left out:", _notes(graded)),
        ("Changed since the last run:", _changed(graded)),
        (
            "Points that were given by hand stay, and count in place of any of the judge's:",
            [f"{one.student}: {', '.join(one.by_hand)}" for one in graded if one.by_hand],
        ),
        ("To be graded by hand, in formgrader (no points are lost by it):", _waiting(seen)),
        ("Walls that this system does not allow, so that graded code gets past them:", [*walls]),
        ("Not graded:", [f"{one.student}: {one.trouble}" for one in seen if one.trouble]),
    ):
        yield from _block(title, lines, width)
    if graded:
        yield f"The reasons for all points are in {folder}."


def _block(title: str, entries: Iterable[str], width: int | None) -> Iterator[str]:
    lines = [line for entry in entries for line in entry.splitlines()]
    if not lines:
        return
    yield ""
    yield title
    for one in lines:
        text = clean(one)
        if width is None:
            yield f"  {text}"
        else:
            indent = "  " + " " * (len(text) - len(text.lstrip()))
            yield from wrap(text, width - 1, initial_indent=indent, subsequent_indent="    ")


def _notes(graded: list[Outcome]) -> list[str]:
    """Each note with those whom it is about: many may have the same."""
    about: dict[str, list[str]] = {}
    for one in graded:
        for name, notes in one.record.notes.items() if one.record else ():
            for note in notes:
                about.setdefault(f"{name}: {note}", []).append(one.student)
    return [f"{_names(who)}, {note}" for note, who in about.items()]


def _waiting(seen: list[Outcome]) -> list[str]:
    """Each part that waits for a grader, its points, and whose."""
    whose: dict[tuple[str, float], list[str]] = {}
    for one in seen:
        for part in one.waiting:
            whose.setdefault(part, []).append(one.student)
    return [f"{name}, {points:g} points: {_names(who)}" for (name, points), who in whose.items()]


def _names(names: list[str]) -> str:
    shown = (
        names if len(names) <= MANY else [*names[: MANY - 1], f"{len(names) - MANY + 1} others"]
    )
    return ", ".join(shown)


def _changed(graded: list[Outcome]) -> list[str]:
    lines = []
    for one in graded:
        for change in changes(one.before, one.record) if one.before and one.record else ():
            before = "nothing" if change.before is None else f"{change.before:.6g}"
            lines.append(f"{one.student}  {change.part}  {before} -> {change.after:.6g}")
    return lines


def _late(student: str, late: Lateness, points: float) -> str:
    due = f"{late.due.astimezone():%Y-%m-%d %H:%M %Z}"
    took = (
        f"{late.percent:g} % off, {points:.4g} points" if late.percent else "nothing is taken off"
    )
    if late.grace:
        took = "within the minutes of grace"
    return f"{student}: {_span(late.seconds)} after {due}; {took}"


def _span(seconds: float) -> str:
    """A stretch of time in its two largest units."""
    minutes = max(1, round(seconds / 60))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    named = [(days, "day" if days == 1 else "days"), (hours, "h"), (minutes, "min")]
    there = [f"{number} {unit}" for number, unit in named if number]
    return " ".join(there[:2])


def _last_line(text: str) -> str:
    return clean((text.strip().splitlines() or ["no reason is known"])[-1])
