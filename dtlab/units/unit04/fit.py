"""04/fit: fit a model into a memory limit with the least recomputation.

A rank calls `fit(layers, limit)` for several models. The check then runs a real training step
(`fit_training`) with each plan, and judges its peak and its operations.

    layer           0         1         2          under a checkpoint: 1
    backward is     at 2:     kept 0 + input 1 + peak 2
    at 1:           kept 0 + peak 1                 it has been recomputed in full
    at 0:           peak 0

A layer is Linear(width, hidden), some GELUs, Linear(hidden, next width).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.parts import Part

__all__ = ["MARGIN", "PART", "Layer", "Model", "Plan", "draw_model", "rules_of_thumb"]

Array = np.ndarray[Any, Any]
Plan = tuple[int, ...]  # the layers under a checkpoint, by their numbers

MARGIN = 1.01  # times the least work: the next plan that fits takes more
_NEXT = 1.015  # times the least work: models whose next plan takes less are drawn again
_NEAR = 1.5  # times the least work: careful rules of thumb stay below it
_SCALARS = 64  # bytes: the loss and other scalars, which no table lists
_LIMIT = 20.0  # seconds: trying all plans of twelve layers takes a second in plain Python


class Layer(NamedTuple):
    """A layer: sizes of its input and hidden tensors, number of GELUs, size of its output."""

    width: int
    hidden: int
    gelus: int
    out: int


@dataclass(frozen=True)
class Model:
    """Layers for a batch of `rows`, and a memory `limit` in bytes."""

    layers: tuple[Layer, ...]
    rows: int
    limit: int = 0

    @cached_property
    def table(self) -> list[dict[str, int]]:
        """For each layer: bytes of its input, bytes kept, bytes at its peak, operations."""
        return [
            {
                "input": 4 * self.rows * layer.width,
                "kept": 4 * self.rows * (layer.width + (layer.gelus + 1) * layer.hidden),
                # Besides the kept bytes: the gradients of the output and of a hidden tensor.
                "peak": 4
                * self.rows
                * (layer.width + (layer.gelus + 2) * layer.hidden + layer.out),
                "work": 2 * self.rows * layer.width * layer.hidden,  # without the last matmul
            }
            for layer in self.layers
        ]

    def peaks(self, plan: Plan) -> list[int]:
        """The bytes in memory while backward is at each layer."""
        kept = [row["input" if n in plan else "kept"] for n, row in enumerate(self.table)]
        before = accumulate(kept, initial=0)
        return [earlier + row["peak"] for earlier, row in zip(before, self.table, strict=False)]

    def peak(self, plan: Plan) -> int:
        """The largest of `peaks`, in bytes."""
        return max(self.peaks(plan))

    def work(self, plan: Plan) -> int:
        """The operations for running the layers of a plan again."""
        return sum(self.table[number]["work"] for number in plan)

    def fits(self, plan: Plan) -> bool:
        """Whether the peak is within the limit."""
        return self.peak(plan) <= self.limit

    @cached_property
    def every(self) -> tuple[Array, Array, Array]:
        """For all plans: chosen layers (0 or 1) and bytes kept, [plans, layers]; work, [plans]."""
        count = len(self.layers)
        chosen = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1
        column = {name: np.array([row[name] for row in self.table]) for name in self.table[0]}
        kept = np.where(chosen, column["input"], column["kept"])
        return chosen, kept, chosen @ column["work"]

    @cached_property
    def best(self) -> tuple[Plan, int, int]:
        """The plan of least work that fits, its work, and the next larger work that fits."""
        _, kept, work = self.every
        peaks = np.cumsum(kept, axis=1) - kept + [row["peak"] for row in self.table]
        fits = peaks.max(axis=1) <= self.limit
        plan = self.cheapest(fits)
        if plan is None:
            raise ValueError("no plan fits")
        least, *others = np.sort(work[fits]).tolist()
        return plan, least, others[0] if others else least

    def cheapest(self, fits: Array) -> Plan | None:
        """The plan of least work among those that fit; None if none does."""
        chosen, _, work = self.every
        if not fits.any():
            return None
        row = int(np.where(fits, work, np.iinfo(np.int64).max).argmin())
        return tuple(np.flatnonzero(chosen[row]).tolist())


def rules_of_thumb(model: Model) -> dict[str, Plan | None]:
    """The plans of simple rules, by name; None if a rule finds no plan that fits."""
    table, layers = model.table, range(len(model.layers))
    saved = [row["kept"] - row["input"] for row in table]
    orders: dict[str, Callable[[int], float]] = {
        "the largest first": lambda n: -saved[n],
        "the least work first": lambda n: table[n]["work"],
        "the least work for a byte first": lambda n: table[n]["work"] / saved[n],
        "from the front": lambda n: n,
        "from the back": lambda n: -n,
    }
    plans: dict[str, Plan | None] = {"all": tuple(layers)}
    for name, key in orders.items():
        order = sorted(layers, key=key)
        candidates = (tuple(sorted(order[:count])) for count in range(len(order) + 1))
        plan = next(filter(model.fits, candidates), None)
        plans[name] = plan
        plans[f"{name}, then thinned out"] = plan and _thinned(model, plan)
    at_once = model.every[1].sum(axis=1) + max(row["peak"] for row in table)
    plans["as if all peaked at once"] = model.cheapest(at_once <= model.limit)
    return plans


def _thinned(model: Model, plan: Plan) -> Plan:
    """Removes each layer without which the plan still fits, the most work first."""
    for number in sorted(plan, key=lambda n: -model.table[n]["work"]):
        fewer = tuple(n for n in plan if n != number)
        if model.fits(fewer):
            plan = fewer
    return plan


def draw_model(draw: random.Random, count: int, exact: bool = False) -> Model:
    """Draws a model and a limit with a single best plan that no rule of thumb finds.

    With `exact`, the peak of the best plan equals the limit.
    """
    for _ in range(1000):
        model = _drawn(draw, count)
        # The limit lies between the lowest possible peak and the peak without checkpoints.
        least, most = model.peak(tuple(range(count))), model.peak(())
        model = replace(model, limit=int(least + draw.uniform(0.3, 0.7) * (most - least)))
        if exact:
            model = replace(model, limit=model.peak(model.best[0]))
        _, work, following = model.best
        thumbs = [plan for plan in rules_of_thumb(model).values() if plan is not None]
        if work and min(following, *map(model.work, thumbs)) > _NEXT * work:
            return model
    raise AssertionError("no draw has a single best plan that rules of thumb miss")


def _drawn(draw: random.Random, count: int) -> Model:
    # The last output is small, because the loss holds copies of it that no row of a layer counts.
    widths = [*(8 * draw.randint(2, 10) for _ in range(count)), 8 * draw.randint(1, 2)]
    layers = [
        Layer(width, 8 * draw.randint(4, 28), draw.randint(1, 4), out)
        for width, out in pairwise(widths)
    ]
    return Model(tuple(layers), 8 * draw.randint(2, 4))


@dataclass(frozen=True)
class Fitting(Faulty):
    """Calls `fit(layers, limit)`, and judges the plan for one model.

    `kind`: "fit" if some plan fits, "free" if no checkpoint is needed, "never" if none fits.
    """

    model: Model
    kind: str = "fit"
    topic: str = "fits"

    def __str__(self) -> str:
        return f"{len(self.model.layers)} layers in {self.model.limit:,} bytes"

    def given(self, rank: int, world_size: int) -> tuple[list[dict[str, int]], int]:
        return self.model.table, self.model.limit

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[list[dict[str, int]], int]) -> dict[str, Any]:
        table, limit = given
        plan = fn([dict(row) for row in table], limit)
        if hasattr(plan, "tolist"):
            plan = plan.tolist()
        if isinstance(plan, list | tuple | set | frozenset | range):
            plan = [number if type(number) is int else str(number)[:40] for number in plan]
        elif plan is not None:
            plan = type(plan).__name__
        return {"plan": plan}

    def opened(self, result: Any) -> Noted:
        """Explains in `wrong` why a plan is not valid; no step runs with such a plan."""
        plan, count = result["plan"], len(self.model.layers)
        wrong = f"returns {plan[:40]}" if isinstance(plan, str) else ""
        if plan is not None and not wrong:
            invalid = [item for item in plan if not isinstance(item, int) or not 0 <= item < count]
            if invalid:
                wrong = f"has {invalid[0]} in its plan, but layers are numbered 0 to {count - 1}"
            elif len(set(plan)) < len(plan):
                wrong = "has a layer in its plan twice"
        return Noted({"plan": plan, "wrong": wrong})

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        plan, wrong = results[0]["plan"], results[0]["wrong"]
        if wrong:
            yield "fits", f"fit {wrong}. Return a list of layers by their numbers: [0, 3]."
            yield "form", wrong
        elif self.kind == "fit" and plan is None:
            yield "fits", "fit returns None, but there is a plan that fits."
        elif self.kind != "fit" and plan != _EDGES[self.kind][1]:
            why, right = _EDGES[self.kind]
            yield "edges", f"{why}, but fit returns {plan}, not {right}."


@dataclass(frozen=True)
class Step(Faulty):
    """Runs a real training step with a plan."""

    model: Model
    plan: Plan
    topic: str = ""  # an error here is not the learner's fault

    def __str__(self) -> str:
        return str(Fitting(self.model))

    def shows(self, criterion: str) -> bool:
        return criterion != "edges"

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return [list(layer) for layer in self.model.layers], list(self.plan), self.model.rows

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        return fn(*given)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        peak, work = results[0]["peak"], results[0]["work"]
        if peak > self.model.limit + _SCALARS:
            peaks = self.model.peaks(self.plan)
            layer = peaks.index(max(peaks))
            at_layer = self.model.table[layer]["peak"]
            yield (
                "fits",
                f"with checkpoints over {list(self.plan)} a real step has {peak:,} bytes at its "
                f"peak, {peak - self.model.limit:,} too many. Backward is at layer {layer} then: "
                f"{at_layer:,} bytes for that layer, and {peaks[layer] - at_layer:,} bytes kept "
                f"for the layers before it. {_WHOLE}",
            )
        least = self.model.best[1]
        for name, most in (("near", _NEAR), ("least", MARGIN)):
            if work > most * least:
                runs = f"{list(self.plan)} runs {work / 1e6:.2f} million operations again"
                yield (
                    name,
                    f"{runs}, {work / least:.2f} times the least that fits. {_ADVICE[name]}",
                )


_EDGES: dict[str, tuple[str, list[int] | None]] = {
    "free": ("the model fits exactly without a checkpoint", []),
    "never": ("even with all layers under checkpoints it needs one byte too many", None),
}
_WHOLE = "While backward is at a layer, all its tensors are in memory, with or without checkpoint."
_ADVICE = {
    "near": "Which layers are cheap to run again, for the memory they keep? Which do not help?",
    "least": "Sorting the layers does not find it. How many plans are there in all?",
}


def _measure(*given: Any) -> Any:
    from dtlab.units.unit04.fit_training import measure

    return measure(*given)


def _trials(seed: int) -> list[Trial]:
    """Four models, one without a byte to spare; one that needs no checkpoint; one too large."""
    draw = random.Random(seed)
    models = [draw_model(draw, count) for count in (8, 10, 12)]
    models.append(draw_model(draw, 10, exact=True))
    free, never = (draw_model(draw, 9) for _ in range(2))
    never_fits = never.peak(tuple(range(len(never.layers)))) - 1
    cases = [
        *(Fitting(model) for model in models),
        Fitting(replace(free, limit=free.peak(())), "free"),
        Fitting(replace(never, limit=never_fits), "never"),
    ]
    return [Trial(1, cases, limit=_LIMIT)]


def _steps(observations: Sequence[Observation]) -> list[tuple[Trial, Callable[..., Any]]]:
    """The trial that runs a real step for each valid plan of the four models."""
    first, cases = observations[0], []
    for case, (noted, *_) in zip(first.trial.cases, first.results, strict=False):
        assert isinstance(case, Fitting)
        if case.kind == "fit" and noted["plan"] is not None and not noted["wrong"]:
            cases.append(Step(case.model, tuple(sorted(noted["plan"]))))
    return [(Trial(1, cases, limit=_LIMIT), _measure)] if cases else []


PART = Part(
    name="04/fit",
    level=3,
    title="Fit a model under a memory limit",
    minutes=40,
    difficulty=3,
    check=Check(
        trials=_trials,
        then=_steps,
        rules=(
            rule("fits", 4, "a real step stays within the limit, in four models"),
            rule("near", 3, f"at most {_NEAR:g} times the least recomputation", "fits"),
            rule("least", 5, "the least recomputation that is possible", "fits", "near"),
            rule("edges", 2, "no checkpoint if none is needed, None if nothing fits", "form"),
        ),
    ),
)
