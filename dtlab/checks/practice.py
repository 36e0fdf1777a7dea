"""`dtlab.practice`: checks a blank of a lesson, or runs a case of a part again; no points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from reprlib import Repr
from typing import Any, overload

from dtlab.checks.functions.checks import Check, Judging, Rule, Verdict, lost, ok
from dtlab.checks.functions.criteria import after_reduce
from dtlab.checks.functions.replay import replay
from dtlab.checks.functions.trials import Case, Observation, Trial
from dtlab.checks.functions.unseen import by_luck
from dtlab.checks.learners import record
from dtlab.checks.parts import find_part
from dtlab.checks.report import Report
from dtlab.checks.words import Explanation
from dtlab.errors import DtlabError
from dtlab.ranks.notices import notice
from dtlab.ranks.plain import NotPlain, encode
from dtlab.ranks.words import writes_in_place

__all__ = ["practice"]


Results = Sequence[Any]  # one for each rank


@overload
def practice(
    fn: Callable[..., Any],
    *args: Any,
    returns: Results,
    again: Sequence[tuple[Sequence[Any], Results]] = (),
    known: Mapping[str, Results | tuple[Results, str]] | None = None,
) -> Report: ...
@overload
def practice(fn: str, answer: Any, /, *, case: int | None = None) -> None: ...


def practice(
    fn: Any,
    *args: Any,
    returns: Results = (),
    again: Sequence[tuple[Sequence[Any], Results]] = (),
    known: Mapping[str, Results | tuple[Results, str]] | None = None,
    case: int | None = None,
) -> Report | None:
    """Runs `fn(*args)` on `len(returns)` ranks and compares their results with `returns`.

    Numbers, lists and tensors are compared by their values, floats up to rounding. If
    `fn` raises, hangs or is not written yet, the report says so. The result is stored under the
    name of `fn`, for `dtlab.progress`. Raises `DtlabError` if `returns` is empty, or if there is
    no such case.

    `again` lists further arguments with the results of the ranks, so that no constant is right.
    `known` has the results of known mistakes, each with a fact that says what they are, and
    perhaps an advice: `{"is the sum, not the mean": ([10, 10], "Divide it.")}`.

    `practice("01/ring_all_reduce", ring_all_reduce, case=2)` runs a case of the check of a part
    again, and shows what the ranks print, their timeline and, if they hang, what they wait for.
    Without `case`, it runs the first case.
    """
    if isinstance(fn, str):
        cases = find_part(fn).cases_of(args[0] if args else None)
        if cases is None:
            raise DtlabError(f"{fn} has no cases to run. Pass the function that you wrote.")
        with notice(f"{fn}: running case {1 if case is None else case}"):
            replay(*cases, case)
        return None
    if not returns:
        raise DtlabError("practice: returns= needs one value for each rank.")
    name = getattr(fn, "__name__", "the answer")
    facts = tuple(
        (fact, tuple(map(_plain, value)), advice)
        for fact, (value, advice) in map(_with_advice, (known or {}).items())
    )
    first = _Returns(args, tuple(map(_plain, returns)), facts)
    more = [
        _Returns(tuple(given), tuple(map(_plain, wanted)), again=True) for given, wanted in again
    ]
    check = Check(
        trials=lambda seed: [Trial(len(case.wanted), [case]) for case in (first, *more)],
        rules=(Rule("result", 1, Judging(_RIGHT, partial(_judged, name, _called_by(fn)))),),
        wrapped=True,
    )
    report = Report(name, tuple(check.run(name, fn)))
    record(f"practice/{name}", report.score, report.max_score)
    return report


def _with_advice(
    known: tuple[str, Results | tuple[Results, str]],
) -> tuple[str, tuple[Results, str]]:
    fact, value = known
    is_pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str)
    return fact, value if is_pair else (value, "")  # type: ignore[return-value]


_RIGHT = "the result is right"
_UNUSABLE = ("TypeError", "AttributeError", "IndexError", "KeyError", "ValueError")
_CANNOT_USE = (
    "{0} calls {1}. If this line uses what {1} returns: is that what the text asks for, in the "
    "form that it asks for?"
)
_RANKS = 7  # ranks whose results are shown besides the first wrong one
_REPR = Repr()  # its attributes limit what is shown of a result
_REPR.maxlist = _REPR.maxtuple = 12
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200
_short = _REPR.repr


@dataclass(frozen=True)
class _Returns(Case):
    """A `Case` of one call, with the expected result of each rank.

    `known` has for each known mistake a fact, the results of the ranks, and an advice.
    """

    args: tuple[Any, ...]
    wanted: tuple[Any, ...]
    known: tuple[tuple[str, tuple[Any, ...], str], ...] = ()
    again: bool = False

    alone = True

    def __str__(self) -> str:
        return f"called with {_short(list(self.args))[1:-1]}" if self.again else "as called here"

    def given(self, rank: int, world_size: int) -> Any:
        return self.args

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        result = _plain(fn(*given))
        try:
            encode(result)
        except NotPlain:
            name, kind = getattr(fn, "__name__", "the answer"), type(result).__name__
            raise TypeError(
                f"{name} returns a {kind}, which a rank cannot send back. "
                "Return numbers, lists or tensors."
            ) from None
        return result

    def mistake(self, results: Sequence[Any]) -> str:
        for rank, (got, wanted) in enumerate(zip(results, self.wanted, strict=True)):
            if not _same(got, wanted):
                who = "it" if len(self.wanted) == 1 else f"rank {rank}"
                wrong = f"{who} returns {_short(got)} and should return {_short(wanted)}."
                wrong += _first_other(got, wanted) if len(self.wanted) == 1 else ""
                said = "\n".join([wrong, *self._others(rank, results)])
                return said + self._known(results)
        return ""

    def _known(self, results: Sequence[Any]) -> str:
        """A line for the known mistake that gives these results; empty if none does."""
        for fact, wrong, advice in self.known:
            if _same(list(results), list(wrong)):
                return Explanation(f"\nThe result {fact}. {advice}".rstrip(), fact)
        return ""

    def _others(self, first: int, results: Sequence[Any]) -> list[str]:
        """A line on each rank but the first wrong one; of many ranks, only some."""
        lines: list[str] = []
        for rank, (got, wanted) in enumerate(zip(results, self.wanted, strict=True)):
            should = f" and should return {_short(wanted)}."
            rest = ", as it should." if _same(got, wanted) else should
            lines += [f"rank {rank} returns {_short(got)}{rest}"] if rank != first else []
        return [*lines[:_RANKS], "..."] if len(lines) > _RANKS else lines


def _called_by(fn: Any) -> str:
    """The functions of the notebook that `fn` calls, in words; empty if it calls none."""
    code, names = getattr(fn, "__code__", None), getattr(fn, "__globals__", {})
    called = [names[name] for name in (code.co_names if code else ()) if name in names]
    own = [one.__name__ for one in called if getattr(one, "__globals__", None) is names]
    return " and ".join(own)


def _judged(name: str, called: str, seen: Sequence[Observation]) -> Verdict:
    one = next((each for each in seen if each.mistakes), None)
    if one is None:
        return ok(by_luck(seen) or _RIGHT)
    message = one.failure.message if one.failure and one.failed_function == name else ""
    if called and message.startswith(_UNUSABLE):
        hint = _CANNOT_USE.format(name, called)
    else:
        collectives = {*one.trace.ops()} - {"send", "recv", "barrier"} if one.trace else ()
        unused = "returns None" in one.mistakes[0] and min(collectives, default="")
        hint = writes_in_place(unused) if unused else after_reduce(one).strip()
    return lost(one.mistakes[0] + f"\n{hint}" * bool(hint))


def _same(got: Any, wanted: Any) -> bool:
    """Whether two plain results are equal; floats may differ by rounding in float32."""
    if isinstance(got, list) and isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(_same, got, wanted))
    if isinstance(got, float) and isinstance(wanted, int | float):
        return math.isclose(got, wanted, rel_tol=1e-6, abs_tol=1e-7)
    return bool(got == wanted)


def _first_other(got: Any, wanted: Any) -> str:
    """Names the first element that is wrong in a list of the right length."""
    if not isinstance(got, list) or not isinstance(wanted, list) or len(got) != len(wanted):
        return ""
    pairs = enumerate(zip(got, wanted, strict=True))
    place, (one, other) = next((place, pair) for place, pair in pairs if not _same(*pair))
    return f" The first wrong one is element {place}: {_short(one)}, not {_short(other)}."


def _plain(value: Any) -> Any:
    """Converts tensors to numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    return value
