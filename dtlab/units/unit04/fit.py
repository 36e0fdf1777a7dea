"""04/fit: a model within a limit of memory, at the least recomputation.

`fit(layers, limit)` is asked on a rank, for several models (`fit_plans`); each plan is then
carried out by a real step of ours (`fit_training`), whose peak and operations are judged. The
models, and what plan is best for them, are in `fit_settings`.
"""

from __future__ import annotations

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.parts import Part
from dtlab.grading.words import amount
from dtlab.units.unit04.fit_plans import (
    Fitting,
    Measured,
    Step,
    plans_of,
    steps_of,
    trials,
)
from dtlab.units.unit04.fit_settings import MARGIN, Model, Plan

__all__ = ["PART"]

_NEAR = 1.5  # of the least work: rules of thumb, thought through, are within it
_SCALARS = 64  # bytes: the loss and the like, which no table has

# Judges -----------------------------------------------------------------------------------------


def _judge_fits(seen: Seen) -> Verdict:
    if seen[0].mistakes:
        return lost(seen[0].mistakes[0])
    trouble = _trouble(seen)
    if trouble:
        return trouble
    steps = _measured(seen)
    for words, case, plan in plans_of(seen):
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
        plans = ((case.model, plan) for _, case, plan in plans_of(seen) if plan is not None)
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
    for words, case, plan in plans_of(seen):
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


PART = Part(
    name="04/fit",
    level=3,
    title="Fit a model under a memory limit",
    minutes=40,
    difficulty=3,
    check=Check(
        trials=trials,
        then=steps_of,
        rules=(
            Rule("fits", 4, _judge_fits),
            Rule("near", 3, _judge_near),
            Rule("least", 5, _judge_least),
            Rule("edges", 2, _judge_edges),
        ),
    ),
)
