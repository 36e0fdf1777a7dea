"""The criterion engine: what is lost, what is blocked, and what is never earned by accident."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.errors import RankTimeoutError
from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.trials import Observation, Trial


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
