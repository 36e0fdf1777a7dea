"""07/balance_stages, extra: layers onto stages, the slowest of which is as fast as it can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from operator import ge, gt
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.quantities import short
from dtlab.predict import balance_stages
from dtlab.units.unit07.judging import LIMIT, rule_of

_NEAR = 1e-6  # of the best: a search by halving comes that close
_ALMOST = 0.05  # of the best: what a search that ends too early may be off by
_FEW = 12  # layers: so many are not told one by one
_FORM = "Return a list of layers, by their numbers, for each stage: [[0, 1], [2]]."


@dataclass(frozen=True)
class Balancing(Faulty):
    """`fn(costs, stages)`: what is no cut belongs to `guilty`, a slow one to "best"."""

    finished: ClassVar[tuple[str, ...]] = ("dtlab.predict.balance",)

    alone = True

    costs: tuple[float, ...]
    stages: int
    topic: str = "best"

    def __str__(self) -> str:
        few = len(self.costs) < _FEW
        shown = f"costs {list(self.costs)}" if few else f"{len(self.costs)} layers"
        return f"{shown} on {self.stages} stage{'s' * (self.stages != 1)}"

    @property
    def guilty(self) -> str:
        return "cut" if self.topic == "best" else self.topic

    def shows(self, criterion: str) -> bool:
        return criterion == self.topic or self.topic == "best"

    def advice(self, trouble: str) -> str:
        if self.topic != "large" or "do not come back" not in trouble:
            return ""
        return (
            f"Or it would end, and takes too long: {LIMIT:g} seconds are given for these, and "
            "fewer layers were no trouble. How many cuts does it try?"
        )

    def given(self, rank: int, world_size: int) -> tuple[list[float], int]:
        return list(self.costs), self.stages

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[list[float], int]) -> dict[str, Any]:
        with finished_calls("dtlab.predict.balance", refuse=True) as finished:
            found = fn(*given)
        return {"cut": _read(found), "text": short(found), "finished": sorted(finished)}

    def opened(self, result: Any) -> Noted:
        cut = result["cut"]
        if cut is not None:
            cut = [[int(layer) for layer in stage] for stage in cut]
        return Noted({**result, "cut": cut, "text": str(result["text"])[:60]})

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        cut = results[0]["cut"]
        lacking = self._lacking(cut, results[0]["text"])
        if lacking:
            yield self.guilty, lacking
            return
        slowest = _slowest(self.costs, cut)
        least = _slowest(self.costs, balance_stages(self.costs, self.stages))
        if slowest > least * (1 + _NEAR):
            yield (
                "best",
                f"the slowest stage takes {slowest:g}, and there is a cut in which it takes "
                f"{least:g}. {self._known(cut, slowest / least)}",
            )

    def _lacking(self, cut: list[list[int]] | None, text: str) -> str:
        """Why this is no cut."""
        if cut is None:
            return f"it returns {text}. {_FORM}"
        if len(cut) != self.stages:
            return f"it makes {len(cut)} stages of them."
        empty = [number for number, stage in enumerate(cut) if not stage]
        if empty:
            return f"stage {empty[0]} has no layer. How many does the stage before leave for it?"
        if [layer for stage in cut for layer in stage] != list(range(len(self.costs))):
            return f"{_short(cut)} is not every layer once, in order: a stage has layers in a row."
        return ""

    def _known(self, cut: list[list[int]], times: float) -> str:
        """What people do; this takes so many times as long as the best one."""
        sizes = {len(stage) for stage in cut}
        if max(sizes) - min(sizes) <= 1:
            return "You give all stages equally many layers. What do they cost?"
        if self.topic == "best":
            return (
                "Only the slowest stage counts: for these costs neither filling one stage after "
                "the other nor making all of them as alike as can be comes to the best cut."
            )
        if times <= 1 + _ALMOST:
            return "Yours comes close: does a search end too early, or are some cuts left out?"
        return "Only the slowest stage counts. Which cuts are left out?"


def _read(found: Any) -> list[list[int]] | None:
    """Lists of layers; None where it is something else."""
    if isinstance(found, str) or not isinstance(found, Iterable):
        return None
    try:
        return [[int(layer) for layer in stage] for stage in found]
    except (TypeError, ValueError):
        return None


def _short(cut: list[list[int]]) -> str:
    text = str(cut)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Trials -----------------------------------------------------------------------------------------


def _misleading(draw: random.Random, stages: int) -> tuple[float, ...]:
    """Costs for which none of what people take for the best cut is it.

    Not equal numbers; not filling up to the mean, or over it, though filling up to the right limit
    is; and not stages as alike as can be.
    """
    while True:
        costs = tuple(draw.choice((1, 1, 2, 2, 3, 4, 5, 7)) for _ in range(stages * 2 + 2))
        times = _all_times(costs, stages)
        least = min(map(max, times))
        best = [one for one in times if max(one) == least]
        if all(min(map(even, best)) > min(map(even, times)) for even in _EVEN):
            wrong = [_by_number(costs, stages), *_fillings(costs, stages)]
            if all(_slowest(costs, one) > least for one in wrong):
                return costs


def _all_times(costs: Sequence[float], stages: int) -> list[list[float]]:
    """Of every cut the seconds of its stages."""
    until = [0, *accumulate(costs)]
    bounds = ((0, *ends, len(costs)) for ends in combinations(range(1, len(costs)), stages - 1))
    return [[until[b] - until[a] for a, b in pairwise(one)] for one in bounds]


def _squares(times: Sequence[float]) -> float:
    return sum(one * one for one in times)


def _spread(times: Sequence[float]) -> float:
    return max(times) - min(times)


_EVEN = (_squares, _spread)


def _slowest(costs: Sequence[float], cut: Sequence[Sequence[int]]) -> float:
    return max(sum(costs[layer] for layer in stage) for stage in cut)


def _by_number(costs: Sequence[float], stages: int) -> list[list[int]]:
    """Equally many layers on each stage."""
    ends = [len(costs) * number // stages for number in range(stages + 1)]
    return [list(range(a, b)) for a, b in pairwise(ends)]


def _fillings(costs: Sequence[float], stages: int) -> list[list[list[int]]]:
    """Each stage up to the mean, with the layer that goes over it or without; last the rest."""
    return [_filled(costs, stages, over, full) for over in (0, 1) for full in (ge, gt)]


def _filled(
    costs: Sequence[float], stages: int, over: int, is_full: Callable[[float, float], bool]
) -> list[list[int]]:
    """No stage is left without a layer."""
    mean, cut = sum(costs) / stages, [[0]]
    for layer in range(1, len(costs)):
        filled = sum(costs[one] for one in cut[-1]) + (0 if over else costs[layer])
        must = len(costs) - layer == stages - len(cut)
        if (is_full(filled, mean) or must) and len(cut) < stages:
            cut.append([])
        cut[-1].append(layer)
    return cut


def _trials(seed: int) -> list[Trial]:
    """Small ones that mislead; as many layers as stages, one stage, layers that cost nothing."""
    draw = random.Random(seed)
    small = [Balancing(_misleading(draw, stages), stages) for stages in (3, 4, 3)]
    costs = [float(draw.randint(1, 9)) for _ in range(5)]
    heavy = (1.0, float(draw.randint(20, 40)), *costs[:4])
    edges = [
        Balancing(tuple(costs), 5, "edges"),
        Balancing(tuple(costs), 1, "edges"),
        Balancing(heavy, 4, "edges"),
        Balancing((0.0, 0.0, *costs[:3], 0.0), 5, "edges"),
        Balancing((float(draw.randint(30, 50)), *costs[:3]), 3, "edges"),
        Balancing((*costs[:3], float(draw.randint(30, 50))), 3, "edges"),
    ]
    many = tuple(round(draw.uniform(0.5, 4), 2) for _ in range(draw.randint(40, 48)))
    return [
        Trial(1, small, limit=LIMIT),
        Trial(1, edges, limit=LIMIT),
        Trial(1, [Balancing(many, 8, "large")], limit=LIMIT),
    ]


PART = Part(
    name="07/balance_stages",
    level=2,
    title="The balancer",
    minutes=20,
    difficulty=3,
    stretch=True,
    check=Check(
        trials=_trials,
        rules=(
            rule("cut", 1, "every layer once, in order, and some on each stage"),
            rule("best", 3, "no cut has a faster slowest stage", "cut"),
            rule_of("edges", "edges", 1, "also one layer for each stage", "cut"),
            rule_of("large", "large", 1, "many layers in a moment", "cut"),
        ),
    ),
    reference="dtlab.predict.balance_stages",
)
