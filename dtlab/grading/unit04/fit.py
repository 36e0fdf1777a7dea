"""04/fit: a model within a limit of memory, at the least recomputation.

`fit(layers, limit)` is asked on a rank, for several models; each plan is then carried out by a
real step of ours (`fit_training`), whose peak and operations are judged. The models, and what
plan is best for them, are in `fit_settings`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.unit04.fit_settings import MARGIN, Model, Plan, draw_model
from dtlab.grading.words import amount

__all__ = ["FIT", "PARTS"]

_NEAR = 1.5  # of the least work: rules of thumb, thought through, are within it
_SCALARS = 64  # bytes: the loss and the like, which no table has
_LIMIT = 20.0  # seconds: all plans of twelve layers take a second in plain Python


# Plans ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitting(Case):
    """`fit(layers, limit)`: the plan for one model; `topic` says what it is to show."""

    model: Model
    topic: str = "fit"

    def __str__(self) -> str:
        return f"{len(self.model.layers)} layers in {self.model.limit:,} bytes"

    def given(self, rank: int, world_size: int) -> tuple[list[dict[str, int]], int]:
        """See `Case`."""
        return self.model.table, self.model.limit

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[list[dict[str, int]], int]) -> Any:
        """See `Case`."""
        table, limit = given
        planned = fn([dict(row) for row in table], limit)
        if planned is None:
            return None
        if hasattr(planned, "tolist"):
            planned = planned.tolist()
        if not isinstance(planned, list | tuple | set | frozenset | range):
            return type(planned).__name__
        return [int(one) if _is_whole(one) else str(one)[:40] for one in planned]

    def opened(self, result: Any) -> Plan | str | None:
        """See `Case`. A plan in order; words where it is none."""
        count = len(self.model.layers)
        if result is None or isinstance(result, str):
            return None if result is None else f"returns {result[:40]}"
        odd = [one for one in result if not isinstance(one, int) or not 0 <= one < count]
        if odd:
            return f"has {odd[0]!r} in its plan, and layers are numbered 0 to {count - 1}"
        if len(set(result)) < len(result):
            return "has a layer in its plan twice"
        return tuple(sorted(result))

    def mistake(self, results: Sequence[Plan | str | None]) -> str:
        """See `Case`."""
        (planned,) = results
        if isinstance(planned, str):
            return f"fit {planned}. Return a list of layers by their numbers: [0, 3]."
        return ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _trials(seed: int) -> list[Trial]:
    """Four models, one of them to the byte; one that fits as it is, and one that never does."""
    draw = random.Random(seed)
    models = [draw_model(draw, count) for count in (8, 10, 12)] + [
        draw_model(draw, 10, exact=True)
    ]
    free, never = (draw_model(draw, 9) for _ in range(2))
    never_fits = never.peak(tuple(range(len(never.layers)))) - 1
    cases = [
        *(Fitting(model) for model in models),
        Fitting(Model(free.layers, free.rows, free.peak(())), "free"),
        Fitting(Model(never.layers, never.rows, never_fits), "never"),
    ]
    return [Trial(1, cases, limit=_LIMIT)]


# Steps of ours ----------------------------------------------------------------------------------


class Measured(NamedTuple):
    """What a real step took: bytes at its peak, operations that were run again."""

    peak: int
    work: int


@dataclass(frozen=True)
class Step(Case):
    """A step by a plan, on a rank of ours."""

    model: Model
    plan: Plan

    def __str__(self) -> str:
        return f"a step with {len(self.plan)} checkpoints"

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        """See `Case`."""
        return [list(one) for one in self.model.layers], list(self.plan), self.model.rows

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """See `Case`."""
        return fn(*given)

    def opened(self, result: Any) -> Measured:
        """See `Case`."""
        return Measured(int(result["peak"]), int(result["work"]))

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
        return ""


def _measure(*given: Any) -> Any:
    from dtlab.grading.unit04.fit_training import measure

    return measure(*given)


def _steps(seen: Sequence[Observation]) -> list[tuple[Trial, Callable[..., Any]]]:
    """A real step for each plan."""
    cases = [Step(case.model, plan) for _, case, plan in _plans(seen) if plan is not None]
    return [(Trial(1, cases, limit=_LIMIT), _measure)] if cases else []


def _plans(seen: Seen) -> Iterator[tuple[str, Fitting, Plan | None]]:
    """For each of the four models: what it is in words, and its plan; none where one is none."""
    one = seen[0]
    if one.mistakes:
        return
    for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
        if isinstance(case, Fitting) and case.topic == "fit":
            yield one.trial.words(number), case, results[0]


# Judges -----------------------------------------------------------------------------------------


def _judge_fits(seen: Seen) -> Verdict:
    if seen[0].mistakes:
        return lost(seen[0].mistakes[0])
    trouble = _trouble(seen)
    if trouble:
        return trouble
    steps = _measured(seen)
    for words, case, plan in _plans(seen):
        if plan is None:
            return lost(f"{words}: returns None, and there is a plan that fits.")
        peak = steps[case.model, plan].peak
        if peak > case.model.limit + _SCALARS:
            return lost(f"{words}: {_where(case.model, plan, peak)}")
    return ok("a real step stays within the limit, in four models")


def _trouble(seen: Seen) -> Verdict | None:
    """What to say where a step of ours did not come to its end."""
    trouble = next((one.trouble for one in seen[1:] if one.error is not None), "")
    if not trouble:
        return None
    return blocked(f"{trouble}\nThat is not the plan's doing: run the check again.")


def _measured(seen: Seen) -> dict[tuple[Model, Plan], Measured]:
    """What the steps took; what the tables say of them where none was run."""
    if len(seen) == 1:
        plans = ((case.model, plan) for _, case, plan in _plans(seen) if plan is not None)
        return {
            (model, plan): Measured(model.peak(plan), model.work(plan)) for model, plan in plans
        }
    return {
        (case.model, case.plan): results[0]
        for one in seen[1:]
        for case, results in zip(one.trial.cases, one.results, strict=True)
        if isinstance(case, Step)
    }


def _where(model: Model, plan: Plan, peak: int) -> str:
    """At which layer a step has its peak, and of what."""
    peaks = model.peaks(plan)
    layer = peaks.index(max(peaks))
    own = model.table[layer]["peak"]
    return (
        f"with checkpoints over {list(plan)} a real step has {peak:,} bytes at its peak, "
        f"{peak - model.limit:,} too many. Backward is at layer {layer} then: "
        f"{amount(own)} there, and {amount(peaks[layer] - own)} kept of the layers before it. "
        "A layer is whole while backward is at it, with a checkpoint or without."
    )


def _judge_near(seen: Seen) -> Verdict:
    return _judge_work(seen, _NEAR, f"at most {_NEAR:g} times the least recomputation", _TRY)


def _judge_least(seen: Seen) -> Verdict:
    if _judge_near(seen).status != "ok":
        return blocked("judged once the recomputation is near the least")
    return _judge_work(seen, MARGIN, "the least recomputation there can be", _ALL)


_TRY = "Which layers are cheap to run again for what they keep, and which checkpoints are no use?"
_ALL = "No order of the layers finds it. How many plans are there in all?"


def _judge_work(seen: Seen, factor: float, right: str, advice: str) -> Verdict:
    if _judge_fits(seen).status != "ok":
        return blocked("judged once the plans fit")
    steps = _measured(seen)
    for words, case, plan in _plans(seen):
        assert plan is not None
        work, least = steps[case.model, plan].work, case.model.best[1]
        if work > factor * least:
            return lost(
                f"{words}: {list(plan)} runs {work / 1e6:.2f} million operations again, "
                f"{work / least:.2f} times the least that fits. {advice}"
            )
    return ok(right)


def _judge_edges(seen: Seen) -> Verdict:
    one = seen[0]
    if one.mistakes:
        return blocked("judged once fit returns a plan everywhere")
    for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
        assert isinstance(case, Fitting)
        words, planned = one.trial.words(number), results[0]
        if case.topic == "free" and planned != ():
            shown = None if planned is None else list(planned)
            return lost(
                f"{words}: it fits to the byte without a checkpoint, and fit returns {shown}, "
                "not []."
            )
        if case.topic == "never" and planned is not None:
            return lost(
                f"{words}: with all layers under checkpoints it is a byte too many, and fit "
                f"returns {list(planned)}, not None."
            )
    return ok("no checkpoint where none is needed, None where nothing fits")


FIT = Part(
    name="04/fit",
    level=3,
    title="Fit a model under a memory limit",
    symbol="fit",
    grade_id="fit-check",
    minutes=40,
    difficulty=3,
    check=Check(
        trials=_trials,
        then=_steps,
        rules=(
            Rule("fits", 4, _judge_fits),
            Rule("near", 3, _judge_near),
            Rule("least", 5, _judge_least),
            Rule("edges", 2, _judge_edges),
        ),
    ),
)

PARTS: tuple[Part, ...] = (FIT,)
