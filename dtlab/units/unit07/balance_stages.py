"""07/balance_stages, extra: split layers into stages with the least time of the slowest stage."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from operator import ge, gt
from typing import Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.questions.quantities import short
from dtlab.predict import balance_stages
from dtlab.predict.units import counted
from dtlab.units.unit07.judging import LIMIT

_NEAR = 1e-6  # of the best time: the precision of a bisection search
_ALMOST = 0.05  # of the best time: the most by which a search that ends too early may be off
_SHOWN = 6  # layers that a message names
_FEW = 12  # layers: a message lists the costs of fewer layers than this

Cut = list[list[int]]


@dataclass(frozen=True)
class Balancing(Faulty):
    """Calls `fn(costs, stages)`. An invalid cut loses `topic`, a slow one loses "best"."""

    finished: ClassVar[tuple[str, ...]] = ("dtlab.predict.balance",)
    alone = True
    also_shows: ClassVar = {"cut": ("best",)}

    costs: tuple[float, ...]
    stages: int
    topic: str = "cut"

    def __str__(self) -> str:
        few = len(self.costs) < _FEW
        shown = f"costs {list(self.costs)}" if few else counted(len(self.costs), "layer")
        return f"{shown} on {counted(self.stages, 'stage')}"

    def advice(self, trouble: str) -> str:
        if self.topic != "large" or "did not finish" not in trouble:
            return ""
        return (
            f"Or it is only too slow: the limit is {LIMIT:g} seconds, and with fewer layers it "
            "finished. How many cuts does it try?"
        )

    def given(self, rank: int, world_size: int) -> tuple[list[float], int]:
        return list(self.costs), self.stages

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[list[float], int]) -> dict[str, Any]:
        with finished_calls("dtlab.predict.balance", refuse=True) as finished:
            returned = fn(*given)
        try:
            cut = [[int(layer) for layer in stage] for stage in returned]
        except (TypeError, ValueError):
            cut = None
        return {"cut": cut, "text": short(returned), "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        cut, text = results[0]["cut"], str(results[0]["text"])[:60]
        lacking = self._lacking(cut, text)
        if lacking:
            yield self.topic, lacking
            return
        slowest = _slowest(self.costs, cut)
        least = _slowest(self.costs, balance_stages(self.costs, self.stages))
        if slowest > least * (1 + _NEAR):
            yield (
                "best",
                f"the slowest stage takes {slowest:g}, but there is a cut in which it takes "
                f"{least:g}. {self._known(cut, slowest / least)}",
            )

    def _lacking(self, cut: Cut | None, text: str) -> str:
        """Says why this is not a valid cut; empty if it is one."""
        if cut is None:
            form = "Return a list of layers, by their numbers, for each stage: [[0, 1], [2]]."
            return f"it returns {text}. {form}"
        if len(cut) != self.stages:
            return f"it makes {counted(len(cut), 'stage')}, not {self.stages}."
        if [] in cut:
            number = cut.index([])
            return f"stage {number} has no layer. How many layers are left for it?"
        if [layer for stage in cut for layer in stage] == [int(cost) for cost in self.costs]:
            return f"{text} holds the layers' costs. Return their numbers, from 0, for each stage."
        odd = odd_layers(cut, len(self.costs))
        return f"{text} must have each layer once, in order ({odd})." if odd else ""

    def _known(self, cut: Cut, times: float) -> str:
        """Suggests a mistake; the cut takes `times` as long as the best one."""
        sizes = [len(stage) for stage in cut]
        if max(sizes) - min(sizes) <= 1:
            return "You give all stages the same number of layers. What do the layers cost?"
        if self.topic == "cut":
            return (
                "Only the slowest stage counts. For these costs, neither filling one stage after "
                "the other nor making all stages as equal as possible gives the best cut."
            )
        if times <= 1 + _ALMOST:
            return "Yours comes close: does a search end too early, or are some cuts left out?"
        return "Only the slowest stage counts. Which cuts are left out?"


def odd_layers(cut: Cut, count: int) -> str:
    """Says what is wrong with the layers: missing, twice, or not in order; empty if nothing."""
    layers = [layer for stage in cut for layer in stage]
    missing = [layer for layer in range(count) if layer not in layers]
    doubled = [layer for layer in range(count) if layers.count(layer) > 1]
    for odd, what in ((missing, "missing"), (doubled, "there twice")):
        if odd:
            more = ", ..." if len(odd) > _SHOWN else ""
            return f"{what}: {', '.join(map(str, odd[:_SHOWN]))}{more}"
    return "" if layers == [*range(count)] else "a stage has consecutive layers"


def _slowest(costs: Sequence[float], cut: Sequence[Sequence[int]]) -> float:
    return max(sum(costs[layer] for layer in stage) for stage in cut)


def _misleading(draw: random.Random, stages: int) -> tuple[float, ...]:
    """Draws costs for which no common guess is the best cut.

    The guesses are equal numbers of layers, stages filled up to the mean or past it, and stages
    as equal as possible, by the sum of squares or by the spread.
    """
    while True:
        costs = tuple(draw.choice((1, 1, 2, 2, 3, 4, 5, 7)) for _ in range(stages * 2 + 2))
        ends = [len(costs) * number // stages for number in range(stages + 1)]
        guesses = [[list(range(a, b)) for a, b in pairwise(ends)]]
        guesses += [_filled(costs, stages, over, full) for over in (0, 1) for full in (ge, gt)]
        times = _all_times(costs, stages)
        least = min(map(max, times))
        best = [each for each in times if max(each) == least]
        squares = min(sum(t * t for t in each) for each in times)
        spread = min(max(each) - min(each) for each in times)
        if all(_slowest(costs, cut) > least for cut in guesses) and all(
            sum(t * t for t in each) > squares and max(each) - min(each) > spread for each in best
        ):
            return costs


def _filled(
    costs: Sequence[float], stages: int, over: int, is_full: Callable[[float, float], bool]
) -> Cut:
    """Fills each stage to the mean, with (`over`) or without the layer that exceeds it."""
    mean, cut = sum(costs) / stages, [[0]]
    for layer in range(1, len(costs)):
        filled = sum(costs[number] for number in cut[-1]) + (0 if over else costs[layer])
        must = len(costs) - layer == stages - len(cut)  # every stage must get a layer
        if (is_full(filled, mean) or must) and len(cut) < stages:
            cut.append([])
        cut[-1].append(layer)
    return cut


def _all_times(costs: Sequence[float], stages: int) -> list[list[float]]:
    """The times of the stages, for every cut."""
    until = [0, *accumulate(costs)]
    bounds = ((0, *ends, len(costs)) for ends in combinations(range(1, len(costs)), stages - 1))
    return [[until[b] - until[a] for a, b in pairwise(ends)] for ends in bounds]


def _trials(seed: int) -> list[Trial]:
    """Small trials that mislead; edges: one layer per stage, one stage, layers without cost."""
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
    large = [Balancing(many, 8, "large")]
    return [Trial(1, cases, limit=LIMIT) for cases in (small, edges, large)]


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
            rule("cut", 1, "each layer occurs once, in order, and no stage is empty"),
            rule("best", 3, "no cut has a faster slowest stage", "cut"),
            rule("edges", 1, "right for as many stages as layers", "cut"),
            rule("large", 1, "a cut of many layers is found in a moment", "cut"),
        ),
    ),
    reference="dtlab.predict.balance_stages",
)
