"""00/efficiency_of: speed-up and efficiency from traces of the same job at several world sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Case, Trial
from dtlab.grading.parts import Part
from dtlab.units.unit00.jobs import Job, draw_job, rows_of, trace_events
from dtlab.units.unit00.shares import efficiencies

__all__ = ["PART", "Grown", "Pairs"]

Pairs = Mapping[int, tuple[float, float]]  # ranks -> speed-up, efficiency

_NEAR = 1e-3  # of a number


@dataclass(frozen=True)
class Grown(Case):
    """`efficiency_of(traces, scaling)` for one job, on these numbers of ranks in this order."""

    alone = True

    job: Job
    sizes: tuple[int, ...]
    topic: str

    def __str__(self) -> str:
        return f"{self.job.scaling} scaling on {', '.join(map(str, self.sizes))} ranks"

    def given(self, rank: int, world_size: int) -> Any:
        return [[n, rows_of(self.job, n)] for n in self.sizes], self.job.scaling

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        from dtlab.trace import Trace

        tables, scaling = given
        found = fn({n: Trace(trace_events(rows)) for n, rows in tables}, scaling)
        try:
            return [[int(n), *map(float, pair)] for n, pair in found.items()]
        except (AttributeError, TypeError, ValueError):
            return f"a {type(found).__name__}" if found is not None else "None"

    def opened(self, result: Any) -> Pairs | str:
        if isinstance(result, str):
            return result[:60]
        if any(len(row) != 3 for row in result):
            return "a dict without pairs"
        return {int(n): (float(speedup), float(efficiency)) for n, speedup, efficiency in result}

    @property
    def right(self) -> Pairs:
        """What is right."""
        from dtlab.trace import Trace

        seconds = {n: Trace(trace_events(rows_of(self.job, n))).duration for n in self.sizes}
        return efficiencies(seconds, self.job.scaling)

    def mistake(self, results: Sequence[Pairs | str]) -> str:
        (found,) = results
        if isinstance(found, str):
            return (
                f"efficiency_of returns {found}. Return a dict: for each number of ranks the pair "
                "(speed-up, efficiency)."
            )
        if set(found) != set(self.sizes):
            return f"it has entries for {sorted(found)}, and traces are there of the others too."
        for ranks, (speedup, efficiency) in self.right.items():
            said, name = found[ranks], f"{ranks} rank{'s' * (ranks > 1)}"
            if not _near(said[0], speedup):
                return f"{name}: the speed-up is {speedup:.3f}, and you have {said[0]:.3f}."
            if _near(said[1], 100 * efficiency):
                return f"{name}: the efficiency is a share, {efficiency:.3f}, and not per cent."
            if not _near(said[1], efficiency):
                return f"{name}: the efficiency is {efficiency:.3f}, and you have {said[1]:.3f}."
        return ""


def _near(got: float, wanted: float) -> bool:
    return abs(got - wanted) <= _NEAR * abs(wanted)


# Trials -----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Strong and weak scaling from one rank on; then from more, in another order."""
    draw = random.Random(seed)

    def job(weak: bool) -> Job:
        cause, second = draw.sample(("cores", "imbalance", "latency", "bandwidth"), 2)
        return draw_job(draw, cause, second, weak)

    def case(weak: bool, sizes: tuple[int, ...], topic: str) -> Grown:
        return Grown(job(weak), sizes, topic)

    last = draw.choice((5, 6, 7))
    strong = [case(False, (1, 2, 4, 8), "strong"), case(False, (1, last), "strong")]
    weak = [case(True, (1, 2, 4), "weak"), case(True, (1, 3, last), "weak")]
    base = [case(False, (8, 2, 4), "base"), case(True, (6, 3), "base")]
    return [Trial(1, cases) for cases in (strong, weak, base)]


# Judges -----------------------------------------------------------------------------------------

_ADVICE = {
    "strong": "Strong scaling: all ranks together do the work of one. How many times as fast, and "
    "which part of the ranks is put to use?",
    "weak": "Weak scaling: each rank does as much as the single one did, so N ranks do N times "
    "the work. In what time should they?",
    "base": "There is no trace of a single rank. Go by the fewest ranks there are: the speed-up "
    "is beside those, and so many times as many ranks as those could bring that much.",
}


def _judge(topic: str, right: str) -> Judge:
    def judge(seen: Seen) -> Verdict:
        trials = of_topic(seen, topic)
        if topic != "strong" and (not trials or seen[0].error or _formless(seen)):
            return blocked("judged once it returns pairs for strong scaling")
        if trials[0].mistakes:
            others = _of_right_scalings(seen) if topic == "base" else trials[0].mistakes
            if not others:
                return blocked("judged once strong and weak scaling are right from one rank on")
            return lost(f"{others[0]}\n{_ADVICE[topic]}")
        return ok(right)

    return judge


def _of_right_scalings(seen: Seen) -> list[str]:
    """What is wrong from other numbers of ranks on, where it is right from one rank on."""
    wrong = {topic for topic in ("strong", "weak") if of_topic(seen, topic)[0].mistakes}
    one = of_topic(seen, "base")[0]
    if one.error is not None:
        return one.mistakes
    told = zip(one.trial.cases, one.results, strict=True)
    return [
        f"{one.trial.words(number)}, {what}"
        for number, (case, results) in enumerate(told)
        if isinstance(case, Grown) and case.job.scaling not in wrong
        if (what := case.mistake(results))
    ]


def _formless(seen: Seen) -> bool:
    return any(isinstance(results[0], str) for results in seen[0].results)


PART = Part(
    name="00/efficiency_of",
    level=2,
    title="Speed-up and efficiency",
    minutes=10,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            Rule("strong", 3, _judge("strong", "right for strong scaling")),
            Rule("weak", 2, _judge("weak", "right for weak scaling")),
            Rule("base", 2, _judge("base", "right from other numbers of ranks on, in any order")),
        ),
    ),
)
