"""06/shard_plan: how the layers of three models are shared by ranks, within a budget for each.

The models are drawn from the learner's id (`plans_models`). A plan is data; ranks of ours carry
it out (`plans_engine`), and what they hold, call and send is measured (`plans_steps`). A plan
earns a point for each of four steps, as far as it comes: it is the dense model; weights; calls;
bytes sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any, Final

from dtlab.grading.checking.bench import HERE, Bench
from dtlab.grading.checking.checks import Verdict, blocked
from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Mistake, Question, Questions, Values
from dtlab.grading.report import Criterion
from dtlab.units.unit06.plans_models import NAMES, draw_models, fitting
from dtlab.units.unit06.plans_rules import Model, Plan, model_of
from dtlab.units.unit06.plans_steps import steps_of

__all__ = ["PART"]

_POINTS = 4

# How an answer is judged ------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanOf:
    """A kind of answer: the plan for one of the models, carried out on a bench."""

    model: str
    bench: Bench = HERE
    mistakes: tuple[Mistake, ...] = (
        Mistake("replicated", "everything whole on every rank"),
        Mistake("column+gather", "what is gathered for a layer that cuts it again"),
    )

    def form(self) -> str:
        """See `Kind`."""
        return '{"embedding": ..., "0.qkv": ..., ...}'

    def expected(self, given: Values) -> Plan:
        """One of the plans that fit."""
        return fitting(model_of(given[self.model]))[0]

    def judge(self, answer: Any, given: Values) -> Verdict:
        """See `Kind`; `_Asked` counts the steps."""
        return self.steps(answer, given)[-1]

    def steps(self, answer: Any, given: Values) -> list[Verdict]:
        """See `steps_of`."""
        return steps_of(model_of(given[self.model]), answer, self.bench)

    def distinct(self, given: Values) -> bool:
        """See `Kind`."""
        return True


class _Asked(Question):
    """A question that gives a point for each step."""

    def settle(self, answer: Any, given: Values) -> Criterion:
        blank = answer is None or answer is ...
        if blank or (isinstance(answer, Mapping) and all(v is None for v in answer.values())):
            return self.closed(blocked("not answered yet"))
        assert isinstance(self.answer, PlanOf)
        steps = self.answer.steps(answer, given)
        said = "; ".join(one.message for one in steps)
        criterion = self.closed(steps[-1]._replace(message=said))
        return replace(criterion, earned=[one.status for one in steps].count("ok"))


class _Carried(Questions):
    """Questions whose answers are carried out on ranks."""

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """See `Questions`."""
        asked = tuple(replace(one, answer=PlanOf(one.name, bench)) for one in self.questions)
        own = Questions(self.draw, self.rows, asked)
        return own.run(symbol, answer, seed, learner, bench)


# The part ---------------------------------------------------------------------------------------


def _draw(draw: Random) -> Values:
    return _models(draw.getrandbits(32))


@lru_cache(maxsize=64)
def _models(seed: int) -> Values:
    return {name: model.given for name, model in draw_models(Random(seed)).items()}


def _rows(given: Values) -> list[tuple[str, str]]:
    return [row for name in NAMES for row in _rows_of(name, model_of(given[name]))]


def _rows_of(name: str, model: Model) -> list[tuple[str, str]]:
    blocks = "; ".join(
        f"block {number}: {one.kv_heads} heads of keys and values, {one.inner} features inside"
        for number, one in enumerate(model.blocks)
    )
    ends = "one weight, tied" if model.tied else "two weights"
    goal = model.budget
    return [
        (
            f"{name}: the model",
            f"hidden size {model.hidden}, {model.heads} heads of queries, a vocabulary of "
            f"{model.vocabulary}; table and head are {ends}",
        ),
        (f"{name}: its blocks", blocks),
        (f"{name}: a step", f"{model.tokens} tokens on {model.ranks} ranks"),
        (
            f"{name}: the budget",
            f"{goal.weights:,} bytes of weights on a rank; {goal.forward} collectives forward, "
            f"{goal.backward} backward; {goal.sent:,} bytes that a rank sends",
        ),
    ]


PART: Final = Part(
    "06/shard_plan", 3, "Three models within a budget", 35, 3,
    _Carried(
        _draw,
        _rows,
        tuple(
            _Asked(name, _POINTS, f"the plan for model {name}", PlanOf(name)) for name in NAMES
        ),
    ),
)  # fmt: skip
