"""Criteria: what is judged of a learner's function, from what its ranks returned.

A case reports its faults, each under the name of a criterion. `rule` makes the criterion:

    rank r: on_rank ──> what the rank noted ──> case.faults(results): ("bytes", "rank 0 ...")
                                                                        │
    rule("bytes", 2, "a ring's bytes", "values")  <─────────────────────┘

It is lost with the first fault of its name, or if a rank crashes in a case with this `topic`. It
is blocked while a criterion that it names after its message is lost.

For runs of a whole program, `criterion` takes objections in place of a case's faults: functions
of a case, of what its ranks returned, and of the observation. Each says what is wrong and what to
look at next; an empty string means that nothing is wrong.

    criterion("bytes", 2, "two all-reduces a layer", not_shared, other_bytes)
    criterion("training", 1, "as one process", other_training, after="bytes")
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dtlab.grading.checking.checks import Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.trials import UNREADABLE, Case, Observation
from dtlab.grading.words import amount

__all__ = [
    "Fault",
    "Faulty",
    "Noted",
    "Objection",
    "Seen",
    "criterion",
    "judge",
    "of_topic",
    "right_on_some",
    "rule",
    "traffic",
]

Seen = Sequence[Observation]


def of_topic(seen: Seen, topic: str) -> list[Observation]:
    """The trials with a case of this topic."""
    return [
        one for one in seen if any(getattr(case, "topic", "") == topic for case in one.trial.cases)
    ]


def right_on_some(seen: Seen) -> str:
    """Names the numbers of ranks on which all is right; empty if that is all of them or none."""
    right = {one.trial.world_size for one in seen if not one.mistakes}
    if not right or right == {one.trial.world_size for one in seen}:
        return ""
    ranks = " and ".join(map(str, sorted(right)))
    return f"Right on {ranks} rank{'s' * (right != {1})} only: what depends on how many there are?"


# Criteria of cases that report their faults -----------------------------------------------------

_MORE, _LESS, _OWN = 1.05, 0.95, 8192  # factors; bytes of gloo's own in a launch

Fault = tuple[str, str]  # the criterion that is lost, and why


class Noted:
    """What a rank noted, by name, and which finished code was called on it."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._result = dict(result)
        self.finished = frozenset(map(str, self._result.get("finished", ())))

    def __getitem__(self, name: str) -> Any:
        return self._result[name]

    def get(self, name: str) -> Any:
        """What was noted under this name, None where nothing was."""
        return self._result.get(name)


class Faulty(Case):
    """A case whose `faults` belong to criteria; a crash in it belongs to its `topic`."""

    topic: str

    @property
    def guilty(self) -> str:
        """The criterion that a crash in this case belongs to."""
        return self.topic

    def shows(self, criterion: str) -> bool:
        """Whether a criterion cannot be judged where this case came to nothing."""
        return True

    def advice(self, trouble: str) -> str:
        """What a crash in this case may come from, where that is known."""
        return ""

    @abstractmethod
    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """All that is wrong with what the ranks returned."""

    def opened(self, result: Any) -> Noted:
        """See `Case`."""
        return Noted(result)

    def mistake(self, results: Sequence[Noted]) -> str:
        """See `Case`."""
        return next((words for _, words in self.faults(results)), "")


def judge(
    name: str, right: str, *before: str, also: Callable[[Seen], str] = lambda _: ""
) -> Judge:
    """Judges the criterion of this name, once those `before` it are right.

    `also` says what else may be wrong with it.
    """

    def judged(seen: Seen) -> Verdict:
        for other in before:
            if _fault(seen, other):
                return blocked("judged once what is lost here is right")
        wrong = _fault(seen, name) or also(seen)
        if wrong:
            return lost(wrong)
        shown = [one for one in seen if _shows(one, name)]
        if not shown and any(one.hung for one in seen):  # later trials were not run
            return blocked("judged once the ranks finish what is tried before it")
        failed = next((one for one in shown if one.error is not None), None)
        if failed is not None:
            return blocked(f"judged once nothing fails in {failed.trial.words()}")
        if any(vars(one).get("unreadable") for one in shown):
            return blocked("judged once the ranks return what is asked for")
        return ok(right)

    return judged


def rule(
    name: str,
    points: float,
    right: str,
    *before: str,
    also: Callable[[Seen], str] = lambda _: "",
    after: str = "",
) -> Rule:
    """The criterion of this name: see `judge`. For `after` see `Rule`."""
    return Rule(name, points, judge(name, right, *before, also=also), after)


def _fault(seen: Seen, name: str) -> str:
    """The first thing that is wrong with a criterion; empty if nothing is."""
    return next((words for one in seen for words in _faults(one, name)), "")


def _shows(one: Observation, name: str) -> bool:
    return any(case.shows(name) for case in one.trial.cases if isinstance(case, Faulty))


def _faults(one: Observation, name: str) -> Iterator[str]:
    cases = [case for case in one.trial.cases if isinstance(case, Faulty)]
    if one.error is not None:
        case = cases[one.failed_case or 0]
        if case.guilty == name:
            yield f"{one.trouble}\n{case.advice(one.trouble)}".rstrip()
        return
    code = called_by(result for results in one.results for result in results)
    if code and cases[0].topic == name:
        yield f"{code} does the work for you, and finished code does not count."
    if "faults" not in vars(one):  # kept as `mistakes` is: every criterion asks for them
        found = [*_all_faults(one)]
        unreadable = any(words.endswith(UNREADABLE) for _, words in found)
        vars(one).update(faults=found, unreadable=unreadable)
    yield from (words for topic, words in vars(one)["faults"] if topic == name)


def _all_faults(one: Observation) -> Iterator[Fault]:
    for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
        assert isinstance(case, Faulty)
        try:
            found = list(case.faults(results))
        except (TypeError, ValueError, AttributeError, LookupError, RuntimeError):
            found = [(case.topic, UNREADABLE)]
        yield from ((name, f"{one.trial.words(number)}: {words}") for name, words in found)


def traffic(topic: str, times: float, advice: str) -> Callable[[Seen], str]:
    """Says that other bytes leave a rank than should, in trials whose first case has this topic.

    A rank sends (N-1)/N of all elements of the case, `times` so often, at 4 bytes each.
    """

    def wrong(seen: Seen) -> str:
        for one in seen:
            case: Any = one.trial.cases[0]
            if case.topic != topic or one.error is not None or one.trace is None:
                continue
            ranks = one.trial.world_size
            goal = times * 4 * case.elements * (ranks - 1) / ranks
            for rank in range(ranks):
                sent = one.trace.bytes_wire(rank)
                if sent is not None and not goal * _LESS <= sent <= goal * _MORE + _OWN:
                    return (
                        f"{one.trial.words()}: {amount(sent)} left rank {rank}, and it takes "
                        f"{amount(goal)}. {advice}"
                    )
        return ""

    return wrong


# Criteria of whole programs, judged by objections -----------------------------------------------

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
    """A criterion that is lost if the ranks do not finish, or if there is an objection.

    Its message is `right` if there is none. `trouble` says why the ranks did not finish. With
    `waits` the criterion is blocked in that case, because another one is lost already.
    """

    def judge(seen: Sequence[Observation]) -> Verdict:
        gone = next(filter(None, map(trouble, seen)), "")
        if gone and waits:
            return blocked("judged once the ranks finish")
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
