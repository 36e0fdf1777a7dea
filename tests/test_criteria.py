"""The criterion engine: criteria that are lost or blocked, and that none is earned by accident."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dtlab.checks.functions.bench import Bench
from dtlab.checks.functions.checks import Check, RecordedCheck
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, fault, rule
from dtlab.checks.functions.trials import Observation, Recording, Trial
from dtlab.checks.words import Explanation
from dtlab.errors import Failure, RankError, RanksError, RankTimeoutError


@dataclass(frozen=True)
class Doubling(Faulty):
    """`fn(x)` is twice x; a case shows its own topic alone."""

    topic: str

    def shows(self, criterion: str) -> bool:
        return criterion == self.topic

    def given(self, rank: int, world_size: int) -> Any:
        return 1

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        return {"y": fn(given)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        if results[0]["y"] + 0 != 2:
            yield self.topic, f"{results[0]['y']} is not twice 1"


RULES = rule("small", 1, "right"), rule("large", 1, "right", "small"), rule("other", 1, "right")
CHECK = Check(lambda _: [], RULES)


def saw(topic: str, y: Any) -> Observation:
    return Observation(Trial(1, [Doubling(topic)]), [[Noted({"y": y})]])


def status(*seen: Observation) -> dict[str, str]:
    return {one.name: one.status for one in CHECK.settle(seen)}


def test_each_case_loses_what_it_shows() -> None:
    right = saw("other", 2)
    assert status(saw("small", 2), saw("large", 2), right) == {
        "small": "ok", "large": "ok", "other": "ok",
    }  # fmt: skip
    assert status(saw("small", 2), saw("large", 3), right) == {
        "small": "ok", "large": "lost", "other": "ok",
    }  # fmt: skip


def test_a_criterion_waits_for_those_before_it() -> None:
    seen = status(saw("small", 3), saw("large", 2), saw("other", 2))
    assert seen == {"small": "lost", "large": "blocked", "other": "ok"}


def test_a_blocked_criterion_says_which_one_it_waits_for() -> None:
    small = rule("small", 1, "small numbers are doubled")
    check = Check(lambda _: [], (small, rule("large", 1, "right", "small")))
    _, large = check.settle([saw("small", 3), saw("large", 2)])
    assert large.message == "right (judged once this is met: small numbers are doubled)"
    unreadable = Check(lambda _: [], (rule("large", 1, "right", "small"),))
    (large,) = unreadable.settle([saw("small", 3), saw("large", 2)])
    assert large.message == "right (judged once the other faults are corrected)"


def test_nothing_is_earned_in_trials_that_were_not_run() -> None:
    """A trial that hangs is the last one."""
    error = RankTimeoutError("too long", running=[])
    hung = Observation(Trial(1, [Doubling("small")]), error=error)
    assert status(hung) == {"small": "lost", "large": "blocked", "other": "blocked"}


def test_nothing_is_earned_with_results_that_cannot_be_read() -> None:
    both = Trial(1, [Doubling("small"), Doubling("large")])
    odd = Observation(both, [[Noted({"y": 2})], [Noted({"y": "two"})]])
    assert status(odd)["small"] == "blocked"
    assert status(odd)["large"] == "lost"


# Faults in the trace, several names, trials of a topic ------------------------------------------


@dataclass(frozen=True)
class Traced(Doubling):
    """A case whose trace shows a fault of another name, wherever a result is 7."""

    looks: list[int] = field(default_factory=list)

    def by_trace(self, one: Observation) -> Iterator[Fault]:
        self.looks.append(1)
        if one.results[0][0]["y"] == 7 and fault([one], self.topic):
            yield "seven", "7 went over the wire"


def test_a_fault_in_the_trace_can_lose_a_criterion_and_block_others() -> None:
    case = Traced("small")
    seen = [Observation(Trial(1, [case]), [[Noted({"y": 7})]])]
    rules = (
        rule("small", 1, "right", lost_by=("seven", "small"), advice=lambda _, __: "Look."),
        rule("large", 1, "right", "seven"),
        rule("other", 1, "right", "eight"),
    )
    first, second, third = (one.settle(seen) for one in rules)
    assert (first.status, first.message) == ("lost", "7 went over the wire\nLook.")
    assert (second.status, third.status) == ("blocked", "ok")
    assert case.looks == [1]  # once, whatever the number of rules


@dataclass(frozen=True)
class Staged(Doubling):
    """The first topic shows what the trials of the second are judged for."""

    also_shows: ClassVar = {"first": ("speed",), "second": ("speed",)}
    shows = Faulty.shows


def test_a_criterion_on_a_topic_waits_for_other_trials_that_show_it() -> None:
    speed = rule("speed", 1, "right", on="second")

    def status_of(*seen: Observation) -> str:
        return speed.settle(seen).status

    def failed(topic: str, error: RanksError) -> Observation:
        return Observation(Trial(1, [Staged(topic)]), error=error)

    first, second = (
        Observation(Trial(1, [Staged(topic)]), [[Noted({"y": 2})]])
        for topic in ("first", "second")
    )
    crash = RankError("crash", failures={0: Failure("ValueError", "no")})
    hang = RankTimeoutError("too long", running=[])
    assert status_of(first, second) == "ok"
    assert status_of(failed("first", crash), second) == "blocked"
    assert status_of(first, failed("second", crash)) == "blocked"
    assert status_of(first, failed("third", hang)) == "blocked"  # the second was not run


@dataclass(frozen=True)
class Named(Staged):
    """A case whose name has a comma."""

    def __str__(self) -> str:
        return f"7 elements, {self.topic}"


def test_a_blocked_criterion_names_the_case_that_failed() -> None:
    """The message has the case's whole name, also in a trial of several cases."""
    crash = RankError(
        "crash", failures={0: Failure("ValueError", "no", traceback="(in case 1 of this check)")}
    )
    one = Observation(Trial(4, [Named("first"), Named("second")]), error=crash)
    message = rule("speed", 1, "right").settle([one]).message
    assert message == "right (judged once nothing fails in 4 ranks, 7 elements, second)"


def test_a_criterion_waits_for_several_others() -> None:
    def objection(wrong: str) -> Callable[..., str]:
        return lambda case, results, one: wrong

    def statuses(first: str, second: str) -> list[str]:
        rules = (
            rule("first", 1, "right", by=objection(first)),
            rule("second", 1, "right", by=objection(second)),
            rule("third", 1, "right", by=objection("wrong"), after=("first", "second")),
        )
        settled = Check(lambda _: [], rules).settle([saw("small", 2)])
        return [one.status for one in settled]

    assert statuses("wrong", "") == ["lost", "ok", "blocked"]
    assert statuses("", "wrong") == ["ok", "lost", "blocked"]
    assert statuses("", "") == ["ok", "ok", "lost"]


@dataclass(frozen=True)
class Naming(Doubling):
    """A case that names the mistake of an answer that doubles twice."""

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for name, message in super().faults(results):
            yield name, Explanation(message, "doubled twice") if results[0]["y"] == 4 else message


def test_a_criterion_keeps_the_known_mistake_of_its_first_fault() -> None:
    def settled(y: int) -> tuple[str, str]:
        look = rule("small", 1, "right", advice=lambda _, fault: f"Look at {fault[-1]}.")
        seen = Observation(Trial(1, [Naming("small")]), [[Noted({"y": y})]])
        one = look.settle([seen])
        return one.message, one.mistake

    where = "1 rank, Naming(topic='small')"
    assert settled(4) == (f"{where}: 4 is not twice 1\nLook at 1.", "doubled twice")
    assert settled(5) == (f"{where}: 5 is not twice 1\nLook at 1.", "")
    assert settled(2) == ("right", "")


def test_a_further_fault_and_an_objection_keep_their_known_mistakes() -> None:
    said = Explanation("it is cold", "cold")
    also = rule("small", 1, "right", also=lambda _: said).settle([saw("small", 2)])
    assert (also.status, also.message, also.mistake) == ("lost", "it is cold", "cold")
    assert type(also.message) is str
    objected = rule("small", 1, "right", by=(lambda *_: said,)).settle([saw("small", 2)])
    assert objected.message == "1 rank, Doubling(topic='small'): it is cold"
    assert objected.mistake == "cold"


class Pretended:
    """A bench that runs functions in this process; its recordings may fail."""

    student = "somebody"

    def __init__(self, error: RanksError | None = None) -> None:
        self.error = error

    def observe(self, trial: Trial, fn: Callable[..., Any]) -> Observation:
        if self.error is not None and isinstance(trial.cases[0], Recording):
            return Observation(trial, error=self.error)
        results = [[case.opened(case.on_rank(fn, case.given(0, 1)))] for case in trial.cases]
        return Observation(trial, results)


def recorded_first(bench: Bench) -> list[str]:
    """The statuses of a check whose second trial needs a recorded run."""
    runs: list[int] = []

    def record(seed: int, bench: Bench) -> list[Trial]:
        seen = bench.observe(Trial(1, [Recording((seed,))]), runs.append)
        if seen.error is not None:
            raise seen.error
        return [Trial(1, [Doubling("large")])]

    check = RecordedCheck(lambda _: [Trial(1, [Doubling("small")])], RULES[:2], record=record)
    settled = check.run("double", lambda x: 2 * x, seed=7, bench=bench)
    assert runs in ([], [7])
    return [one.status for one in settled]


def test_a_check_judges_an_answer_on_recorded_runs() -> None:
    assert recorded_first(Pretended()) == ["ok", "ok"]


def test_nothing_is_judged_if_the_recorded_runs_do_not_finish() -> None:
    late = Pretended(RankTimeoutError("too slow", running=[]))
    assert recorded_first(late) == ["blocked", "blocked"]


def test_a_note_of_a_case_that_does_not_exist_names_no_case() -> None:
    """An exception of the learner can hold the words with which a check notes the case."""
    forged = Failure("exception", "ValueError: no\n(in case 7 of this check)", "a.py", 4, "f()", 2)
    seen = Observation(Trial(1, [Doubling("small")]), error=RankError("no", failures={0: forged}))
    assert seen.failed_case is None
    assert status(seen)["small"] == "lost"
