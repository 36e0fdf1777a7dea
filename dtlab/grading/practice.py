"""`dtlab.practice`: checks a blank of a lesson on real ranks, for no points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.errors import DtlabError
from dtlab.grading.checking.checks import Check, Rule, Verdict, lost, ok
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.report import Report

__all__ = ["practice"]


def practice(fn: Callable[..., Any], *args: Any, returns: Sequence[Any]) -> Report:
    """Runs `fn(*args)` on as many ranks as `returns` has entries, and compares what they return.

    Numbers, lists and tensors are compared by their values. Whatever `fn` does (raises, hangs, is
    not written yet) is said in the report. Raises `DtlabError` where `returns` is empty.
    """
    if not returns:
        raise DtlabError("practice: returns= needs one value for each rank.")
    case = _Returns(args, tuple(map(_plain, returns)))
    check = Check(
        trials=lambda seed: [Trial(len(returns), [case])],
        rules=(Rule("result", 1, _judge),),
        wrapped=True,
    )
    name = getattr(fn, "__name__", "the answer")
    return Report(name, tuple(check.run(name, fn)))


@dataclass(frozen=True)
class _Returns(Case):
    """One call with what it has to return on each rank: a `Case`."""

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
                who = f"rank {rank}" if len(self.wanted) > 1 else "it"
                return f"{who} returns {got!r} and should return {wanted!r}."
        return ""


def _judge(seen: Sequence[Observation]) -> Verdict:
    wrong = [sentence for one in seen for sentence in one.mistakes]
    return lost(wrong[0]) if wrong else ok("right")


def _plain(value: Any) -> Any:
    """Numbers and lists in place of tensors."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
