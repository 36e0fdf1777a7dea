"""Criteria of runs that are judged by objections, one after the other.

An objection is a function of a case, of what its ranks returned, and of the whole observation. It
says what is wrong and what to look at next, and is empty where nothing is.

    criterion("bytes", 2, "two all-reduces a layer", not_shared, other_bytes),
    criterion("training", 1, "as one process", other_training, after="bytes"),
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dtlab.grading.checking.checks import Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import UNREADABLE, Observation

__all__ = ["Objection", "criterion"]

Objection = Callable[[Any, Any, Observation], str]


def criterion(
    name: str,
    points: float,
    right: str,
    *objections: Objection,
    after: str = "",
    trouble: Callable[[Observation], str] = lambda one: one.trouble,
    waits: bool = False,
) -> Rule:
    """A criterion that is lost where ranks do not come back, or where there is an objection.

    Its message is `right` where there is none. `trouble` says why ranks did not come back. With
    `waits` the criterion is blocked then, because another one is already lost by that.
    """

    def judge(seen: Sequence[Observation]) -> Verdict:
        gone = next(filter(None, map(trouble, seen)), "")
        if gone and waits:
            return blocked("judged once the ranks come back")
        said = gone or next(_said(seen, objections), "")
        return lost(said) if said else ok(right)

    return Rule(name, points, judge, after=after)


def _said(seen: Sequence[Observation], objections: Sequence[Objection]) -> Iterator[str]:
    for one in seen:
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
            said = (_objection(objection, case, results, one) for objection in objections)
            yield from (f"{one.trial.words(number)}: {what}" for what in said if what)


def _objection(objection: Objection, case: Any, results: Any, one: Observation) -> str:
    """What it says; ranks may have returned things that it cannot even be asked about."""
    try:
        return objection(case, results, one)
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return UNREADABLE
