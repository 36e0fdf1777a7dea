"""03/reach: a test error to be reached at sixteen times the batch, in a fixed number of samples.

`plan(batch, samples, ranks, memory) -> dict` is asked on a rank, for several settings. What it
plans for the digits is then carried out by ranks of ours (`reach_training`): first on two data-
parallel ranks, for what travels; then in full, with unseen seeds, each on a rank of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.bench import HERE, Bench
from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.warm import warm_up
from dtlab.grading.parts import Part
from dtlab.grading.report import Criterion
from dtlab.units.unit03 import reach_judges as judges
from dtlab.units.unit03.reach_cases import trainings_of, trials_for
from dtlab.units.unit03.reach_plans import Setting

__all__ = ["PART"]


def _trainings(seen: Sequence[Observation]) -> list[tuple[Trial, Callable[..., Any]]]:
    """What was planned for the digits, once it fits, to be carried out."""
    if seen[0].mistakes or judges.wrong_batch(seen[0]) or judges.wrong_updates(seen[0]):
        return []
    setting, plan = seen[0].trial.cases[0], seen[0].results[0][0]
    assert isinstance(setting, Setting)
    return trainings_of(setting, plan)


@dataclass(frozen=True)
class _Warm:
    """A check of trainings: the server of ranks has imported what optimizers need."""

    check: Check

    @property
    def points(self) -> float:
        """Points that can be had."""
        return self.check.points

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """See `Check`."""
        if bench is HERE:
            warm_up()
        return self.check.run(symbol, answer, seed, learner, bench)


PART = Part(
    name="03/reach",
    level=3,
    title="Sixteen times the batch",
    minutes=31,
    difficulty=3,
    check=_Warm(
        Check(
            trials=trials_for,
            then=_trainings,
            rules=(
                Rule("batch", 3, judges.judge_batch),
                Rule("updates", 3, judges.judge_updates),
                Rule("traffic", 4, judges.judge_traffic),
                Rule("error", 4, judges.judge_error),
                Rule("target", 6, judges.judge_target),
            ),
        )
    ),
    symbol="plan",
    grade_id="plan-check",
)
