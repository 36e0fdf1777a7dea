"""`dtlab.practice`: checks a blank of a lesson on real ranks, without points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.errors import DtlabError
from dtlab.grading.checking.checks import Check, Judging, Rule, Verdict, lost, ok
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.report import Report

__all__ = ["practice"]


def practice(fn: Callable[..., Any], *args: Any, returns: Sequence[Any]) -> Report:
    """Runs `fn(*args)` on `len(returns)` ranks and compares their results with `returns`.

    Numbers, lists and tensors are compared by their values. If `fn` raises, hangs or is not
    written yet, the report says so. Raises `DtlabError` if `returns` is empty.
    """
    if not returns:
        raise DtlabError("practice: returns= needs one value for each rank.")
    case = _Returns(args, tuple(map(_plain, returns)))
    check = Check(
        trials=lambda seed: [Trial(len(returns), [case])],
        rules=(Rule("result", 1, Judging(_RIGHT, _judge)),),
        wrapped=True,
    )
    name = getattr(fn, "__name__", "the answer")
    return Report(name, tuple(check.run(name, fn)))


_RIGHT = "the result is right"


@dataclass(frozen=True)
class _Returns(Case):
    """A `Case` of one call, with the expected result of each rank."""

    args: tuple[Any, ...]
    wanted: tuple[Any, ...]

    alone = True

    def __str__(self) -> str:
        return "as called here"

    def given(self, rank: int, world_size: int) -> Any:
        return self.args

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        return _plain(fn(*given))

    def mistake(self, results: Sequence[Any]) -> str:
        for rank, (got, wanted) in enumerate(zip(results, self.wanted, strict=True)):
            if got != wanted:
                subject = f"rank {rank}" if len(self.wanted) > 1 else "it"
                return f"{subject} returns {got!r} and should return {wanted!r}."
        return ""


def _judge(observations: Sequence[Observation]) -> Verdict:
    mistakes = [mistake for observation in observations for mistake in observation.mistakes]
    return lost(mistakes[0]) if mistakes else ok(_RIGHT)


def _plain(value: Any) -> Any:
    """Converts tensors to numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    return value
