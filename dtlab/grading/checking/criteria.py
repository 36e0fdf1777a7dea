"""Criteria: what is judged of a learner's function, from what its ranks returned.

A case reports its faults, each under the name of a criterion. `rule` makes the criterion:

    rank r: on_rank ──> what the rank noted ──> case.faults(results): ("bytes", "rank 0 ...")
                                                                        │
    rule("bytes", 2, "a ring's bytes", "values")  <─────────────────────┘

It is lost with the first fault of its name, or if a rank crashes in a case with this `topic`. It
is blocked while there is a fault of a name that it lists after its message. `by_trace` reports
faults too: those that the trace of a trial shows.

For runs of a whole program, `criterion` takes objections in place of a case's faults: functions
of a case, of what its ranks returned, and of the observation. Each says what is wrong and what to
look at next; an empty string means that nothing is wrong.

    criterion("bytes", 2, "two all-reduces a layer", not_shared, other_bytes)
    criterion("training", 1, "as one process", other_training, after="bytes")
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Rule, Verdict, blocked, lost, ok
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
    "fault",
    "finished_code",
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
    """A case whose `faults` belong to criteria; a crash in it belongs to its `topic`.

    `also_shows` has the criteria that a case shows besides its topic, by the topic. Where it is
    None, a case shows all criteria.
    """

    topic: str
    also_shows: ClassVar[Mapping[str, Sequence[str]] | None] = None

    @property
    def guilty(self) -> str:
        """The criterion that a crash in this case belongs to."""
        return self.topic

    def shows(self, criterion: str) -> bool:
        """Whether a criterion cannot be judged where this case came to nothing."""
        shown = self.also_shows
        return shown is None or criterion in (self.topic, *shown.get(self.topic, ()))

    def advice(self, trouble: str) -> str:
        """What a crash in this case may come from, where that is known."""
        return ""

    @abstractmethod
    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """All that is wrong with what the ranks returned."""

    def by_trace(self, one: Observation) -> Iterator[Fault]:
        """All that is wrong with what the ranks did, in words that say where.

        The first case of a trial reports this, for all cases of the trial. `fault` has the faults
        of the results by then.
        """
        yield from ()

    def opened(self, result: Any) -> Noted:
        """See `Case`."""
        return Noted(result)

    def mistake(self, results: Sequence[Noted]) -> str:
        """See `Case`."""
        return next((words for _, words in self.faults(results)), "")


def rule(
    name: str,
    points: float,
    right: str,
    *before: str,
    lost_by: Sequence[str] = (),
    also: Callable[[Seen], str] = lambda _: "",
    advice: Callable[[Seen, str], str] = lambda _, __: "",
    on: str = "",
    finish: bool = False,
    after: str = "",
) -> Rule:
    """The criterion of this name, judged once there is no fault of a name in `before`.

    It is lost by faults of its name, or of the names in `lost_by`, in this order. `also` says
    what else may be wrong. `advice` says what to look at, given the trials that show the criterion
    and what is wrong. With `on`, it is judged on trials of this topic, once no other trial that
    shows it fails. With `finish`, it is blocked where any trial hangs, whether or not that trial
    shows it. For `after` see `Rule`.
    """

    def judged(seen: Seen) -> Verdict:
        if any(fault(seen, other) for other in before):
            return blocked("judged once what is lost here is right")
        shown = [one for one in seen if any(case.shows(name) for case in _cases(one))]
        others = [one for one in shown if on and not of_topic([one], on)]
        unfinished = _unfinished(others)
        if unfinished:
            return blocked(unfinished)
        faults = filter(None, (fault(seen, other) for other in lost_by or (name,)))
        wrong = next(faults, "") or also(seen)
        if wrong:
            return lost(f"{wrong}\n{advice(shown, wrong)}".rstrip())
        unseen = len(shown) == len(others)  # a trial that hangs is the last one that is run
        if (unseen or finish) and any(one.hung for one in seen):
            return blocked("judged once the ranks finish what is tried before it")
        unfinished = _unfinished(shown)
        return blocked(unfinished) if unfinished else ok(right)

    return Rule(name, points, judged, after)


def _unfinished(seen: Seen) -> str:
    """What has to come first: no trial may fail or return something that cannot be read."""
    for one in seen:
        if one.error is not None:
            return f"judged once nothing fails in {one.trial.words()}"
    if any(words.endswith(UNREADABLE) for one in seen for _, words in _found(one)):
        return "judged once the ranks return what is asked for"
    return ""


def fault(seen: Seen, name: str) -> str:
    """The first fault of this name; empty if there is none."""
    return next((words for one in seen for words in _faults(one, name)), "")


def finished_code(one: Observation) -> str:
    """Says that finished code did the work in a trial; empty if none did."""
    code = called_by(result for results in one.results for result in results)
    return f"{code} does the work for you, and finished code does not count." if code else ""


def _faults(one: Observation, name: str) -> Iterator[str]:
    if one.error is not None:
        case = _cases(one)[one.failed_case or 0]
        if case.guilty == name:
            yield f"{one.trouble}\n{case.advice(one.trouble)}".rstrip()
        return
    yield from (words for topic, words in _found(one) if topic == name)


def _found(one: Observation) -> list[Fault]:
    """All faults of a trial; kept as `mistakes` is, because every criterion looks at them."""
    if "faults" not in vars(one):
        cases, code = _cases(one), finished_code(one)
        found = [(cases[0].topic, code)] if code else []
        vars(one)["faults"] = found
        for number, (case, results) in enumerate(zip(cases, one.results, strict=True)):
            where = one.trial.words(number)
            reported = _readable(case, case.faults, results)
            found += ((name, f"{where}: {words}") for name, words in reported)
        found += _readable(cases[0], cases[0].by_trace, one)
    faults: list[Fault] = vars(one)["faults"]
    return faults


def _cases(one: Observation) -> list[Faulty]:
    return [case for case in one.trial.cases if isinstance(case, Faulty)]


def _readable(case: Faulty, report: Callable[[Any], Iterator[Fault]], of: Any) -> list[Fault]:
    """What a case reports; ranks may have returned things that it cannot even be asked about."""
    try:
        return list(report(of))
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return [(case.topic, UNREADABLE)]


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
