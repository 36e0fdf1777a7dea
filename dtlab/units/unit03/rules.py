"""The rules of Level II: when a criterion can be judged, and whose work is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Rule, Verdict, blocked
from dtlab.grading.checking.criteria import Faulty, Seen, judge, of_topic
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.unseen import inside_marks, unseen_collectives, unseen_source

if TYPE_CHECKING:
    from dtlab.trace import Event

__all__ = ["foreign", "in_each_step", "own_rule", "shown_rule"]


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


def own_rule(
    name: str, points: float, right: str, *before: str, also: Callable[[Seen], str] = lambda _: ""
) -> Rule:
    """As `shown_rule`, for what is judged whether or not the first criterion is right.

    It is blocked where that one is lost because the work is not the learner's own (`foreign`).
    """
    shown = shown_rule(name, points, right, *before, also=also)

    def judged(seen: Seen) -> Verdict:
        if foreign(seen):
            return blocked("judged once your own calls do the work")
        return shown.judge(seen)

    return replace(shown, judge=judged)


def foreign(seen: Seen) -> str:
    """How a result came about where the check cannot see it; empty where it can.

    A case says as `reduced` how many bytes its `groups` have to add up in each step.
    """
    for one in seen:
        cases: list[Any] = list(one.trial.cases)
        code = called_by(result for results in one.results for result in results)
        if code:
            return f"{code} does the work for you, and finished code does not count."
        found = unseen_collectives(one)
        right = judge(cases[0].topic, "")([one]).status == "ok"
        if not found and right and all(hasattr(case, "reduced") for case in cases):
            size = sum(sum(case.reduced) for case in cases)
            found = unseen_source(one, "what they return is", size, cases[0].groups)
        if found:
            return found
    return ""


def in_each_step(seen: Seen, topic: str) -> Iterator[tuple[str, int, list[Event]]]:
    """What several ranks did in each step of a topic: where, the bytes to add up, the events."""
    for one in of_topic(seen, topic):
        if one.trial.world_size == 1:
            continue
        steps = [
            (f"{one.trial.words(number)}, step {step + 1}", size)
            for number, case in enumerate(one.trial.cases)
            for step, size in enumerate(getattr(case, "reduced", ()))
        ]
        for rank in range(one.trial.world_size):
            marks = inside_marks(one.trace, rank, "step")
            for (where, size), events in zip(steps, marks, strict=False):
                yield f"{where}, rank {rank}", size, events
