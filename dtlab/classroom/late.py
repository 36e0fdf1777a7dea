"""Late rules: deductions for late work, set in `nbgrader_config.py` below the call of `configure`:

    c.LateRules.percent_per_day = 10    # of the points earned, for each day begun
    c.LateRules.most_percent = 50       # the largest deduction
    c.LateRules.grace_minutes = 15      # delay without a deduction
    c.LateRules.assignments = {"week-3": {"percent_per_day": 25}}
    c.LateRules.extensions = {"week-3": {"ada": "2026-12-08 18:00", "x*": "2026-12-09 12:00"}}

A day is 24 hours, counted from the due date, even if daylight saving time changes. An extension is
a due date for one student, in the time zone of this machine unless it names another. Extensions
from nbgrader (`grant_extension`) count too; the later date applies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from zoneinfo import ZoneInfo

from nbgrader.api import SubmittedAssignment
from nbgrader.plugins import LateSubmissionPlugin
from traitlets import Dict, Float

from dtlab.errors import DtlabError

__all__ = ["LateRules", "Lateness", "Rules", "due_date", "lateness"]

_DAY = 86_400.0  # seconds


@dataclass(frozen=True)
class Rules:
    """The late rules of one assignment; `extensions` maps patterns of ids to due dates."""

    percent_per_day: float = 0.0
    grace_minutes: float = 0.0
    most_percent: float = 100.0
    extensions: Mapping[str, datetime] | None = None

    def due(self, student: str, due: datetime) -> datetime:
        """Returns the due date of one student; `due` is the general due date."""
        known = self.extensions or {}
        dates = [
            date for ids, date in known.items() if fnmatchcase(student, ids) or ids == student
        ]
        return max([due, *dates])

    def percent(self, seconds: float) -> float:
        """Returns the deduction in percent of the points earned, `seconds` after the due date."""
        if seconds <= self.grace_minutes * 60:
            return 0.0
        return min(math.ceil(seconds / _DAY) * self.percent_per_day, self.most_percent, 100)


@dataclass(frozen=True)
class Lateness:
    """A late submission: its due date, its delay, and the deduction."""

    due: datetime
    seconds: float
    percent: float
    grace: bool  # whether the delay is within the grace minutes

    def points(self, score: float) -> float:
        """Returns the points deducted from a score."""
        return max(0.0, score) * self.percent / 100


class LateRules(LateSubmissionPlugin):  # type: ignore[misc]
    """A plug-in of nbgrader for late work, with dtlab's rules."""

    percent_per_day = Float(0.0, help="percent of the points earned, per day").tag(config=True)
    grace_minutes = Float(0.0, help="minutes without a deduction").tag(config=True)
    most_percent = Float(100.0, help="largest deduction in percent").tag(config=True)
    assignments = Dict({}, help="other rules for some assignments, by name").tag(config=True)
    extensions = Dict({}, help="due dates of students, by assignment and id").tag(config=True)

    def late_submission_penalty(
        self, student_id: str, score: float, total_seconds_late: float
    ) -> float | None:
        """Returns the deduction from the score of a late notebook, None if there is none."""
        if self.penalty_method != "none":  # nbgrader's own rule, if the instructor has set it
            penalty = super().late_submission_penalty(student_id, score, total_seconds_late)
            return None if penalty is None else float(penalty)
        step = self.parent
        submission = step.gradebook.find_submission(step.assignment_id, student_id)
        late = lateness(submission, self.rules(step.assignment_id))
        return late.points(score) if late and late.percent else None

    def rules(self, assignment: str) -> Rules:
        """Returns the rules of an assignment. Raises `DtlabError` if the settings are invalid."""
        overrides = self.assignments.get(assignment, {})
        names = ("percent_per_day", "grace_minutes", "most_percent")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        if not isinstance(overrides, Mapping) or not overrides.keys() <= values.keys():
            raise DtlabError(
                f"c.LateRules.assignments[{assignment!r}] is {overrides!r}. It may have "
                f"{', '.join(names)}, each with a number."
            )
        values |= overrides
        for name, value in values.items():
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise DtlabError(
                    f"c.LateRules.{name} is {value!r} for {assignment}. Write 0 or more."
                )
        return Rules(**values, extensions=dict(self._dates(assignment)))

    def _dates(self, assignment: str) -> Iterator[tuple[str, datetime]]:
        dates = self.extensions.get(assignment, {})
        if not isinstance(dates, Mapping):
            raise DtlabError(
                f"c.LateRules.extensions[{assignment!r}] is {dates!r}. Write the due dates by "
                'student: {"ada": "2026-12-08 18:00"}.'
            )
        for student, text in dates.items():
            try:
                yield student, due_date(str(text))
            except DtlabError as error:
                raise DtlabError(
                    f"c.LateRules.extensions[{assignment!r}][{student!r}]: {error}"
                ) from error


def lateness(submission: SubmittedAssignment, rules: Rules) -> Lateness | None:
    """Returns the lateness of a submission in the gradebook; None if it is on time or unknown.

    The gradebook stores all times in UTC, without a time zone.
    """
    if submission.timestamp is None or submission.assignment.duedate is None:
        return None
    due = rules.due(submission.student.id, submission.duedate.replace(tzinfo=UTC))
    over = submission.timestamp.replace(tzinfo=UTC) - due
    if over <= timedelta(0):
        return None
    seconds = over.total_seconds()
    return Lateness(due, seconds, rules.percent(seconds), seconds <= rules.grace_minutes * 60)


# Dates that instructors write --------------------------------------------------------------------

_DUE = (
    'Write the due date as "2026-12-01 18:00", or with its zone, "2026-12-01 18:00 Europe/Berlin".'
)


def due_date(text: str) -> datetime:
    """Parses a due date; without a zone it is in the time zone of this machine.

    Raises a `DtlabError` that says how to write a date if the text is not one.
    """
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?)\s*(\S*)", text.strip())
    try:
        if match is None:
            raise ValueError(text)
        moment, zone = datetime.fromisoformat(match[1]), match[2]
        if not zone:
            return moment.astimezone()
        if zone in ("Z", "UTC") or zone[0] in "+-":
            return datetime.fromisoformat(f"{match[1]}{zone.replace('UTC', 'Z')}")
        return moment.replace(tzinfo=ZoneInfo(zone))
    except (ValueError, KeyError, OSError) as error:  # an unknown zone raises KeyError
        raise DtlabError(f"{text!r} cannot be read as a due date. {_DUE}") from error
