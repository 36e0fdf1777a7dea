"""06/shard_plan: decide how ranks share the layers of three models, within a budget for each.

The models are drawn from the learner's id (`plans_rules`). A plan is data. The check runs it on
ranks (`on_ranks.measure`), and measures their weights, calls and bytes:

    answer ──> a plan ──> allowed? ──run on ranks──> measured cost ──> within the budget?

A plan earns a point for each of four steps, in order, until the first that fails: it equals the
dense model; weights; calls; bytes sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dtlab.checks.functions.bench import HERE, Bench
from dtlab.checks.functions.checks import UNANSWERED, Verdict, blocked, lost, ok
from dtlab.checks.functions.trials import Case, Trial
from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Mistake, Question, Questions, Values, unanswered
from dtlab.checks.questions.quantities import plain, short
from dtlab.checks.questions.shapes import kind_in_words
from dtlab.checks.report import Criterion
from dtlab.predict.communication import bus_factor
from dtlab.predict.units import counted
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

_NEAR = 1e-4  # tolerance relative to a loss, and to the largest element of a gradient
_ROUNDING = 0.5  # bytes
_LIMIT = 15.0  # seconds

# Runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Carried(Case):
    """One training step of a model with a plan."""

    model: Model
    plan: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "a step with your plan"

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
    """The cost of a step, the calls in forward and backward, and the error of the result."""

    cost: Cost
    called: Mapping[str, Sequence[str]]
    off: float


def spent(trace: Trace, results: Sequence[Mapping[str, float]]) -> Measured:
    """The measurements of a run of `on_ranks.measure`, with the calls and bytes of rank 0."""
    called, sent = {"forward": list[str](), "backward": list[str]()}, 0.0
    events = [event for event in trace.events if event.rank == 0]
    for name, calls in called.items():
        (mark,) = (event for event in events if event.name == name)
        for event in events:
            if event.kind == "comm" and mark.start <= event.start <= mark.end:
                calls.append(event.name)
                sent += bus_factor(event.name, len(results)) * event.bytes
    weights = max(float(result["weights"]) for result in results)
    cost = Cost(weights, len(called["forward"]), len(called["backward"]), sent)
    return Measured(cost, called, max(float(result["off"]) for result in results))


# Judging ----------------------------------------------------------------------------------------


def _read(model: Model, answer: Any) -> Plan:
    """The plan. Raises ValueError with a message on how it must be written."""
    if not isinstance(answer, Mapping):
        raise ValueError(f"is {kind_in_words(answer)}: write a dict with an entry for each layer")
    missing = [name for name in model.shapes if answer.get(name) is None]
    unknown = [name for name in answer if name not in model.shapes]
    if missing or unknown:
        why = (
            f"has no {missing[0]!r}" if missing else f"has {short(unknown[0])}, which is no layer"
        )
        raise ValueError(f"{why}. The layers are {', '.join(model.shapes)}")
    plan = {}
    for name in model.shapes:
        plan[name] = "".join(str(plain(answer[name])).casefold().split())
        known = TABLE_KINDS if name == "embedding" else KINDS
        if plan[name] not in known:
            names = ", ".join(map(repr, known))
            raise ValueError(f"has {short(answer[name])} for {name!r}: write one of {names}")
    return plan


def steps_of(model: Model, answer: Any, bench: Bench = HERE) -> list[Verdict]:
    """A verdict for each step of a plan, up to the first loss."""
    try:
        plan = _read(model, answer)
        wrong = model.objection(plan)
    except ValueError as error:
        wrong = str(error)
    if wrong:
        return [lost(f"{wrong}.")]
    trial = Trial(model.ranks, [Carried(model, tuple(plan.items()))], limit=_LIMIT)
    run = bench.observe(trial, _measure)
    if run.error is not None:
        return [blocked(f"{run.trouble}\nYour plan is not the cause: run the check again.")]
    assert run.trace is not None
    measured = spent(run.trace, run.results[0])
    if not measured.off <= _NEAR:
        return [lost(f"its result differs from the dense model by {measured.off:.1%}.")]
    verdicts = [ok("it equals the dense model")]
    for name, wrong in _over(model, plan, measured).items():
        if wrong:
            return [*verdicts, lost(wrong)]
        verdicts.append(ok(f"{name} within the budget"))
    return verdicts


def _over(model: Model, plan: Plan, measured: Measured) -> dict[str, str]:
    """A message for each of weights, calls and bytes; empty if it is within the budget."""
    cost, goal = measured.cost, model.budget
    more = cost.weights - goal.weights
    heavy = f"a rank has {cost.weights:,.0f} bytes of weights, {more:,.0f} more than the budget."
    many = [
        _too_many(name, measured.called[name], most, plan)
        for name, most in (("forward", goal.forward), ("backward", goal.backward))
    ]
    much = (
        f"a rank sends {cost.sent:,.0f} bytes in a step, and the budget is {goal.sent:,.0f}. "
        "The number of calls is right: which call is the largest, and which other kind of layer "
        "sends fewer bytes?"
    )
    return {
        "weights": f"{heavy} {_heaviest(model, plan)}" if more > 0 else "",
        "calls": many[0] or many[1],
        "bytes": much if cost.sent > goal.sent + _ROUNDING else "",
    }


def _heaviest(model: Model, plan: Plan) -> str:
    whole = [name for name, kind in plan.items() if kind == "replicated"]
    if not whole:
        return "Row parallel layers have a whole bias on every rank; column parallel ones do not."
    largest = max(whole, key=lambda name: model.shapes[name][0] * model.shapes[name][1])
    return f"Every rank has {', '.join(whole)} whole, and {largest} is the largest of them."


def _too_many(name: str, called: Sequence[str], most: int, plan: Plan) -> str:
    if len(called) <= most:
        return ""
    gathers = called.count("all_gather")
    gathered = [layer for layer, kind in plan.items() if kind == "column+gather"]
    advice = "Which layers have the fewest bytes for the calls that they cost?"
    if gathers and gathered and name == "forward":
        advice = (
            f"The outputs of {', '.join(gathered)} are gathered. Which of them can the next "
            "layer, or the loss, use in parts?"
        )
    elif gathers:
        advice = "A row parallel layer whose input is whole gathers the gradient of this input."
    return (
        f"{name} calls {counted(len(called), 'collective')}, {gathers} of them all-gathers; the "
        f"budget is {most}. {advice}"
    )


# Questions and points ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanOf:
    """The kind of answer that is a plan for one of the models; a bench runs it."""

    model: str
    bench: Bench = HERE
    mistakes: tuple[Mistake, ...] = (
        Mistake("replicated", "every layer is whole on every rank"),
        Mistake("column+gather", "a tensor is gathered for a layer that cuts it again"),
    )

    def form(self) -> str:
        return '{"embedding": ..., "0.qkv": ..., ...}'

    def expected(self, given: Values) -> Plan:
        """One of the plans that fit."""
        return fitting(model_of(given[self.model]))[0]

    def judge(self, answer: Any, given: Values) -> Verdict:
        return self.steps(answer, given)[-1]  # `_Asked` counts the steps

    def steps(self, answer: Any, given: Values) -> list[Verdict]:
        return steps_of(model_of(given[self.model]), answer, self.bench)

    def distinct(self, given: Values) -> bool:
        return True


class _Asked(Question):
    """A question with a point for each step."""

    def settle(self, answer: Any, given: Values) -> Criterion:
        if unanswered(answer):
            return self.closed(UNANSWERED)
        assert isinstance(self.answer, PlanOf)
        steps = self.answer.steps(answer, given)
        message = "; ".join(step.message for step in steps)
        criterion = self.closed(steps[-1]._replace(message=message))
        return replace(criterion, earned=[step.status for step in steps].count("ok"))


class _Carried(Questions):
    """Questions whose answers are run on ranks."""

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        on_bench = tuple(replace(q, answer=PlanOf(q.name, bench)) for q in self.questions)
        questions = Questions(self.draw, self.rows, on_bench)
        return questions.run(symbol, answer, seed, learner, bench)


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
            f"block {number}: {b.kv_heads} heads of keys and values, {b.inner} inner features"
            for number, b in enumerate(model.blocks)
        ]
        parts = {
            "the model": f"hidden size {model.hidden}, {model.heads} heads of queries, a "
            f"vocabulary of {model.vocabulary}; embedding and head are "
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
