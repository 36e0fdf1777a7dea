"""05/plans: stage, ranks, precision and recomputation for three models.

The models are drawn from the learner's id (`plans_models`), and judged by arithmetic alone
(`plans_rules`): all allowed plans are gone through. A plan earns a point for each of four steps,
legal, fits, sends least, computes least, as far as it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any, Final

from dtlab.grading.checking.checks import Verdict, lost, ok
from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Mistake, Question, Questions, Values
from dtlab.grading.questions.quantities import plain, short, whole
from dtlab.grading.questions.shapes import kind_in_words
from dtlab.grading.report import Criterion
from dtlab.predict.memory import POLICIES
from dtlab.units.unit05.plans_models import NAMES, draw_models
from dtlab.units.unit05.plans_rules import RECOMPUTE, Model, Plan, Row, model_of

__all__ = ["PART", "PLANS", "steps_of"]

_FIELDS = Plan._fields
_FORM = '{"stage": ..., "ranks": ..., "policy": ..., "recompute": ...}'
_LEFT_OUT = (
    Mistake("reserve", "the reserve"),
    Mistake("blocks", "the blocks that are whole for a while"),
    Mistake("activations", "activations"),
)
_SENDS_MORE = (
    Mistake("stage", "Is there another stage that fits and sends less?"),
    Mistake("ranks", "The stage is the right one. With which ranks does it send least, and why?"),
    Mistake("policy", "Stage and ranks are right. Of what does a policy send how many bytes?"),
)
_LARGEST = {
    "states": "the model states: of weights, gradients and optimizer state, which does this stage "
    "leave whole on every rank?",
    "activations": "activations: what keeps fewer of them, and what does that cost?",
}
_DEMANDS = {
    "master": "the weights in fp32 too",
    "gradients": "the weights in fp32 too, and gradients that are added up in fp32",
}


# What is read -----------------------------------------------------------------------------------


def _read(answer: Any) -> Plan | str:
    """The plan, or what is wrong with the way in which it is written."""
    if not isinstance(answer, Mapping):
        return f"is {kind_in_words(answer)}: write {_FORM}"
    missing = [name for name in _FIELDS if answer.get(name) is None]
    if missing:
        return f"has no {', '.join(map(repr, missing))}: write {_FORM}"
    stage, ranks = whole(answer["stage"]), whole(answer["ranks"])
    for name, number in (("stage", stage), ("ranks", ranks)):
        if number is None:
            return f"has {short(answer[name])} for {name!r}: write a whole number"
    assert stage is not None
    assert ranks is not None
    policy, recompute = (_word(answer[name]) for name in ("policy", "recompute"))
    for word, known in ((policy, tuple(POLICIES)), (recompute, RECOMPUTE)):
        if word not in known:
            return f"has {short(word)}: write one of {', '.join(map(repr, known))}"
    return Plan(stage, ranks, policy, recompute)


def _word(value: Any) -> str:
    return str(plain(value)).strip().casefold()


# How it is judged -------------------------------------------------------------------------------


def steps_of(model: Model, answer: Any) -> list[Verdict]:
    """What is said of a plan: legal, fits, sends least, computes least; up to the first loss."""
    plan = _read(answer)
    wrong = plan if isinstance(plan, str) else model.objection(plan)
    if isinstance(plan, str) or wrong:
        return [lost(f"{wrong}.")]
    row = model.row(plan)
    best = model.best()
    if row.total > model.card or best is None:
        return [ok("allowed"), lost(_over(model, row))]
    fits = ok(f"{model.card - row.total:,} bytes left")
    if row.sent > best.sent:
        return [ok("allowed"), fits, lost(_more(model, row, best))]
    least = ok("no plan that fits sends less")
    if row.twice > best.twice:
        twice = f"another plan that sends as little computes less twice than {plan.recompute!r}."
        return [ok("allowed"), fits, least, lost(twice)]
    return [ok("allowed"), fits, least, ok("none of those computes less twice")]


def _over(model: Model, row: Row) -> str:
    over = row.total - model.card
    count = "1 byte" if over == 1 else f"{over:,} bytes"
    missed = [one.why for one in _LEFT_OUT if over <= row.needs[one.value]]
    why = f"It would fit without {' or '.join(missed)}: is all of it counted?"
    return f"it takes {count} more than the card's {model.card:,}. {why if missed else _lead(row)}"


def _lead(row: Row) -> str:
    """Where to look first: at what most of it is."""
    largest = max(_LARGEST, key=lambda name: row.needs[name])
    return f"Most of it are {_LARGEST[largest]}"


def _more(model: Model, row: Row, best: Row) -> str:
    same = {one.plan for one in model.rows() if one.sent == best.sent}
    agrees = sum(any(row.plan[:n] == one[:n] for one in same) for n in (1, 2))
    more = row.sent - best.sent
    return (
        f"each rank sends {row.sent / 1e9:,.2f} GB in a step, {more / 1e9:,.2f} GB more than with "
        f"the best plan that fits, {row.sent / best.sent:.2f} times as much. "
        f"{_SENDS_MORE[agrees].why}"
    )


@dataclass(frozen=True)
class PlanOf:
    """A kind of answer: the plan for one of the models."""

    model: str
    mistakes: tuple[Mistake, ...] = (*_LEFT_OUT, *_SENDS_MORE)

    def form(self) -> str:
        return _FORM

    def expected(self, given: Values) -> dict[str, Any]:
        """One of the best plans."""
        best = model_of(given[self.model]).best()
        return best.plan._asdict() if best else {}

    def steps(self, answer: Any, given: Values) -> list[Verdict]:
        """See `steps_of`."""
        return steps_of(model_of(given[self.model]), answer)

    def judge(self, answer: Any, given: Values) -> Verdict:
        *passed, last = self.steps(answer, given)
        said = "; ".join(one.message for one in (*passed, last))
        return last._replace(message=said)

    def distinct(self, given: Values) -> bool:
        return True


class _Asked(Question):
    """A question that gives a point for each step."""

    def settle(self, answer: Any, given: Values) -> Criterion:
        criterion = super().settle(answer, given)
        if criterion.status == "blocked":
            return criterion
        assert isinstance(self.answer, PlanOf)
        steps = self.answer.steps(answer, given)
        return replace(criterion, earned=[one.status for one in steps].count("ok"))


# The part ---------------------------------------------------------------------------------------


def _draw(draw: Random) -> Values:
    return _models(draw.getrandbits(32))


@lru_cache(maxsize=64)
def _models(seed: int) -> Values:
    return {name: model.given for name, model in draw_models(Random(seed)).items()}


def _rows(given: Values) -> list[tuple[str, str]]:
    return [row for name in NAMES for row in _rows_of(name, model_of(given[name]))]


def _rows_of(name: str, model: Model) -> list[tuple[str, str]]:
    def spaced(number: int) -> str:
        return f"{number:,}".replace(",", " ")

    return [
        (
            f"{name}: the model",
            f"{model.layers} layers of hidden size {model.hidden}, {model.heads} heads: "
            f"{spaced(model.parameters)} parameters. It demands {_DEMANDS[model.demand]}",
        ),
        (
            f"{name}: a step",
            f"{model.batch} sequences of {model.sequence} tokens, in microbatches of "
            f"{model.microbatch}",
        ),
        (
            f"{name}: the cluster",
            f"{model.nodes} nodes of {model.gpus_per_node} cards, at least {model.least_ranks} "
            f"ranks; {spaced(model.card)} bytes each, {spaced(model.reserve)} of them reserved",
        ),
    ]


PLANS: Final = Questions(
    _draw,
    _rows,
    tuple(_Asked(name, 4, f"the plan for model {name}", PlanOf(name)) for name in NAMES),
)

PART = Part("05/plans", 3, "Three plans", 35, 3, PLANS)
