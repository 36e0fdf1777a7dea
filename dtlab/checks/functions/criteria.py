"""Criteria: rules that judge a learner's function from what its ranks returned and recorded.

A case reports faults, each under the name of a criterion. `rule` makes the criterion:

    rank r: on_rank ──> the rank's notes ──> case.faults(results): ("bytes", "rank 0 ...")
                                                                        │
    rule("bytes", 2, "a ring's bytes", "values")  <─────────────────────┘

The criterion is lost with the first fault of its name, or if a rank crashes in a case with this
`topic`. It is blocked while there is a fault of one of the names listed after its message.
`by_trace` also reports faults: those that the trace of a trial shows. If a fault is a known
mistake, its message is an `Explanation`, and the criterion keeps the mistake.

Criteria of whole programs share their judges: `by` lists objections. An objection is a function of
a case, of what its ranks returned, and of the observation. It says what is wrong and what to look
at next; an empty string means that nothing is wrong.

    rule("bytes", 2, "two all-reduces a layer", by=(not_shared, other_bytes))
    rule("training", 1, "as one process", by=other_training, after="bytes")
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from dtlab.checks.functions.checks import Judging, Rule, Verdict, blocked, lost, ok, waits_for
from dtlab.checks.functions.finished import called_by
from dtlab.checks.functions.trials import UNREADABLE, Case, Observation
from dtlab.checks.words import Explanation, amount, mistake_of

__all__ = [
    "Fault",
    "Faulty",
    "Noted",
    "Objection",
    "Seen",
    "after_reduce",
    "fault",
    "finished_code",
    "of_topic",
    "right_on_some",
    "rule",
    "traffic",
]

Seen = Sequence[Observation]


def of_topic(seen: Seen, topic: str) -> list[Observation]:
    """The observations of all trials that hold a case of this topic."""
    return [
        observation
        for observation in seen
        if any(getattr(case, "topic", "") == topic for case in observation.trial.cases)
    ]


def right_on_some(seen: Seen) -> str:
    """The world sizes on which everything is right, in a sentence; empty if all or none are."""
    right = {observation.trial.world_size for observation in seen if not observation.mistakes}
    if not right or right == {observation.trial.world_size for observation in seen}:
        return ""
    ranks = " and ".join(map(str, sorted(right)))
    return f"Right on {ranks} rank{'s' * (right != {1})} only: what depends on their number?"


# Criteria of cases that report their faults -----------------------------------------------------

_MORE, _LESS, _OWN = 1.05, 0.95, 8192  # factors; bytes that gloo itself sends in a launch

Fault = tuple[str, str]  # the criterion that is lost, and why


class Noted:
    """The notes of one rank, by name, and the finished implementations that it called."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._result = dict(result)
        self.finished = frozenset(map(str, self._result.get("finished", ())))

    def __getitem__(self, name: str) -> Any:
        return self._result[name]

    def get(self, name: str) -> Any:
        """Returns the note of this name, or None if the rank made none."""
        return self._result.get(name)


class Faulty(Case):
    """A case whose `faults` belong to criteria. A crash in it counts against its `topic`.

    `also_shows` maps a topic to the criteria that its cases judge besides the topic. If it is
    None, a case judges all criteria.
    """

    topic: str
    also_shows: ClassVar[Mapping[str, Sequence[str]] | None] = None

    @property
    def guilty(self) -> str:
        """The criterion that is lost by a crash in this case."""
        return self.topic

    def shows(self, criterion: str) -> bool:
        """Whether a criterion cannot be judged if this case does not finish."""
        shown = self.also_shows
        return shown is None or criterion in (self.topic, *shown.get(self.topic, ()))

    @abstractmethod
    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """Yields everything that is wrong with what the ranks returned."""

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        """Yields everything that the trace shows to be wrong; each message says where.

        Called only on the first case of a trial, which reports for all cases of the trial. At that
        time, `fault` already returns the faults in the results.
        """
        yield from ()

    def faults_before_error(self) -> Iterator[Fault]:
        """Yields what was wrong before this case failed, if a dialogue has shown it."""
        yield from ()

    def opened(self, result: Any) -> Noted:
        """Wraps the result of one rank in `Noted`."""
        return Noted(result)

    def mistake(self, results: Sequence[Noted]) -> str:
        """The message of the first fault in the results; empty if there is none."""
        return next((message for _, message in self.faults(results)), "")


def rule(
    name: str,
    points: float,
    right: str,
    *before: str,
    by: Objection | Sequence[Objection] = (),
    lost_by: Sequence[str] = (),
    waits: Callable[[Seen], str] = lambda _: "",
    also: Callable[[Seen], str] = lambda _: "",
    advice: Callable[[Seen, str], str] = lambda _, __: "",
    on: str = "",
    finish: bool = False,
    after: str | tuple[str, ...] = (),
    most: int = 1,
    then: Sequence[str] = (),
    alone: Callable[[Seen], str] | None = None,
) -> Rule:
    """Makes the criterion `name`, which is judged once there is no fault of a name in `before`.

    It is lost by faults of its name, or of the names in `lost_by`, in this order, and by the
    objections in `by`, which judge the runs only if all of them finish. `also` returns a further
    fault, or an empty string. `advice` returns a hint, given the trials that show the criterion
    and the fault. If `waits` returns a text, the criterion is blocked: "judged once ...".

    With `on`, the criterion is judged on trials of this topic, and is blocked if another trial
    that shows it fails. With `finish`, it is blocked if any trial hangs, also one that does not
    show it. For `after` see `Rule`. The message of a lost criterion has at most `most` faults: its
    own ones, and then those of the names in `then`, whose criteria it blocks. A criterion that
    judges several cases together has an `alone`, which says what is wrong with a single one.
    """
    objections = (by,) if callable(by) else by

    def judged(seen: Seen) -> Verdict:
        if lacking := next((other for other in before if fault(seen, other)), ""):
            return waits_for(lacking)
        if until := _until(waits, seen):
            return blocked(f"judged once {until}")
        shown = [trial for trial in seen if any(case.shows(name) for case in _cases(trial))]
        off_topic = [trial for trial in shown if on and not of_topic([trial], on)]
        unfinished = _unfinished(seen if objections else off_topic)
        if unfinished:
            return blocked(unfinished)
        own = [text for other in lost_by or (name,) for text in _all_faults(seen, other)]
        own += islice(_messages(seen, objections), most)
        more = [text for other in then for text in _all_faults(seen, other)] if own else []
        wrong = [*own, *more][:most] or list(filter(None, [also(seen)]))
        if wrong:
            hint = advice(shown, "\n".join(wrong))
            message = "\n".join(filter(None, [*wrong, hint]))
            return lost(Explanation(message, mistake_of(wrong[0])))
        # A trial that hangs is the last one to run.
        unseen = len(shown) == len(off_topic) and any(map(_cases, seen))
        if (unseen or finish) and any(trial.hung for trial in seen):
            return blocked("judged once the ranks finish the trials before it")
        unfinished = _unfinished(shown)
        return blocked(unfinished) if unfinished else ok(right)

    each = Judging(right, judged, alone is None, alone or (lambda _: ""))
    return Rule(name, points, each, after)


def _until(waits: Callable[[Seen], str], seen: Seen) -> str:
    """What a criterion waits for; nothing if results have the wrong types: then it is lost."""
    try:
        return waits(seen)
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return ""


def _unfinished(seen: Seen) -> str:
    """The reason to block a criterion: a trial failed or returned unreadable results."""
    for observation in seen:
        if observation.error is not None:
            where = observation.trial.words(observation.stopped_in)
            if observation.trial.cases[observation.failed_case or 0].guilty == "":
                return f"the library's own run failed ({where}): the machine is busy. Check again"
            return f"judged once nothing fails in {where}"
    faulty = [trial for trial in seen if _cases(trial)]
    if any(message.endswith(UNREADABLE) for trial in faulty for _, message in _found(trial)):
        return "judged once the ranks return readable results"
    return ""


def fault(seen: Seen, name: str) -> str:
    """The first fault of this name; empty if there is none."""
    return next(iter(_all_faults(seen, name)), "")


def _all_faults(seen: Seen, name: str) -> list[str]:
    return [message for one in seen if _cases(one) for message in _faults(one, name)]


def finished_code(observation: Observation) -> str:
    """A message if a finished implementation did the work in a trial; empty otherwise."""
    code = called_by(result for results in observation.results for result in results)
    return f"{code} does the work for you, and finished code does not count." if code else ""


def _faults(observation: Observation, name: str) -> Iterator[str]:
    if observation.error is not None:
        case = _cases(observation)[observation.failed_case or 0]
        if case.guilty == name:
            trouble = observation.trouble
            yield f"{trouble}\n{case.advice(trouble)}".rstrip()
        where = observation.trial.words(observation.stopped_in)
        before = case.faults_before_error()
        yield from (f"{where}: " + message for topic, message in before if topic == name)
        return
    yield from (message for topic, message in _found(observation) if topic == name)


def _found(observation: Observation) -> list[Fault]:
    """All faults of a trial, cached on the observation because every criterion reads them."""
    if "faults" not in vars(observation):
        cases, code = _cases(observation), finished_code(observation)
        found = [(cases[0].topic, code)] if code else []
        vars(observation)["faults"] = found
        for number, (case, results) in enumerate(zip(cases, observation.results, strict=True)):
            where = observation.trial.words(number)
            reported = _readable(case, case.faults, results)
            hint = after_reduce(observation)
            found += (
                (name, Explanation(f"{where}: {message}{hint}", mistake_of(message)))
                for name, message in reported
            )
        found += _readable(cases[0], cases[0].by_trace, observation)
    faults: list[Fault] = vars(observation)["faults"]
    return faults


def after_reduce(observation: Observation) -> str:
    """A hint if ranks called `dist.reduce`, whose result only the root may read.

    With gloo, the other ranks then hold partial sums, which may be right by chance.
    """
    if observation.trace is None or "reduce" not in observation.trace.ops():
        return ""
    return (
        " You call dist.reduce: only rank dst gets the sum. Afterwards the contents of the tensor "
        "on any other rank are undefined."
    )


def _cases(observation: Observation) -> list[Faulty]:
    return [case for case in observation.trial.cases if isinstance(case, Faulty)]


def _readable(case: Faulty, report: Callable[[Any], Iterator[Fault]], of: Any) -> list[Fault]:
    """The faults that a case reports, or `UNREADABLE` if the results have the wrong types."""
    try:
        return list(report(of))
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return [(case.topic, UNREADABLE)]


def traffic(topic: str, times: float, advice: str) -> Callable[[Seen], str]:
    """Makes a check of the bytes that leave each rank, in trials whose first case has this topic.

    With N ranks, each should send (N-1)/N of all elements of the case, `times` times, at 4 bytes
    each. The check returns a message if a rank sends more or less.
    """

    def wrong(seen: Seen) -> str:
        for observation in seen:
            case: Any = observation.trial.cases[0]
            if case.topic != topic or observation.error is not None or observation.trace is None:
                continue
            ranks = observation.trial.world_size
            goal = times * 4 * case.elements * (ranks - 1) / ranks
            for rank in range(ranks):
                sent = observation.trace.bytes_wire(rank)
                if sent is not None and not goal * _LESS <= sent <= goal * _MORE + _OWN:
                    return (
                        f"{observation.trial.words()}: {amount(sent)} left rank {rank}, but it "
                        f"should be {amount(goal)}. {advice}{after_reduce(observation)}"
                    )
        return ""

    return wrong


# Objections: judges that several parts share ----------------------------------------------------

Objection = Callable[[Any, Any, Observation], str]


def _messages(seen: Seen, objections: Sequence[Objection]) -> Iterator[str]:
    """The first objection to each case, with the words of the case."""
    for observation in seen if objections else ():
        trial, hint = observation.trial, after_reduce(observation)
        by_case = zip(trial.cases, observation.results, strict=True)
        for number, (case, results) in enumerate(by_case):
            messages = (_objection(each, case, results, observation) for each in objections)
            yield from (
                Explanation(f"{trial.words(number)}: {text}{hint}", mistake_of(text))
                for text in messages
                if text
            )


def _objection(objection: Objection, case: Any, results: Any, observation: Observation) -> str:
    """The message of an objection, or `UNREADABLE` if the results have the wrong types."""
    try:
        return objection(case, results, observation)
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return UNREADABLE
