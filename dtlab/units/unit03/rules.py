"""Criteria that are blocked where a hang kept the trials that show them from being run."""

from __future__ import annotations

from collections.abc import Callable

from dtlab.grading.checking.checks import Rule, Verdict, blocked
from dtlab.grading.checking.faults import Faulty, judge
from dtlab.grading.checking.topics import Seen

__all__ = ["shown_rule"]


def shown_rule(
    name: str,
    points: float,
    right: str,
    *before: str,
    also: Callable[[Seen], str] = lambda _: "",
    after: str = "",
) -> Rule:
    """As `faults.rule`, for cases that `show` some criteria only; `after` is that of a `Rule`.

    A trial that hangs is the last one run: what only later trials show is not right by that.
    """
    judge_shown = judge(name, right, *before, also=also)

    def judged(seen: Seen) -> Verdict:
        cases = [case for one in seen for case in one.trial.cases if isinstance(case, Faulty)]
        if any(case.shows(name) for case in cases):
            return judge_shown(seen)
        return blocked("judged once the ranks come back from what is tried before it")

    return Rule(name, points, judged, after)
