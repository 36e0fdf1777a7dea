"""Late rules: deductions for late work, set in `nbgrader_config.py` below the call of `configure`:

    c.LateRules.percent_per_day = 10    # of what was earned, for each day that has begun
    c.LateRules.most_percent = 50       # and never more than this
    c.LateRules.grace_minutes = 15      # that cost nothing
    c.LateRules.assignments = {"week-3": {"percent_per_day": 25}}
    c.LateRules.extensions = {"week-3": {"ada": "2026-12-08 18:00", "x*": "2026-12-09 12:00"}}

Days are of 24 hours from the due date on, whatever clocks do meanwhile. An extension is a due date
of one's own, in the time zone of this machine unless it names another; one that nbgrader knows of
(`grant_extension`) counts too: the later one holds.
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
    """What being late costs in one assignment; `extensions` has due dates by pattern of ids."""

    percent_per_day: float = 0.0
    grace_minutes: float = 0.0
    most_percent: float = 100.0
    extensions: Mapping[str, datetime] | None = None

    def due(self, student: str, due: datetime) -> datetime:
        """The due date of one student, where that of the others is `due`."""
        known = self.extensions or {}
        own = [date for ids, date in known.items() if fnmatchcase(student, ids) or ids == student]
        return max([due, *own])

    def percent(self, seconds: float) -> float:
        """The percent that are taken off what was earned, `seconds` after the due date."""
        if seconds <= self.grace_minutes * 60:
            return 0.0
        return min(math.ceil(seconds / _DAY) * self.percent_per_day, self.most_percent, 100)


@dataclass(frozen=True)
class Lateness:
    """Work that came late: when it was due, by how much, and what that takes off."""

    due: datetime
    seconds: float
    percent: float
    grace: bool  # whether it is within the minutes that cost nothing

    def points(self, score: float) -> float:
        """What is taken off a score."""
        return max(0.0, score) * self.percent / 100


class LateRules(LateSubmissionPlugin):  # type: ignore[misc]
    """nbgrader's plug-in for late work, with rules."""

    percent_per_day = Float(0.0, help="percent of what was earned").tag(config=True)
    grace_minutes = Float(0.0, help="minutes that cost nothing").tag(config=True)
    most_percent = Float(100.0, help="percent that are taken off at most").tag(config=True)
    assignments = Dict({}, help="other rules for some assignments, by name").tag(config=True)
    extensions = Dict({}, help="due dates of students, by assignment and id").tag(config=True)

    def late_submission_penalty(
        self, student_id: str, score: float, total_seconds_late: float
    ) -> float | None:
        """What is taken off the score of a notebook; nbgrader asks for work that is late.

        None where nothing is.
        """
        if self.penalty_method != "none":  # nbgrader's own rule, if somebody has set it
            penalty = super().late_submission_penalty(student_id, score, total_seconds_late)
            return None if penalty is None else float(penalty)
        step = self.parent
        submission = step.gradebook.find_submission(step.assignment_id, student_id)
        late = lateness(submission, self.rules(step.assignment_id))
        return late.points(score) if late and late.percent else None

    def rules(self, assignment: str) -> Rules:
        """The rules of an assignment. Raises `DtlabError` where the settings make no sense."""
        own = self.assignments.get(assignment, {})
        names = ("percent_per_day", "grace_minutes", "most_percent")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        if not isinstance(own, Mapping) or not own.keys() <= values.keys():
            raise DtlabError(
                f"c.LateRules.assignments[{assignment!r}] is {own!r}. It may have "
                f"{', '.join(names)}, each with a number."
            )
        values |= own
        for name, value in values.items():
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise DtlabError(
                    f"c.LateRules.{name} is {value!r} for {assignment}. Write 0 or more."
                )
        return Rules(**values, extensions=dict(self._dates(assignment)))

    def _dates(self, assignment: str) -> Iterator[tuple[str, datetime]]:
        own = self.extensions.get(assignment, {})
        if not isinstance(own, Mapping):
            raise DtlabError(
                f"c.LateRules.extensions[{assignment!r}] is {own!r}. Write the due dates by "
                'student, as {"ada": "2026-12-08 18:00"}.'
            )
        for student, text in own.items():
            try:
                yield student, due_date(str(text))
            except DtlabError as error:
                raise DtlabError(
                    f"c.LateRules.extensions[{assignment!r}][{student!r}]: {error}"
                ) from error


def lateness(submission: SubmittedAssignment, rules: Rules) -> Lateness | None:
    """How late a submission in the gradebook is; None where it is not, or nobody knows.

    The gradebook has all times in UTC, and does not say so.
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
    """The moment that an instructor means; without a zone it is that of this machine.

    Raises `DtlabError` that says how to write it.
    """
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?)\s*(\S*)", text.strip())
    try:
        if found is None:
            raise ValueError(text)
        moment, zone = datetime.fromisoformat(found[1]), found[2]
        if not zone:
            return moment.astimezone()
        if zone in ("Z", "UTC") or zone[0] in "+-":
            return datetime.fromisoformat(f"{found[1]}{zone.replace('UTC', 'Z')}")
        return moment.replace(tzinfo=ZoneInfo(zone))
    except (ValueError, KeyError, OSError) as error:  # no zone of that name is a KeyError
        raise DtlabError(f"{text!r} is no due date that can be read. {_DUE}") from error
