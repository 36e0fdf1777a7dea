"""The report of `dtlab grade`: a line for each student, and a summary at the end."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from textwrap import wrap

from dtlab.classroom.grade import Outcome
from dtlab.classroom.late import Lateness
from dtlab.classroom.verdicts import changes

__all__ = ["clean", "fitted", "line", "summary"]

LONGEST_NAME = 24  # columns of a terminal
MANY = 4  # most names that a list shows


def clean(text: str) -> str:
    """Replaces terminal control characters and changes of the writing direction by "?"."""
    kinds = ((char, unicodedata.category(char)) for char in text)
    return "".join("?" if kind in ("Cc", "Cf", "Cs", "Zl", "Zp") else char for char, kind in kinds)


def fitted(text: str, width: int | None) -> str:
    """Cuts or pads the text to `width` columns of a terminal; unchanged if width is None."""
    if width is None:
        return text
    result, used = "", 0
    for char in text:
        columns = _columns(char)
        if used + columns > width or (used + columns == width and len(result) + 1 < len(text)):
            result, used = f"{result}…", used + 1
            break
        result, used = result + char, used + columns
    return result + " " * (width - used)


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def line(outcome: Outcome, width: int | None) -> str:
    """Formats the result of a student: points, seconds, remarks; under `width` columns."""
    name = clean(outcome.student)
    name = fitted(name, LONGEST_NAME) if width else f"{name:<{LONGEST_NAME}}"
    if outcome.record is None:
        text = f"{name}  not graded: {_last_line(outcome.trouble)}"
    else:
        record = outcome.record
        points = f"{record.score:.6g} of {record.max_score:.6g}"
        took = "as before" if outcome.skipped else f"{record.seconds:.1f} s"
        text = "  ".join([name, f"{points:>12}", f"{took:>9}", ", ".join(_remarks(outcome))])
    return fitted(text, width and width - 1).rstrip()


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
        yield "also points by hand"
    if outcome.late:
        yield f"late: -{outcome.late[1]:.4g}" if outcome.late[1] else "late"
    if not outcome.skipped and (notes := sum(map(len, outcome.record.notes.values()))):
        yield f"{notes} note{'s' * (notes != 1)}"


def summary(outcomes: Iterable[Outcome], folder: str, width: int | None) -> Iterator[str]:
    """Yields the lines of the summary, of at most `width` columns."""
    outcomes = list(outcomes)
    graded = [
        outcome for outcome in outcomes if outcome.record is not None and not outcome.skipped
    ]
    count = Counter(
        "not graded" if outcome.record is None else "as before" if outcome.skipped else "graded"
        for outcome in outcomes
    )
    yield ""
    yield ", ".join(f"{number} {status}" for status, number in sorted(count.items())) + "."
    missing = {  # the reason may name a process, which differs between submissions
        kind.partition(" (")[0]: kind
        for outcome in graded
        if outcome.record
        for kind in outcome.record.missing
    }
    for title, lines in (
        ("Late:", [_late(outcome.student, *outcome.late) for outcome in outcomes if outcome.late]),
        ("Repairs, and files or cells that were left out:", _notes(graded)),
        ("Changed since the last run:", _changed(graded)),
        (
            "Points that a grader gave by hand stay, and replace the automatic points:",
            [
                f"{outcome.student}: {', '.join(outcome.by_hand)}"
                for outcome in graded
                if outcome.by_hand
            ],
        ),
        ("To be graded by hand, in formgrader (no points are lost by it):", _waiting(outcomes)),
        (
            "Isolation that this system does not support, so code was not confined by it:",
            [*missing.values()],
        ),
        (
            "Not graded:",
            [f"{outcome.student}: {outcome.trouble}" for outcome in outcomes if outcome.trouble],
        ),
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
    for line in lines:
        text = clean(line)
        if width is None:
            yield f"  {text}"
        else:
            indent = "  " + " " * (len(text) - len(text.lstrip()))
            yield from wrap(text, width - 1, initial_indent=indent, subsequent_indent="    ")


def _notes(graded: list[Outcome]) -> list[str]:
    """Returns each note once, with all students to whom it applies."""
    students: dict[str, list[str]] = {}
    for outcome in graded:
        for name, notes in outcome.record.notes.items() if outcome.record else ():
            for note in notes:
                students.setdefault(f"{name}: {note}", []).append(outcome.student)
    return [f"{_names(names)}, {note}" for note, names in students.items()]


def _waiting(outcomes: list[Outcome]) -> list[str]:
    """Returns each part that a grader must grade, with its points and students."""
    students: dict[tuple[str, float], list[str]] = {}
    for outcome in outcomes:
        for part in outcome.waiting:
            students.setdefault(part, []).append(outcome.student)
    return [f"{part}, {points:g} points: {_names(n)}" for (part, points), n in students.items()]


def _names(names: list[str]) -> str:
    shown = (
        names if len(names) <= MANY else [*names[: MANY - 1], f"{len(names) - MANY + 1} others"]
    )
    return ", ".join(shown)


def _changed(graded: list[Outcome]) -> list[str]:
    lines = []
    for outcome in graded:
        for change in (
            changes(outcome.before, outcome.record) if outcome.before and outcome.record else ()
        ):
            before = "nothing" if change.before is None else f"{change.before:.6g}"
            lines.append(f"{outcome.student}  {change.part}  {before} -> {change.after:.6g}")
    return lines


def _late(student: str, late: Lateness, points: float) -> str:
    due = f"{late.due.astimezone():%Y-%m-%d %H:%M %Z}"
    penalty = (
        f"{late.percent:g} % off, {points:.4g} points" if late.percent else "nothing is taken off"
    )
    if late.grace:
        penalty = "within the minutes of grace"
    return f"{student}: {_span(late.seconds)} after {due}; {penalty}"


def _span(seconds: float) -> str:
    """Formats a duration in its two largest units."""
    minutes = max(1, round(seconds / 60))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    named = [(days, "day" if days == 1 else "days"), (hours, "h"), (minutes, "min")]
    nonzero = [f"{number} {unit}" for number, unit in named if number]
    return " ".join(nonzero[:2])


def _last_line(text: str) -> str:
    return clean((text.strip().splitlines() or ["no reason is known"])[-1])
