"""`Check` and `Rule`: trials to run, criteria to judge, their order and their points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dtlab.checks.functions.bench import HERE, Bench, warm_up
from dtlab.checks.functions.numbered import case_of, numbered, printed_words
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.report import Criterion, Status
from dtlab.checks.words import mistake_of
from dtlab.errors import RanksError

__all__ = ["UNANSWERED", "Check", "Judge", "Judging", "RecordedCheck", "Rule", "Verdict",
           "blocked", "lost", "ok"]  # fmt: skip


class Verdict(NamedTuple):
    """The decision of a judge on one criterion, and the known mistake that matched, or ""."""

    status: Status
    message: str
    mistake: str = ""


Judge = Callable[[Sequence[Observation]], Verdict]
UNANSWERED = Verdict("open", "not answered yet")


@dataclass(frozen=True)
class Judging:
    """A judge, and the message `right` for a correct answer.

    `by_case` says that it judges each case alone, so that it can judge a single one too. A judge
    of several cases may have an `alone`, which says what is wrong with a single one; or "".
    """

    right: str
    judge: Judge
    by_case: bool = False
    alone: Callable[[Sequence[Observation]], str] = lambda _: ""

    def __call__(self, observations: Sequence[Observation]) -> Verdict:
        return self.judge(observations)


def ok(message: str) -> Verdict:
    """Returns the verdict that the points are earned."""
    return Verdict("ok", message)


def lost(message: str) -> Verdict:
    """Returns the verdict that the points are lost; `message` says why and where to look next.

    If the message is an `Explanation`, the verdict keeps its mistake.
    """
    return Verdict("lost", str(message), mistake_of(message))


def blocked(message: str) -> Verdict:
    """Returns the verdict that another fault, named in `message`, must be corrected first."""
    return Verdict("blocked", message)


WAITS = "judged once this is met: "
_UNJUDGED = "judged once the other faults are corrected"


def waits_for(criterion: str) -> Verdict:
    """Returns the verdict that another criterion must be met first; `Check` puts in its text."""
    return blocked(f"{WAITS}{criterion}")


@dataclass(frozen=True)
class Rule:
    """A criterion before it is judged: its name, its points, and its judge.

    If `after` names other criteria, this criterion is blocked until the others are ok.
    """

    name: str
    points: float
    judge: Judge
    after: str | tuple[str, ...] = ()

    def settle(
        self, observations: Sequence[Observation], texts: Mapping[str, str] | None = None
    ) -> Criterion:
        """Judges the observations and returns the criterion.

        `texts` has the `right` of each criterion, for a verdict that waits for another one.
        """
        verdict = self.judge(observations)
        if verdict.status == "open":
            verdict = verdict._replace(message=f"{self.name}: {verdict.message}")
        if verdict.message.startswith(WAITS):
            text = (texts or {}).get(verdict.message.removeprefix(WAITS))
            verdict = blocked(f"{WAITS}{text}" if text else _UNJUDGED)
        return self.closed(verdict)

    @property
    def right(self) -> str:
        """The message for a correct answer, or the criterion's name if the judge has none."""
        return getattr(self.judge, "right", self.name)

    def closed(self, verdict: Verdict) -> Criterion:
        """Returns the criterion with this verdict: it earns all of its points or none.

        The message of a blocked criterion says what is not judged yet, and until when.
        """
        earned = self.points if verdict.status == "ok" else 0
        waits = verdict.status == "blocked" and verdict.message.startswith("judged")
        message = f"{self.right} ({verdict.message})" if waits else verdict.message
        return Criterion(
            self.name, self.points, earned, verdict.status, message, mistake=verdict.mistake
        )


def _for_the_learner(
    criteria: Sequence[Criterion], observations: Sequence[Observation], runs: int
) -> list[Criterion]:
    """Prints what the ranks printed, and adds to lost criteria the number of a case to run again.

    Adds warnings, such as a missing `wait`, to the first lost criterion; if there is none, prints
    them. Only the first `runs` trials can be run again: the others run library functions.
    """
    cases = numbered(observations)
    about = [case_of(c.message, cases) if c.status == "lost" else None for c in criteria]
    if words := printed_words(cases, next(filter(None, about), None)):
        print(words)
    again = [case for case in numbered(observations[:runs]) if case.is_on_ranks]
    numbers = [case.number if case and case in again else 0 for case in about]
    found = [replace(one, case=case) for one, case in zip(criteria, numbers, strict=True)]
    warned = [case.one for case in about if case] + list(observations)
    warnings = "\n".join(next((one.warnings[:2] for one in warned if one.warnings), ()))
    lost = next((place for place, one in enumerate(found) if one.status == "lost"), None)
    if lost is None and warnings:
        print(warnings)
    elif lost is not None:
        message = f"{found[lost].message}\n{warnings}".rstrip()
        found[lost] = replace(found[lost], message=message)
    return found


def _trouble(observations: Sequence[Observation]) -> str:
    """Why a launch failed in a case whose crash loses the first criterion; empty if none did."""
    for one in observations:
        case = one.trial.cases[one.failed_case or 0]
        if one.error is not None and case.guilty is None:
            return f"{one.trouble}\n{case.advice(one.trouble)}".rstrip()
    return ""


def _no_more(observations: Sequence[Observation]) -> Sequence[tuple[Trial, Callable[..., Any]]]:
    return ()


@dataclass(frozen=True)
class Check:
    """The check of a part: trials made from a seed and run in order, and rules that judge them.

    If a trial hangs, no further trial runs, so that an answer waits for one time limit at most.
    `then` returns further trials, of functions of the library, that depend on the observations.
    `compiles` is True if ranks create optimizers or DistributedDataParallel, which import
    PyTorch's compiler. `wrapped` is True if the trials run a function of the library that calls
    the learner's function; a message about an unwritten function then names the learner's.
    """

    trials: Callable[[int], Sequence[Trial]]
    rules: tuple[Rule, ...]
    then: Callable[[Sequence[Observation]], Sequence[tuple[Trial, Callable[..., Any]]]] = _no_more
    compiles: bool = False
    wrapped: bool = False

    @property
    def points(self) -> float:
        """The highest possible score."""
        return sum(rule.points for rule in self.rules)

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Runs `answer`, which has the name `symbol`, on ranks and judges the observations."""
        if not callable(answer):
            return self._nothing_to_judge(
                f"{symbol} is {type(answer).__name__} here, not a function: hand in the function "
                f"itself, without brackets."
            )
        self.prepare(bench)
        observations: list[Observation] = []
        trials = self.trials(seed)
        for trial in trials:
            observations.append(bench.observe(trial, answer))
            if why := self.unwritten(observations[-1], symbol):
                remark = Criterion(symbol, 0, 0, "open", why)
                return [remark, *(rule.closed(Verdict("open", rule.right)) for rule in self.rules)]
            if observations[-1].hung:
                break
        else:
            observations += [bench.observe(trial, fn) for trial, fn in self.then(observations)]
        criteria = self.settle(observations)
        if bench is not HERE or bench.student is not None:
            return criteria
        runs = len(trials) if seed == 0 else 0  # a case of another seed has no number
        return _for_the_learner(criteria, observations, runs)

    def unwritten(self, one: Observation, symbol: str) -> str:
        """A message if the function `symbol` is not written yet; else empty."""
        name = (self.wrapped and one.failed_function) or symbol
        why = f"{name} is not written yet: it still raises NotImplementedError."
        return why if one.unwritten else ""

    def settle(self, observations: Sequence[Observation]) -> list[Criterion]:
        """Judges the observations and returns the criteria."""
        settled: dict[str, Criterion] = {}
        texts = {rule.name: rule.right for rule in self.rules}
        for rule in self.rules:
            names = (rule.after,) if isinstance(rule.after, str) else rule.after
            waits = any(settled[name].status != "ok" for name in names if name)
            verdict = blocked("judged once the criterion above is right") if waits else None
            one = rule.closed(verdict) if verdict else rule.settle(observations, texts)
            if not settled and one.status == "blocked" and (trouble := _trouble(observations)):
                one = rule.closed(lost(trouble))
            settled[rule.name] = one
        return list(settled.values())

    def prepare(self, bench: Bench = HERE) -> None:
        """Imports slow modules for ranks of this machine; a grader's ranks have them already."""
        if self.compiles and bench is HERE:
            warm_up()

    def _nothing_to_judge(self, why: str) -> list[Criterion]:
        first, *others = self.rules
        waiting = blocked("judged once there is something to judge")
        return [first.closed(lost(why)), *(rule.closed(waiting) for rule in others)]


def _no_runs(seed: int, bench: Bench) -> Sequence[Trial]:
    return ()


@dataclass(frozen=True)
class RecordedCheck(Check):
    """A check that first records runs of the library, whose traces are inputs of the answer.

    `record` returns the trials with these traces, which run after `trials`. It raises RanksError
    if its runs did not finish; then nothing is judged.
    """

    record: Callable[[int, Bench], Sequence[Trial]] = _no_runs

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        def trials(seed: int) -> Sequence[Trial]:
            return [*self.trials(seed), *self.record(seed, bench)]

        check = Check(trials, self.rules, compiles=self.compiles)
        try:
            return check.run(symbol, answer, seed, learner, bench)
        except RanksError:
            late = blocked("the runs did not finish in time: the machine is busy. Check again.")
            return [rule.closed(late) for rule in self.rules]
