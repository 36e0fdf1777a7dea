"""05/plans: stage, ranks, precision and recomputation for three models.

The models are drawn from the learner's id, and plans are judged by arithmetic alone: all that are
allowed are gone through. A plan earns a point for each of four steps,
legal, fits, sends least, computes least, as far as it comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from random import Random
from typing import Any, Final, NamedTuple

from dtlab.grading.checking.checks import Verdict, lost, ok
from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Mistake, Question, Questions, Values
from dtlab.grading.questions.quantities import plain, short, whole
from dtlab.grading.questions.shapes import kind_in_words
from dtlab.grading.report import Criterion
from dtlab.grading.words import count_ranks
from dtlab.predict.activations import Recompute, activation_bytes
from dtlab.predict.communication import zero_traffic
from dtlab.predict.memory import POLICIES, model_states

__all__ = [
    "LEFT_OUT",
    "PART",
    "PLANS",
    "Model",
    "Plan",
    "Row",
    "draw_models",
    "model_of",
    "steps_of",
]

# The rules as arithmetic: what a plan needs, what it sends, which plans are allowed -------------
#
#     bytes on a rank = model states + whole blocks + activations + reserve   <= those of the card
#     blocks            stage 2: gradients of one, until they are reduced
#                       stage 3: the same, and weights of two: one computes, one is prefetched
#     activations       of all layers as they are kept, of one as if nothing were recomputed
#
# A model has layers of 12h^2 + 13h parameters, a block each; embeddings are left out.

RECOMPUTE: Final[tuple[Recompute, ...]] = (
    "none",
    "selective",
    "full",
)  # by how much is computed twice
DEMANDS: Final = {
    "master": ("mixed", "mixed_fp32_grads", "fp32"),
    "gradients": ("mixed_fp32_grads", "fp32"),
}
"""Policies that have the weights in fp32 too, and those that have the gradients so as well."""


class Plan(NamedTuple):
    """How a model is trained: ZeRO's stage, ranks, the precision policy, what is recomputed."""

    stage: int
    ranks: int
    policy: str
    recompute: str


class Row(NamedTuple):
    """A plan that is allowed: bytes that a rank sends in a step, and that it needs, by kind."""

    plan: Plan
    sent: float
    needs: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes on a rank."""
        return sum(self.needs.values())

    @property
    def twice(self) -> int:
        """How much is computed twice: 0 is nothing."""
        return RECOMPUTE.index(self.plan.recompute)


@dataclass(frozen=True)
class Model:
    """A transformer, the step that is asked for, and the cluster; sizes in bytes."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    microbatch: int
    batch: int  # sequences in a step, over all ranks and microbatches
    nodes: int
    gpus_per_node: int
    least_ranks: int
    card: int
    reserve: int
    demand: str

    @property
    def block(self) -> int:
        """Parameters of a layer."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of all layers."""
        return self.layers * self.block

    @property
    def given(self) -> dict[str, Any]:
        """As the learner gets it."""
        return {"parameters": self.parameters, "block": self.block} | asdict(self)

    def ranks(self) -> list[int]:
        """The numbers of ranks that are allowed."""
        shares = self.batch // self.microbatch
        every = range(self.least_ranks, self.nodes * self.gpus_per_node + 1)
        divisors = (ranks for ranks in every if shares % ranks == 0)
        return [ranks for ranks in divisors if not self.objection_to_ranks(ranks)]

    def objection_to_ranks(self, ranks: int) -> str:
        """Why a number of ranks is not allowed; empty if it is."""
        node, most = self.gpus_per_node, self.nodes * self.gpus_per_node
        if not self.least_ranks <= ranks <= most:
            return f"{count_ranks(ranks)}, where {self.least_ranks} to {most} are allowed"
        if ranks % node:
            return f"{count_ranks(ranks)} would not fill whole nodes of {node}"
        if self.batch % (ranks * self.microbatch):
            return (
                f"{ranks} ranks with microbatches of {self.microbatch} do not divide a batch of "
                f"{self.batch}"
            )
        return ""

    def objection(self, plan: Plan) -> str:
        """Why a plan is not allowed; empty if it is."""
        if plan.stage not in range(4):
            return f"there is no stage {plan.stage}, only 0 to 3"
        if plan.policy not in DEMANDS[self.demand]:
            return f"policy {plan.policy!r} has not what the model demands"
        return self.objection_to_ranks(plan.ranks)

    def row(self, plan: Plan) -> Row:
        """What an allowed plan sends and needs."""
        return next(row for row in self.alike(plan) if row.plan == plan)

    def alike(self, plan: Plan) -> Iterator[Row]:
        """The same for plans that differ from it in what they recompute."""
        policy = POLICIES[plan.policy]
        count = self.batch // (plan.ranks * self.microbatch)
        traffic = zero_traffic(self.parameters, plan.stage, plan.ranks, count)
        sent = traffic.nbytes(policy.weights, policy.gradients)
        states = model_states(self.parameters, plan.stage, plan.ranks, policy)
        whole = policy.gradients * (plan.stage >= 2) + 2 * policy.weights * (plan.stage == 3)
        for recompute, activations in self.activations.items():
            needs = {
                "states": math.ceil(states.total),
                "blocks": math.ceil(whole * self.block),
                "activations": activations,
                "reserve": self.reserve,
            }
            yield Row(plan._replace(recompute=recompute), sent, needs)

    @cached_property
    def activations(self) -> dict[str, int]:
        """Bytes while backward is at the last layer, which is there in full."""
        one = {
            how: activation_bytes(
                self.sequence, self.microbatch, self.hidden, self.heads,
                recompute=how, dropout=False,
            )
            for how in RECOMPUTE
        }  # fmt: skip
        return {how: (self.layers - 1) * kept + one["none"] for how, kept in one.items()}

    @cached_property
    def _sorted(self) -> list[Row]:
        plans = (
            Plan(stage, ranks, policy, RECOMPUTE[0])
            for stage in range(4)
            for ranks in self.ranks()
            for policy in DEMANDS[self.demand]
        )
        rows = (row for plan in plans for row in self.alike(plan))
        return sorted(rows, key=lambda row: (row.sent, row.twice))

    def rows(self) -> list[Row]:
        """All allowed plans, those that send least first, and of these what computes least."""
        return self._sorted

    def best(self) -> Row | None:
        """The first of them that fits; None where none does."""
        return next((row for row in self.rows() if row.total <= self.card), None)


def model_of(given: Mapping[str, Any]) -> Model:
    """The model of what a learner got."""
    return Model(**{field.name: given[field.name] for field in fields(Model)})


# The models of 05/plans, drawn so that each teaches something, and no rule of thumb finds all ----
#
#     small     gradients in fp32: stage 1 sends less than stage 0, which fits as well
#     middle    stage 2 fits if layers are computed twice; stage 3 would fit with less of that
#     large     stage 3 alone fits, and sends least on all ranks
#
# In each of them a plan that would be better misses its card by little: the reserve is drawn last.
# Who leaves a kind of bytes out takes one that does not fit, in one of the three at least.

_Sizes = Mapping[str, Sequence[Any]]

NAMES: Final = ("a", "b", "c")
LEFT_OUT: Final = ("blocks", "activations", "reserve")
_STEP, _LEAST, _MOST = 10**8, 10, 100  # bytes of a reserve: a tenth of a GB, 1 to 10 GB
_SMALL: Final[_Sizes] = {
    "hidden": (2048, 2304, 2560), "layers": (24, 28, 32, 36, 40), "sequence": (2048, 4096),
    "microbatch": (1, 2, 4), "nodes": (2, 4, 8), "gpus_per_node": (4, 8), "least_nodes": (1, 2),
    "micro_batches": (1, 2, 4), "card": (40, 48, 80), "demand": ("gradients",),
}  # fmt: skip
_MIDDLE: Final[_Sizes] = {
    "hidden": (5632, 6144, 6656, 7168), "layers": (40, 44, 48, 52, 56), "sequence": (2048,),
    "microbatch": (1, 2), "nodes": (4, 8), "gpus_per_node": (8,), "least_nodes": (1, 2),
    "micro_batches": (1, 2), "card": (80, 141), "demand": ("master",),
}  # fmt: skip
_LARGE: Final[_Sizes] = {
    "hidden": (8192, 9216, 10240, 12288), "layers": (60, 64, 72, 80), "sequence": (2048,),
    "microbatch": (1,), "nodes": (8, 16, 32), "gpus_per_node": (8,), "least_nodes": (4, 8),
    "micro_batches": (1, 2), "card": (80, 141), "demand": ("master",),
}  # fmt: skip


def draw_models(draw: Random) -> dict[str, Model]:
    """Three models, by name."""
    while True:
        models = [_drawn(draw, *story) for story in _STORIES]
        draw.shuffle(models)
        again = {best.twice for model in models if (best := model.best())}
        pieces = all(any(_misleads(model, piece) for model in models) for piece in LEFT_OUT)
        if pieces and len(again) > 1:
            return dict(zip(NAMES, models, strict=True))


def _drawn(draw: Random, sizes: _Sizes, teaches: Callable[[Sequence[Row], Row], bool]) -> Model:
    """A model of that kind, with a reserve that a better plan just does not leave."""
    while True:
        bare = _model({name: draw.choice(choices) for name, choices in sizes.items()})
        found = []
        for reserve in dict.fromkeys(_reserves(bare)):
            fitting = [row for row in bare.rows() if row.total <= bare.card - reserve]
            if fitting and teaches(fitting, fitting[0]):
                found.append(reserve)
        if found:
            return replace(bare, reserve=draw.choice(found))


def _reserves(bare: Model) -> Iterator[int]:
    """The least reserves with which a plan of less bytes than all before it misses the card."""
    least = math.inf
    for row in bare.rows():
        if row.total < least:
            least = row.total
            reserve = (bare.card - row.total) // _STEP + 1
            if _LEAST <= reserve <= _MOST:
                yield reserve * _STEP


def _model(size: dict[str, Any]) -> Model:
    """One of these sizes, with nothing reserved."""
    node = size["gpus_per_node"]
    return Model(
        layers=size["layers"],
        hidden=size["hidden"],
        heads=size["hidden"] // 128,
        sequence=size["sequence"],
        microbatch=size["microbatch"],
        batch=size["nodes"] * node * size["microbatch"] * size["micro_batches"],
        nodes=size["nodes"],
        gpus_per_node=node,
        least_ranks=size["least_nodes"] * node,
        card=size["card"] * 10**9,
        reserve=0,
        demand=size["demand"],
    )


# What a model teaches ---------------------------------------------------------------------------


def _small(fitting: Sequence[Row], best: Row) -> bool:
    return best.plan.stage == 1 and any(row.plan.stage == 0 for row in fitting)


def _middle(fitting: Sequence[Row], best: Row) -> bool:
    """Of what sends more, something computes less twice."""
    return best.plan.stage == 2 and any(
        row.plan.stage == 3 and row.twice < best.twice for row in fitting
    )


def _large(fitting: Sequence[Row], best: Row) -> bool:
    return best.plan.stage == 3 and best.twice > 0


_STORIES = ((_SMALL, _small), (_MIDDLE, _middle), (_LARGE, _large))


def _misleads(model: Model, piece: str) -> bool:
    """Whether a search that leaves this piece out finds what does not fit."""
    found = next(row for row in model.rows() if row.total - row.needs[piece] <= model.card)
    return found.total > model.card


# The part ----------------------------------------------------------------------------------------

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
