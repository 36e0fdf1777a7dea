"""06/shard_plan: how the layers of three models are shared by ranks, within a budget for each.

The models are drawn from the learner's id (`plans_rules`). A plan is data; ranks of ours carry it
out (`plans_engine`), and what they hold, call and send is measured. A plan
earns a point for each of four steps, as far as it comes: it is the dense model; weights; calls;
bytes sent.
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

# Carries a plan of 06/shard_plan out on a bench, and says how far it comes -----------------------
#
# what is written ──> a plan ──> allowed? ──ranks of ours──> what it took ──> within the budget?

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
    from dtlab.units.unit06.plans_engine import measure

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


# What is read -----------------------------------------------------------------------------------


def _read(model: Model, answer: Any) -> Plan | str:
    """The plan, or what is wrong with the way in which it is written."""
    if not isinstance(answer, Mapping):
        return f"is {kind_in_words(answer)}: write a dict with an entry for each layer"
    missing = [name for name in model.shapes if answer.get(name) is None]
    others = [name for name in answer if name not in model.shapes]
    if missing or others:
        why = f"has no {missing[0]!r}" if missing else f"has {short(others[0])}, which is no layer"
        return f"{why}. The layers are {', '.join(model.shapes)}"
    plan = {name: _word(answer[name]) for name in model.shapes}
    for name, kind in plan.items():
        known = TABLE_KINDS if name == "embedding" else KINDS
        if kind not in known:
            words = ", ".join(map(repr, known))
            return f"has {short(answer[name])} for {name!r}: write one of {words}"
    return plan


def _word(value: Any) -> str:
    return "".join(str(plain(value)).casefold().split())


# How it is judged -------------------------------------------------------------------------------


def steps_of(model: Model, answer: Any, bench: Bench = HERE) -> list[Verdict]:
    """What is said of a plan, up to the first loss."""
    plan = _read(model, answer)
    wrong = plan if isinstance(plan, str) else model.objection(plan)
    if isinstance(plan, str) or wrong:
        return [lost(f"{wrong}.")]
    trial = Trial(model.ranks, [Carried(model, tuple(plan.items()))], limit=_LIMIT)
    one = bench.observe(trial, _measure)
    if one.error is not None:
        why = f"{one.trouble}\nThat is not the plan's doing: run the check again."
        return [blocked(why)]
    assert one.trace is not None
    found = spent(one.trace, one.results[0])
    if not found.off <= _NEAR:
        return [lost(f"it is {found.off:.1%} off the dense model.")]
    said, goal = [ok("it is the dense model")], model.budget
    for name, wrong in (
        ("weights", _too_heavy(model, plan, found, goal)),
        ("calls", _too_many(found, goal)),
        ("bytes", _too_much(found, goal)),
    ):
        said.append(lost(wrong) if wrong else ok(f"{name} within the budget"))
        if wrong:
            break
    return said


def _too_heavy(model: Model, plan: Plan, found: Measured, goal: Cost) -> str:
    over = found.cost.weights - goal.weights
    if over <= 0:
        return ""
    whole = [name for name, kind in plan.items() if kind == "replicated"]
    advice = "A row parallel layer has its whole bias on every rank, a column parallel one not."
    if whole:
        largest = max(whole, key=lambda name: model.shapes[name][0] * model.shapes[name][1])
        advice = f"Every rank has {', '.join(whole)} whole, and {largest} is the largest of them."
    return (
        f"a rank has {found.cost.weights:,.0f} bytes of weights, {over:,.0f} more than the "
        f"budget. {advice}"
    )


def _too_many(found: Measured, goal: Cost) -> str:
    for name, most in (("forward", goal.forward), ("backward", goal.backward)):
        called = found.called[name]
        if len(called) > most:
            gathers = called.count("all_gather")
            advice = (
                "Is there a gather whose result the next layer cuts again?"
                if gathers
                else "Which layers weigh least for the calls that they cost?"
            )
            return (
                f"{name} calls {len(called)} collectives, {gathers} of them all-gathers, and the "
                f"budget is {most}. {advice}"
            )
    return ""


def _too_much(found: Measured, goal: Cost) -> str:
    if found.cost.sent <= goal.sent + _ROUNDING:
        return ""
    return (
        f"a rank sends {found.cost.sent:,.0f} bytes in a step, and the budget is "
        f"{goal.sent:,.0f}. Calls are few enough: which of them is the largest, and what else "
        "does the same for fewer bytes?"
    )


# The part ----------------------------------------------------------------------------------------

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
