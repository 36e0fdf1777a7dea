"""The check of a broken program: a learner's diagnosis and the fixed function.

    answer = {"diagnosis": ..., "fixed": function}

    broken program    ──run on ranks──>  observation  <──compared──  diagnosis
    fixed function   ──run on ranks──>  judged like any other function
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dtlab.checks.functions.bench import HERE, Bench
from dtlab.checks.functions.checks import Check, Rule, Verdict, blocked, lost
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.report import Criterion

__all__ = ["Fix", "FixProgram"]


@dataclass(frozen=True)
class Fix(ABC):
    """The check of a part with a broken program: the diagnosis, then the fixed function.

    `program` is the dotted name of the broken program, and `scene` the trial in which it runs.
    `check` judges the fixed function.
    """

    program: str
    scene: Trial
    check: Check

    @property
    def points(self) -> float:
        """The highest possible score."""
        return sum(rule.points for rule in self.rules({}, HERE)) + self.check.points

    @property
    def broken(self) -> Callable[..., Any]:
        """The broken program."""
        module, _, name = self.program.rpartition(".")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    @abstractmethod
    def rules(self, answer: Mapping[str, Any], bench: Bench) -> list[Rule]:
        """Returns the rules that judge the diagnosis in this answer."""

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Judges {"diagnosis": ..., "fixed": function}."""
        rules = self.rules(answer, bench)
        is_dict = isinstance(answer, Mapping)
        lacking = [key for key in ("diagnosis", "fixed") if not is_dict or key not in answer]
        if lacking:
            waiting = blocked("judged once the answer has this form")
            fault = f'has no key "{lacking[0]}"' if is_dict else "must be a dict"
            why = f'{symbol} {fault}: {symbol} = {{"diagnosis": ..., "fixed": ...}}'
            first, *rest = (*rules, *self.check.rules)
            return [first.closed(lost(why)), *(other.closed(waiting) for other in rest)]
        name = getattr(answer["fixed"], "__name__", "")  # "fixed_3", as in the learner's cell
        name = name if str(name).isidentifier() else "fixed"
        fixed = self.check.run(name, answer["fixed"], seed, learner, bench)
        return [*(rule.settle([]) for rule in rules), *fixed]


@dataclass(frozen=True)
class FixProgram(Fix):
    """A broken program that does not train; `judge` compares a diagnosis with the run."""

    judge: Callable[[Observation, Any], Verdict]

    def rules(self, answer: Mapping[str, Any], bench: Bench) -> list[Rule]:
        def diagnosed(_: Any) -> Verdict:
            seen = bench.observe(self.scene, self.broken)
            try:
                return self.judge(seen, answer["diagnosis"])
            except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
                return lost("the diagnosis does not have the required form: see the task.")

        return [Rule("diagnosis", 2, diagnosed)]
