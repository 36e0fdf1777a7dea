"""04/fit: a model within a limit of memory, at the least recomputation.

`fit(layers, limit)` is asked on a rank, for several models; each plan is then carried out by a
real step of ours (`fit_training`), whose peak and operations are judged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount

__all__ = ["MARGIN", "PART", "Layer", "Model", "Plan", "draw_model", "rules_of_thumb"]

# The models of 04/fit, as numbers: what layers take, what fits, and which plan costs least -------
#
#     layer           0         1         2          under a checkpoint: 1
#     backward is     at 2:     kept 0 + input 1 + peak 2
#     at 1:           kept 0 + peak 1                 it was run again, and is whole
#     at 0:           peak 0
#
# A layer is Linear(width, hidden), so many GELUs, Linear(hidden, next width). `fit_training` makes
# and runs it; `tests/test_unit04_fit.py` compares.

Plan = tuple[int, ...]  # the layers under a checkpoint, by their numbers

MARGIN = 1.01  # of the least work: the next plan that fits costs more
_NEXT = 1.015


class Layer(NamedTuple):
    """Sizes of a layer: what goes in, what is within, how many GELUs, what comes out."""

    width: int
    hidden: int
    gelus: int
    out: int


@dataclass(frozen=True)
class Model:
    """Layers for a batch of `rows`, and a `limit` in bytes."""

    layers: tuple[Layer, ...]
    rows: int
    limit: int = 0

    @cached_property
    def table(self) -> list[dict[str, int]]:
        """For each layer: bytes of its input, bytes kept, bytes at its peak, operations."""
        return [
            {
                "input": 4 * self.rows * one.width,
                "kept": 4 * self.rows * (one.width + (one.gelus + 1) * one.hidden),
                # Beside what is kept: the gradients of the output and of what is within.
                "peak": 4 * self.rows * (one.width + (one.gelus + 2) * one.hidden + one.out),
                "work": 2 * self.rows * one.width * one.hidden,  # the last product is not needed
            }
            for one in self.layers
        ]

    def peaks(self, plan: Plan) -> list[int]:
        """Bytes in memory while backward is at each layer."""
        kept = [one["input" if n in plan else "kept"] for n, one in enumerate(self.table)]
        before = accumulate(kept, initial=0)
        return [there + one["peak"] for there, one in zip(before, self.table, strict=False)]

    def peak(self, plan: Plan) -> int:
        """The most of them."""
        return max(self.peaks(plan))

    def work(self, plan: Plan) -> int:
        """Operations to run the layers of a plan again."""
        return sum(self.table[number]["work"] for number in plan)

    def fits(self, plan: Plan) -> bool:
        """Whether the peak is within the limit."""
        return self.peak(plan) <= self.limit

    @cached_property
    def best(self) -> tuple[Plan, int, int]:
        """Of all plans that fit the one of least work; its work, and the next larger one."""
        count = len(self.layers)
        chosen = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1
        column = {name: np.array([one[name] for one in self.table]) for name in self.table[0]}
        kept = np.where(chosen, column["input"], column["kept"])
        before = np.cumsum(kept, axis=1) - kept
        fits = (before + column["peak"]).max(axis=1) <= self.limit
        if not fits.any():
            raise ValueError("no plan fits")
        work = np.where(fits, chosen @ column["work"], np.iinfo(np.int64).max)
        least = int(work.min())
        above = work[work > least]
        plan = tuple(np.flatnonzero(chosen[int(work.argmin())]).tolist())
        is_only = int((work == least).sum()) == 1
        return plan, least, int(above.min()) if is_only and above.size else least


# Rules of thumb, which are to fail ------------------------------------------------------------


def rules_of_thumb(model: Model) -> dict[str, Plan | None]:
    """What plain rules come to, by name; None where they do not fit."""
    table, every = model.table, range(len(model.layers))

    def saved(number: int) -> int:
        return table[number]["kept"] - table[number]["input"]

    orders: dict[str, Callable[[int], float]] = {
        "the largest first": lambda n: -saved(n),
        "the least work first": lambda n: table[n]["work"],
        "the least work for a byte first": lambda n: table[n]["work"] / saved(n),
        "from the front": lambda n: n,
        "from the back": lambda n: -n,
    }
    found: dict[str, Plan | None] = {"all": tuple(every)}
    for name, key in orders.items():
        plan = _until_it_fits(model, sorted(every, key=key))
        found[name] = plan
        found[f"{name}, then what is not needed out"] = plan and _thinned(model, plan)
    found["as if all peaked at once"] = _cautious(model)
    return found


def _until_it_fits(model: Model, order: Sequence[int]) -> Plan | None:
    for count in range(len(order) + 1):
        plan = tuple(sorted(order[:count]))
        if model.fits(plan):
            return plan
    return None


def _thinned(model: Model, plan: Plan) -> Plan:
    """Without what it fits without, the most work first."""
    for number in sorted(plan, key=lambda n: -model.table[n]["work"]):
        fewer = tuple(n for n in plan if n != number)
        if model.fits(fewer):
            plan = fewer
    return plan


def _cautious(model: Model) -> Plan | None:
    """The best, where what is kept of all layers has to fit beside the largest peak."""
    largest = max(model.table, key=lambda one: one["peak"])
    table = model.table
    best: tuple[int, Plan] | None = None
    for bits in range(1 << len(table)):
        plan = tuple(n for n in range(len(table)) if bits >> n & 1)
        kept = sum(one["input" if n in plan else "kept"] for n, one in enumerate(table))
        if kept + largest["peak"] <= model.limit:
            best = min(best or (model.work(plan), plan), (model.work(plan), plan))
    return best[1] if best else None


# Draws ------------------------------------------------------------------------------------------


def draw_model(draw: random.Random, count: int, exact: bool = False) -> Model:
    """A model with a limit that one plan fits best, and that no rule of thumb finds.

    With `exact`, the best plan has not a byte to spare.
    """
    for _ in range(1000):
        model = _limited(_drawn(draw, count), draw.uniform(0.3, 0.7))
        if exact:
            model = Model(model.layers, model.rows, model.peak(model.best[0]))
        _, least, following = model.best
        if least == 0 or following < _NEXT * least:
            continue
        found = rules_of_thumb(model).values()
        if any(one is not None and model.work(one) <= _NEXT * least for one in found):
            continue
        return model
    raise AssertionError("no draw has a single best plan that rules of thumb miss")


def _drawn(draw: random.Random, count: int) -> Model:
    # Few numbers come out at last: a loss has copies of them, which no layer's row counts.
    widths = [*(8 * draw.randint(2, 10) for _ in range(count)), 8 * draw.randint(1, 2)]
    layers = [
        Layer(width, 8 * draw.randint(4, 28), draw.randint(1, 4), out)
        for width, out in pairwise(widths)
    ]
    return Model(tuple(layers), 8 * draw.randint(2, 4))


def _limited(model: Model, share: float) -> Model:
    """With a limit between the least that there can be and what it takes without checkpoints."""
    least, most = model.peak(tuple(range(len(model.layers)))), model.peak(())
    return Model(model.layers, model.rows, int(least + share * (most - least)))


# What is asked in 04/fit: plans for several models, and then a real step by each of them ---------

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
        return self.model.table, self.model.limit

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[list[dict[str, int]], int]) -> Any:
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
        (planned,) = results
        if isinstance(planned, str):
            return f"fit {planned}. Return a list of layers by their numbers: [0, 3]."
        return ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def trials(seed: int) -> list[Trial]:
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
        return [list(one) for one in self.model.layers], list(self.plan), self.model.rows

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        return fn(*given)

    def opened(self, result: Any) -> Measured:
        return Measured(int(result["peak"]), int(result["work"]))

    def mistake(self, results: Sequence[Any]) -> str:
        return ""


def _measure(*given: Any) -> Any:
    from dtlab.units.unit04.fit_training import measure

    return measure(*given)


def steps_of(seen: Sequence[Observation]) -> list[tuple[Trial, Callable[..., Any]]]:
    """A real step for each plan."""
    cases = [Step(case.model, plan) for _, case, plan in plans_of(seen) if plan is not None]
    return [(Trial(1, cases, limit=_LIMIT), _measure)] if cases else []


def plans_of(seen: Sequence[Observation]) -> Iterator[tuple[str, Fitting, Plan | None]]:
    """For each of the four models: what it is in words, and its plan; none where one is none."""
    one = seen[0]
    if one.mistakes:
        return
    for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
        if isinstance(case, Fitting) and case.topic == "fit":
            yield one.trial.words(number), case, results[0]


# The part ----------------------------------------------------------------------------------------

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
