"""What is asked in 04/fit: plans for several models, and then a real step by each of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.units.unit04.fit_settings import Model, Plan, draw_model

__all__ = ["Fitting", "Measured", "Step", "plans_of", "steps_of", "trials"]

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
