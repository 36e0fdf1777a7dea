"""07/balance_stages, extra: layers onto stages, the slowest of which is as fast as it can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.faults import Fault, Faulty, Noted, judge
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.quantities import short
from dtlab.grading.unit07.judging import LIMIT, judge_of
from dtlab.predict import balance_stages

__all__ = ["BALANCE_STAGES"]

_NEAR = 1e-6  # of the best: a search by halving comes that close
_FORM = "Return a list of layers, by their numbers, for each stage: [[0, 1], [2]]."


@dataclass(frozen=True)
class Balancing(Faulty):
    """`fn(costs, stages)`: what is no cut belongs to `guilty`, a slow one to "best"."""

    alone = True

    costs: tuple[float, ...]
    stages: int
    topic: str = "best"

    def __str__(self) -> str:
        few = len(self.costs) < 12
        shown = f"costs {list(self.costs)}" if few else f"{len(self.costs)} layers"
        return f"{shown} on {self.stages} stage{'s' * (self.stages != 1)}"

    @property
    def guilty(self) -> str:
        """See `Faulty`."""
        return "cut" if self.topic == "best" else self.topic

    def shows(self, criterion: str) -> bool:
        """See `Faulty`."""
        return criterion == self.topic or self.topic == "best"

    def given(self, rank: int, world_size: int) -> tuple[list[float], int]:
        """See `Case`."""
        return list(self.costs), self.stages

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[list[float], int]) -> dict[str, Any]:
        """See `Case`."""
        with finished_calls("dtlab.predict.balance", refuse=True) as finished:
            found = fn(*given)
        return {"cut": _read(found), "text": short(found), "finished": sorted(finished)}

    def opened(self, result: Any) -> Noted:
        """See `Case`."""
        cut = result["cut"]
        if cut is not None:
            cut = [[int(layer) for layer in stage] for stage in cut]
        return Noted({**result, "cut": cut, "text": str(result["text"])[:60]})

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """See `Faulty`."""
        cut = results[0]["cut"]
        lacking = self._lacking(cut, results[0]["text"])
        if lacking:
            yield self.guilty, lacking
            return
        seconds = [sum(self.costs[layer] for layer in stage) for stage in cut]
        least = max(
            sum(self.costs[layer] for layer in stage)
            for stage in balance_stages(self.costs, self.stages)
        )
        if max(seconds) > least * (1 + _NEAR):
            yield (
                "best",
                f"the slowest stage takes {max(seconds):g}, and there is a cut in which it takes "
                f"{least:g}. {self._known(cut)}",
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

    def _known(self, cut: list[list[int]]) -> str:
        """What people do."""
        sizes = {len(stage) for stage in cut}
        if max(sizes) - min(sizes) <= 1:
            return "You give all stages equally many layers. What do they cost?"
        return "Filling one stage after the other is not enough: how good is the best of all cuts?"


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
    """Costs for which neither equal numbers, nor filling up to the mean, nor to the best is right.

    Filling in order up to a limit gives the best for the right limit; up to the mean it does not.
    """
    while True:
        costs = tuple(draw.choice((1, 1, 2, 2, 3, 4, 5, 7)) for _ in range(stages * 2 + 2))
        least = _slowest(costs, [list(one) for one in balance_stages(costs, stages)])
        wrong = [_by_number(costs, stages), *(_filled(costs, stages, over) for over in (0, 1))]
        if all(_slowest(costs, one) > least for one in wrong):
            return costs


def _slowest(costs: Sequence[float], cut: Sequence[Sequence[int]]) -> float:
    return max(sum(costs[layer] for layer in stage) for stage in cut)


def _by_number(costs: Sequence[float], stages: int) -> list[list[int]]:
    """Equally many layers on each stage."""
    ends = [len(costs) * number // stages for number in range(stages + 1)]
    return [list(range(a, b)) for a, b in pairwise(ends)]


def _filled(costs: Sequence[float], stages: int, over: int) -> list[list[int]]:
    """Each stage up to the mean, with the layer that goes over it or without; the rest goes last.

    No stage is left without a layer.
    """
    mean, cut = sum(costs) / stages, [[0]]
    for layer in range(1, len(costs)):
        full = sum(costs[one] for one in cut[-1]) + (0 if over else costs[layer]) >= mean
        must = len(costs) - layer == stages - len(cut)
        if (full or must) and len(cut) < stages:
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


BALANCE_STAGES = Part(
    name="07/balance_stages",
    level=2,
    title="The balancer",
    symbol="balance_stages",
    grade_id="balance_stages-check",
    minutes=20,
    difficulty=3,
    stretch=True,
    check=Check(
        trials=_trials,
        rules=(
            Rule("cut", 1, judge("cut", "every layer once, in order, and some on each stage")),
            Rule("best", 3, judge("best", "no cut has a faster slowest stage", "cut")),
            Rule("edges", 1, judge_of("edges", "edges", "also one layer for each stage", "cut")),
            Rule("large", 1, judge_of("large", "large", "many layers in a moment", "cut")),
        ),
    ),
    reference="dtlab.predict.balance_stages",
)
