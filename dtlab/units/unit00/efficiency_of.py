"""00/efficiency_of: compute speed-up and efficiency from traces of a job on several ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, Seen, fault, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit00.jobs import Job, draw_job, rows_of, trace_events
from dtlab.units.unit00.shares import efficiencies

_NEAR = 1e-3  # relative tolerance of a number
_ADVICE = {
    "strong": "Strong scaling: all ranks together do the work of one. How many times as fast is "
    "the run, and which fraction of the ideal N times is that?",
    "weak": "Weak scaling: each rank does the work of the single rank, so N ranks do N times "
    "the work. How long would that take ideally?",
    "base": "There is no trace of a single rank. Compare with the fewest ranks, M: the "
    "speed-up is relative to the run on M ranks, and N ranks could reach a speed-up of N/M.",
}


@dataclass(frozen=True)
class Grown(Faulty):
    """A call of `efficiency_of(traces, scaling)` for one job, on `sizes` ranks in this order."""

    alone = True

    job: Job
    sizes: tuple[int, ...]
    topic: str

    def __str__(self) -> str:
        return f"{self.job.scaling} scaling on {', '.join(map(str, self.sizes))} ranks"

    @property
    def guilty(self) -> str:
        """The criterion of a fault in this case. Each kind of scaling has its own "base"."""
        return f"base, {self.job.scaling}" if self.topic == "base" else self.topic

    def shows(self, criterion: str) -> bool:
        """Whether a crash in this case blocks `criterion`: it blocks those after its topic."""
        order = list(_ADVICE)
        return order.index(criterion.partition(",")[0]) > order.index(self.topic)

    def given(self, rank: int, world_size: int) -> Any:
        return [[n, rows_of(self.job, n)] for n in self.sizes], self.job.scaling

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        from dtlab.trace import Trace

        tables, scaling = given
        answer = fn({n: Trace(trace_events(rows)) for n, rows in tables}, scaling)
        try:
            return {"pairs": [[int(n), *map(float, pair)] for n, pair in answer.items()]}
        except (AttributeError, TypeError, ValueError):
            return {"form": f"a {type(answer).__name__}" if answer is not None else "None"}

    def opened(self, result: Any) -> Noted:
        if "form" in result:
            return Noted({"form": str(result["form"])[:60]})
        if any(len(row) != 3 for row in result["pairs"]):
            return Noted({"form": "a dict without pairs"})
        return Noted({"pairs": {int(n): (float(s), float(e)) for n, s, e in result["pairs"]}})

    @property
    def right(self) -> Mapping[int, tuple[float, float]]:
        """Speed-up and efficiency on each number of ranks."""
        from dtlab.trace import Trace

        seconds = {n: Trace(trace_events(rows_of(self.job, n))).duration for n in self.sizes}
        return efficiencies(seconds, self.job.scaling)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        form, advice = results[0].get("form"), _ADVICE[self.topic]
        if form:
            wanted = "Return a dict: for each number of ranks the pair (speed-up, efficiency)."
            yield self.guilty, f"efficiency_of returns {form}. {wanted}\n{advice}"
            if self.topic == "strong":
                yield "form", form
            return
        pairs = results[0]["pairs"]
        if set(pairs) != set(self.sizes):
            message = f"the dict has entries for {sorted(pairs)}; the traces have other sizes."
            yield self.guilty, f"{message}\n{advice}"
            return
        for ranks, (speedup, efficiency) in self.right.items():
            got, name = pairs[ranks], f"{ranks} rank{'s' * (ranks > 1)}"
            message = ""
            if not _near(got[0], speedup):
                message = f"the speed-up is {speedup:.3f}, and you have {got[0]:.3f}."
            elif _near(got[1], 100 * efficiency):
                message = f"return the efficiency as a fraction, {efficiency:.3f}, not per cent."
            elif not _near(got[1], efficiency):
                message = f"the efficiency is {efficiency:.3f}, and you have {got[1]:.3f}."
            if message:
                yield self.guilty, f"{name}: {message}\n{advice}"


def _near(got: float, wanted: float) -> bool:
    return abs(got - wanted) <= _NEAR * abs(wanted)


def _trials(seed: int) -> list[Trial]:
    """Cases of strong and weak scaling with a trace of one rank, then cases without one."""
    draw = random.Random(seed)

    def case(weak: bool, sizes: tuple[int, ...], topic: str) -> Grown:
        cause, second = draw.sample(("cores", "imbalance", "latency", "bandwidth"), 2)
        return Grown(draw_job(draw, cause, second, weak), sizes, topic)

    last = draw.choice((5, 6, 7))
    strong = [case(False, (1, 2, 4, 8), "strong"), case(False, (1, last), "strong")]
    weak = [case(True, (1, 2, 4), "weak"), case(True, (1, 3, last), "weak")]
    base = [case(False, (8, 2, 4), "base"), case(True, (6, 3), "base")]
    return [Trial(1, cases) for cases in (strong, weak, base)]


_SCALINGS = ("strong", "weak")
_BASE = "right without a trace of one rank, with traces in any order"


def _wrong_base(seen: Seen) -> str:
    """The fault without a one-rank trace, of a scaling that is right with one; else empty."""
    wrong = {name: fault(seen, f"base, {name}") for name in _SCALINGS if not fault(seen, name)}
    return next(filter(None, wrong.values()), "")


def _unclear_base(seen: Seen) -> str:
    """Until when the cases without a one-rank trace are not judged; empty if they are."""
    if _wrong_base(seen) or not any(fault(seen, f"base, {name}") for name in _SCALINGS):
        return ""
    return "strong and weak scaling are right with a trace of one rank"


PART = Part(
    name="00/efficiency_of",
    level=2,
    title="Speed-up and efficiency",
    minutes=10,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule("strong", 3, "right for strong scaling"),
            rule("weak", 2, "right for weak scaling", "form"),
            rule("base", 2, _BASE, "form", waits=_unclear_base, also=_wrong_base),
        ),
    ),
)
