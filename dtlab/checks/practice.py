"""`dtlab.practice`: checks a blank of a lesson, or runs a case of a part again; no points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from dtlab.errors import DtlabError
from dtlab.ranks.notices import notice
from dtlab.ranks.plain import NotPlain, encode
from dtlab.ranks.words import writes_in_place

__all__ = ["practice"]


@overload
def practice(fn: Callable[..., Any], *args: Any, returns: Sequence[Any]) -> Report: ...
@overload
def practice(fn: str, answer: Any, /, *, case: int | None = None) -> None: ...


def practice(
    fn: Any, *args: Any, returns: Sequence[Any] = (), case: int | None = None
) -> Report | None:
    """Runs `fn(*args)` on `len(returns)` ranks and compares their results with `returns`.

    Numbers, lists and tensors are compared by their values, floats up to rounding. If
    `fn` raises, hangs or is not written yet, the report says so. The result is stored under the
    name of `fn`, for `dtlab.progress`. Raises `DtlabError` if `returns` is empty, or if there is
    no such case.

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
    called = _Returns(args, tuple(map(_plain, returns)))
    check = Check(
        trials=lambda seed: [Trial(len(returns), [called])],
        rules=(Rule("result", 1, Judging(_RIGHT, _judge)),),
        wrapped=True,
    )
    name = getattr(fn, "__name__", "the answer")
    report = Report(name, tuple(check.run(name, fn)))
    record(f"practice/{name}", report.score, report.max_score)
    return report


_RIGHT = "the result is right"
_RANKS = 7  # ranks whose results are shown besides the first wrong one
_REPR = Repr()  # its attributes limit what is shown of a result
_REPR.maxlist = _REPR.maxtuple = 12
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200
_short = _REPR.repr


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
                if len(self.wanted) == 1:
                    returns = f"it returns {_short(got)} and should return {_short(wanted)}."
                    return f"{returns}{_first_other(got, wanted)}"
                first = f"rank {rank} returns {_short(got)} and should return {_short(wanted)}."
                return "\n".join([first, *self._others(rank, results)])
        return ""

    def _others(self, first: int, results: Sequence[Any]) -> list[str]:
        """A line on each rank but the first wrong one; of many ranks, only some."""
        lines = []
        for rank, (got, wanted) in enumerate(zip(results, self.wanted, strict=True)):
            should = f" and should return {_short(wanted)}."
            rest = ", as it should." if _same(got, wanted) else should
            lines += [f"rank {rank} returns {_short(got)}{rest}"] if rank != first else []
        return [*lines[:_RANKS], "..."] if len(lines) > _RANKS else lines


def _judge(observations: Sequence[Observation]) -> Verdict:
    (one,) = observations
    if not one.mistakes:
        return ok(by_luck(observations) or _RIGHT)
    collectives = {*one.trace.ops()} - {"send", "recv", "barrier"} if one.trace else ()
    unused = "returns None" in one.mistakes[0] and min(collectives, default="")
    hint = writes_in_place(unused) if unused else after_reduce(one).strip()
    return lost(f"{one.mistakes[0]}\n{hint}".rstrip())


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
