"""`Check` and `Rule`: trials to run, criteria to judge, their order and their points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtlab.grading.checking.bench import HERE, Bench, warm_up
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.report import Criterion, Status

__all__ = ["Check", "Judge", "Rule", "Verdict", "blocked", "lost", "ok"]


class Verdict(NamedTuple):
    """What a judge says on one criterion."""

    status: Status
    message: str


Judge = Callable[[Sequence[Observation]], Verdict]


def ok(message: str) -> Verdict:
    """The points are earned."""
    return Verdict("ok", message)


def lost(message: str) -> Verdict:
    """The points are not earned; `message` says what is wrong and what to look at next."""
    return Verdict("lost", message)


def blocked(message: str) -> Verdict:
    """It cannot be judged before something else is mended, which `message` names."""
    return Verdict("blocked", message)


@dataclass(frozen=True)
class Rule:
    """A criterion before it is judged: its name, its points, and its judge.

    One that comes `after` another is judged once that is right.
    """

    name: str
    points: float
    judge: Judge
    after: str = ""

    def settle(self, seen: Sequence[Observation]) -> Criterion:
        """The criterion as judged."""
        return self.closed(self.judge(seen))

    def closed(self, verdict: Verdict) -> Criterion:
        """The criterion with a verdict: all of its points or none."""
        earned = self.points if verdict.status == "ok" else 0
        return Criterion(self.name, self.points, earned, verdict.status, verdict.message)


def _no_more(seen: Sequence[Observation]) -> Sequence[tuple[Trial, Callable[..., Any]]]:
    return ()


@dataclass(frozen=True)
class Check:
    """How a part is checked: trials made from a seed, run in order, and the rules that judge them.

    A trial that hangs is the last one run, so that a hang costs its time limit once. What is seen
    may ask for more trials, of functions of ours: `then` gives them. `compiles` says that ranks
    make optimizers or DistributedDataParallel, which import PyTorch's compiler. `wrapped` says
    that what is run is ours and calls the learner's function, which is named if not written yet.
    """

    trials: Callable[[int], Sequence[Trial]]
    rules: tuple[Rule, ...]
    then: Callable[[Sequence[Observation]], Sequence[tuple[Trial, Callable[..., Any]]]] = _no_more
    compiles: bool = False
    wrapped: bool = False

    @property
    def points(self) -> float:
        """Points that can be had."""
        return sum(rule.points for rule in self.rules)

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Runs `answer`, which the learner calls `symbol`, on ranks and judges what was seen."""
        if not callable(answer):
            return self._nothing_to_judge(
                f"{symbol} is {type(answer).__name__} here, not a function: hand in the function "
                f"itself, without brackets."
            )
        self.prepare(bench)
        seen: list[Observation] = []
        for trial in self.trials(seed):
            seen.append(bench.observe(trial, answer))
            if seen[-1].unwritten:
                name = (self.wrapped and seen[-1].failed_function) or symbol
                return self._nothing_to_judge(
                    f"{name} is not written yet: it still raises NotImplementedError."
                )
            if seen[-1].hung:
                break
        else:
            seen += [bench.observe(trial, own) for trial, own in self.then(seen)]
        return self.settle(seen)

    def settle(self, seen: Sequence[Observation]) -> list[Criterion]:
        """The criteria, of what was seen."""
        settled: dict[str, Criterion] = {}
        for rule in self.rules:
            waits = rule.after and settled[rule.after].status != "ok"
            verdict = blocked("judged once the criterion above is right") if waits else None
            settled[rule.name] = rule.closed(verdict) if verdict else rule.settle(seen)
        return list(settled.values())

    def prepare(self, bench: Bench = HERE) -> None:
        """Has ranks of this machine find ready what is slow to import; a grader's do anyway."""
        if self.compiles and bench is HERE:
            warm_up()

    def _nothing_to_judge(self, why: str) -> list[Criterion]:
        first, *others = self.rules
        waiting = blocked("judged once there is something to judge")
        return [first.closed(lost(why)), *(rule.closed(waiting) for rule in others)]
