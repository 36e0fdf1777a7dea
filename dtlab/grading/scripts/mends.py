"""The check of a broken program: a learner's diagnosis and the mended function.

    answer = {"diagnosis": ..., "mended": function}

    broken program    ──run on ranks──>  observation  <──compared──  diagnosis
    mended function   ──run on ranks──>  judged like any other function
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.bench import HERE, Bench
from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.report import Criterion

__all__ = ["Mend"]


@dataclass(frozen=True)
class Mend:
    """The check of a part with a broken program: the diagnosis, then the mended function.

    `program` is its dotted name, and `scene` the trial in which it runs. `judge` compares a
    diagnosis with the observation of that trial. `check` is for the mended function.
    """

    program: str
    scene: Trial
    judge: Callable[[Observation, Any], Verdict]
    check: Check
    diagnosis_points: float = 2

    @property
    def points(self) -> float:
        """The highest possible score."""
        return self.diagnosis_points + self.check.points

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Judges {"diagnosis": ..., "mended": function}."""
        rule = Rule("diagnosis", self.diagnosis_points, lambda _: self._diagnosed(answer, bench))
        if not isinstance(answer, Mapping) or not {"diagnosis", "mended"} <= set(answer):
            waiting = blocked("judged once the answer has this form")
            why = f'{symbol} has to be a dict: {symbol} = {{"diagnosis": ..., "mended": ...}}'
            rest = [other.closed(waiting) for other in self.check.rules]
            return [rule.closed(lost(why)), *rest]
        mended = self.check.run("mended", answer["mended"], seed, learner, bench)
        return [rule.settle([]), *mended]

    def _diagnosed(self, answer: Mapping[str, Any], bench: Bench) -> Verdict:
        module, _, name = self.program.rpartition(".")
        broken = getattr(importlib.import_module(module), name)
        observation = bench.observe(self.scene, broken)
        try:
            return self.judge(observation, answer["diagnosis"])
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
            return lost("the diagnosis does not have the required form: see the task.")
