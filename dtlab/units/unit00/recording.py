"""Real runs on the emulated wire, whose traces 00/scaling_report is asked about."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.bench import HERE, Bench
from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.report import Criterion
from dtlab.predict import Cluster, Link
from dtlab.units.unit00.jobs import Row
from dtlab.units.unit00.report_cases import Scaled

__all__ = ["RecordedCheck", "Steps", "recorded"]

_RANKS, _STEPS = 4, 2
_LIMIT = 20.0  # seconds for a run that takes a tenth of one
_LINKS = {"latency": (4e-3, 5e9), "bandwidth": (1e-5, 2e7)}  # seconds, bytes/s one-way
_SIZES = (40_000, 160_000, 10_000)  # elements of 4 bytes


@dataclass(frozen=True)
class Steps(Case):
    """Steps of stand-in compute, each with its all-reduces."""

    forward: float
    steps: int

    def __str__(self) -> str:
        return f"{self.steps} steps"

    def given(self, rank: int, world_size: int) -> Any:
        """See `Case`."""
        return self.forward / world_size, self.steps

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        """See `Case`."""
        return fn(*given)

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
        return ""


def _train(forward: float, steps: int) -> None:
    """Runs on every rank."""
    import torch
    import torch.distributed as dist

    import dtlab

    for _ in range(steps):
        for name, times in (("forward", 1), ("backward", 2)):
            with dtlab.span(name):
                dtlab.compute(times * forward)
        for size in _SIZES if dist.get_world_size() > 1 else ():
            dist.all_reduce(torch.zeros(size))
        with dtlab.span("optimizer"):
            dtlab.compute(0.002)


def recorded(seed: int, bench: Bench) -> Scaled | None:
    """The traces of one and of four ranks on a drawn network; None where they came to nothing."""
    draw = random.Random(seed)
    link = Link(*_LINKS[draw.choice(list(_LINKS))])
    runs: dict[int, list[Row]] = {}
    for ranks in (1, _RANKS):
        cluster = Cluster(gpus_per_node=ranks, intra=link, inter=link)
        trial = Trial(ranks, [Steps(0.02, _STEPS)], cluster=cluster, limit=_LIMIT)
        seen = bench.observe(trial, _train)
        if seen.trace is None:
            return None
        runs[ranks] = _rows(seen)
    case = Scaled(runs, topic="recorded")
    return case if case.is_clear else None


def _rows(seen: Observation) -> list[Row]:
    assert seen.trace is not None
    return [
        (one.rank, one.kind, one.name, one.bytes, one.start, one.end) for one in seen.trace.events
    ]


@dataclass(frozen=True)
class RecordedCheck(Check):
    """A check that asks about traces recorded just now beside those of `trials`."""

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """See `Check`."""
        made = Check(lambda seed: self._with_recorded(seed, bench), self.rules)
        return made.run(symbol, answer, seed, learner, bench)

    def _with_recorded(self, seed: int, bench: Bench) -> Sequence[Trial]:
        case = recorded(seed, bench)
        extra = [Trial(1, [case])] if case is not None else []
        return [*self.trials(seed), *extra]
