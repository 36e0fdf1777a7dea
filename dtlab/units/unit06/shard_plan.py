"""06/shard_plan: how the layers of three models are shared by ranks, within a budget for each.

The models are drawn from the learner's id (`plans_rules`). A plan is data; ranks of ours carry it
out (`plans_engine`), and what they hold, call and send is measured:

    what is written ──> a plan ──> allowed? ──ranks of ours──> what it took ──> within the budget?

A plan earns a point for each of four steps, as far as it comes: it is the dense model; weights;
calls; bytes sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dtlab.grading.checking.bench import HERE, Bench
from dtlab.grading.checking.checks import Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Case, Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Mistake, Question, Questions, Values
from dtlab.grading.questions.quantities import plain, short
from dtlab.grading.questions.shapes import kind_in_words
from dtlab.grading.report import Criterion
from dtlab.predict.communication import bus_factor
from dtlab.units.unit06.plans_rules import (
    KINDS,
    NAMES,
    TABLE_KINDS,
    Cost,
    Model,
    Plan,
    draw_models,
    fitting,
    model_of,
)

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["PART", "Carried", "spent", "steps_of"]

_NEAR = 1e-4  # of a loss, and of the largest element of a gradient
_ROUNDING = 0.5  # bytes
_LIMIT = 15.0  # seconds

# What is run ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Carried(Case):
    """One step of a model by a plan, on ranks of ours."""

    model: Model
    plan: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "a step by your plan"

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return self.model.given, dict(self.plan)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        return fn(*given)

    def mistake(self, results: Sequence[Any]) -> str:
        return ""


def _measure(*given: Any) -> Any:
    from dtlab.units.unit06.on_ranks import measure

    return measure(*given)


class Measured(NamedTuple):
    """What a step took, in the terms of a budget; how often what was called; how far it is off."""

    cost: Cost
    called: Mapping[str, Sequence[str]]
    off: float


def spent(trace: Trace, results: Sequence[Mapping[str, float]]) -> Measured:
    """What `plans_engine.measure` took: of rank 0, which holds and sends as much as any."""
    called, sent = {"forward": list[str](), "backward": list[str]()}, 0.0
    events = [event for event in trace.events if event.rank == 0]
    for name, own in called.items():
        (mark,) = (event for event in events if event.name == name)
        for event in events:
            if event.kind == "comm" and mark.start <= event.start <= mark.end:
                own.append(event.name)
                sent += bus_factor(event.name, len(results)) * event.bytes
    weights = max(float(seen["weights"]) for seen in results)
    cost = Cost(weights, len(called["forward"]), len(called["backward"]), sent)
    return Measured(cost, called, max(float(seen["off"]) for seen in results))


# How it is judged -------------------------------------------------------------------------------


def _read(model: Model, answer: Any) -> Plan:
    """The plan. Raises ValueError with what is wrong with the way in which it is written."""
    if not isinstance(answer, Mapping):
        raise ValueError(f"is {kind_in_words(answer)}: write a dict with an entry for each layer")
    missing = [name for name in model.shapes if answer.get(name) is None]
    others = [name for name in answer if name not in model.shapes]
    if missing or others:
        why = f"has no {missing[0]!r}" if missing else f"has {short(others[0])}, which is no layer"
        raise ValueError(f"{why}. The layers are {', '.join(model.shapes)}")
    plan = {}
    for name in model.shapes:
        plan[name] = "".join(str(plain(answer[name])).casefold().split())
        known = TABLE_KINDS if name == "embedding" else KINDS
        if plan[name] not in known:
            words = ", ".join(map(repr, known))
            raise ValueError(f"has {short(answer[name])} for {name!r}: write one of {words}")
    return plan


def steps_of(model: Model, answer: Any, bench: Bench = HERE) -> list[Verdict]:
    """What is said of a plan, up to the first loss."""
    try:
        plan = _read(model, answer)
        wrong = model.objection(plan)
    except ValueError as error:
        wrong = str(error)
    if wrong:
        return [lost(f"{wrong}.")]
    trial = Trial(model.ranks, [Carried(model, tuple(plan.items()))], limit=_LIMIT)
    one = bench.observe(trial, _measure)
    if one.error is not None:
        return [blocked(f"{one.trouble}\nThat is not the plan's doing: run the check again.")]
    assert one.trace is not None
    found = spent(one.trace, one.results[0])
    if not found.off <= _NEAR:
        return [lost(f"it is {found.off:.1%} off the dense model.")]
    verdicts = [ok("it is the dense model")]
    for name, wrong in _over(model, plan, found).items():
        if wrong:
            return [*verdicts, lost(wrong)]
        verdicts.append(ok(f"{name} within the budget"))
    return verdicts


def _over(model: Model, plan: Plan, found: Measured) -> dict[str, str]:
    """Of weights, calls and bytes what is more than the budget; empty where nothing is."""
    cost, goal = found.cost, model.budget
    more = cost.weights - goal.weights
    heavy = f"a rank has {cost.weights:,.0f} bytes of weights, {more:,.0f} more than the budget."
    many = [
        _too_many(name, found.called[name], most)
        for name, most in (("forward", goal.forward), ("backward", goal.backward))
    ]
    much = (
        f"a rank sends {cost.sent:,.0f} bytes in a step, and the budget is {goal.sent:,.0f}. "
        "Calls are few enough: which is the largest, and what else does the same for fewer bytes?"
    )
    return {
        "weights": f"{heavy} {_heaviest(model, plan)}" if more > 0 else "",
        "calls": many[0] or many[1],
        "bytes": much if cost.sent > goal.sent + _ROUNDING else "",
    }


def _heaviest(model: Model, plan: Plan) -> str:
    whole = [name for name, kind in plan.items() if kind == "replicated"]
    if not whole:
        return "A row parallel layer has its whole bias on every rank, a column parallel one not."
    largest = max(whole, key=lambda name: model.shapes[name][0] * model.shapes[name][1])
    return f"Every rank has {', '.join(whole)} whole, and {largest} is the largest of them."


def _too_many(name: str, called: Sequence[str], most: int) -> str:
    if len(called) <= most:
        return ""
    gathers = called.count("all_gather")
    advice = (
        "Is there a gather whose result the next layer cuts again?"
        if gathers
        else "Which layers weigh least for the calls that they cost?"
    )
    return (
        f"{name} calls {len(called)} collectives, {gathers} of them all-gathers; the budget is "
        f"{most}. {advice}"
    )


# How an answer is read and counted --------------------------------------------------------------


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
        return '{"embedding": ..., "0.qkv": ..., ...}'

    def expected(self, given: Values) -> Plan:
        """One of the plans that fit."""
        return fitting(model_of(given[self.model]))[0]

    def judge(self, answer: Any, given: Values) -> Verdict:
        """See `Kind`; `_Asked` counts the steps."""
        return self.steps(answer, given)[-1]

    def steps(self, answer: Any, given: Values) -> list[Verdict]:
        return steps_of(model_of(given[self.model]), answer, self.bench)

    def distinct(self, given: Values) -> bool:
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
        asked = tuple(replace(one, answer=PlanOf(one.name, bench)) for one in self.questions)
        own = Questions(self.draw, self.rows, asked)
        return own.run(symbol, answer, seed, learner, bench)


# The part ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _models(seed: int) -> Values:
    return {name: model.given for name, model in draw_models(Random(seed)).items()}


def _rows(given: Values) -> list[tuple[str, str]]:
    rows = []
    for name in NAMES:
        model = model_of(given[name])
        goal = model.budget
        blocks = [
            f"block {number}: {one.kv_heads} heads of keys and values, {one.inner} features inside"
            for number, one in enumerate(model.blocks)
        ]
        parts = {
            "the model": f"hidden size {model.hidden}, {model.heads} heads of queries, a "
            f"vocabulary of {model.vocabulary}; table and head are "
            f"{'one weight, tied' if model.tied else 'two weights'}",
            "its blocks": "; ".join(blocks),
            "a step": f"{model.tokens} tokens on {model.ranks} ranks",
            "the budget": f"{goal.weights:,} bytes of weights on a rank; {goal.forward} "
            f"collectives forward, {goal.backward} backward; a rank sends {goal.sent:,} bytes",
        }
        rows += [(f"{name}: {label}", text) for label, text in parts.items()]
    return rows


_QUESTIONS = tuple(_Asked(name, 4, f"the plan for model {name}", PlanOf(name)) for name in NAMES)

PART: Final = Part(
    name="06/shard_plan",
    level=3,
    title="Three models within a budget",
    minutes=35,
    difficulty=3,
    check=_Carried(lambda draw: _models(draw.getrandbits(32)), _rows, _QUESTIONS),
)
