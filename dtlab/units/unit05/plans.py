"""05/plans: choose ZeRO stage, ranks, precision and recomputation for three models.

The models are drawn from the learner's id. A plan is judged by arithmetic: it is compared with all
allowed plans. A plan earns a point for each of four steps, in order, until the first that fails:
it is allowed, it fits, no plan that fits sends less, and none of the plans that send as little
recomputes less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import product, starmap
from math import ceil, inf
from random import Random
from typing import Any, Final, NamedTuple, get_args

from dtlab.checks.functions.checks import Verdict, lost, ok
from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Mistake, Question, Questions, Values
from dtlab.checks.questions.quantities import plain, short, whole
from dtlab.checks.questions.shapes import kind_in_words
from dtlab.checks.report import Criterion
from dtlab.checks.words import count_ranks
from dtlab.predict.communication import zero_traffic
from dtlab.predict.memory import POLICIES, model_states
from dtlab.predict.transformer import Recompute, activation_bytes

# The rules as arithmetic: bytes that a plan needs and sends, and which plans are allowed ---------
#
#     bytes on a rank = model states + whole blocks + activations + reserve   <= bytes of a GPU
#     blocks            stage 2: gradients of one block, until they are reduced
#                       stage 3: the same, and weights of two: one computes, one is prefetched
#     activations       saved by all layers but one; for one layer, without recomputation
#
# Each layer of a model is a block of 12h^2 + 13h parameters; embeddings are left out.

RECOMPUTE: Final[tuple[Recompute, ...]] = get_args(Recompute)  # in order of recomputed work
DEMANDS: Final = {  # policies with fp32 weights; policies with fp32 weights and gradients
    "master": ("mixed", "mixed_fp32_grads", "fp32"),
    "gradients": ("mixed_fp32_grads", "fp32"),
}


class Plan(NamedTuple):
    """How a model is trained: ZeRO stage, ranks, precision policy, and recomputation."""

    stage: int
    ranks: int
    policy: str
    recompute: Recompute


class Row(NamedTuple):
    """An allowed plan, the bytes that a rank sends in a step, and the bytes it needs, by kind."""

    plan: Plan
    sent: float
    needs: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes that a rank needs."""
        return sum(self.needs.values())

    @property
    def recomputation(self) -> int:
        """The amount of recomputation, as an index of `RECOMPUTE`: 0 is none."""
        return RECOMPUTE.index(self.plan.recompute)


@dataclass(frozen=True)
class Model:
    """A transformer, its training step, and the cluster; `card` and `reserve` are in bytes."""

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
        """The values that the learner gets."""
        return {"parameters": self.parameters, "block": self.block} | asdict(self)

    def objection(self, plan: Plan) -> str:
        """Why a plan is not allowed; empty if it is allowed."""
        ranks, node, most = plan.ranks, self.gpus_per_node, self.nodes * self.gpus_per_node
        if plan.stage not in range(4):
            return f"there is no stage {plan.stage}, only 0 to 3"
        if plan.policy not in DEMANDS[self.demand]:
            return f"policy {plan.policy!r} does not keep in fp32 what the model demands"
        if not self.least_ranks <= ranks <= most:
            return f"{count_ranks(ranks)}, but {self.least_ranks} to {most} are allowed"
        if ranks % node:
            return f"{count_ranks(ranks)} would not fill whole nodes of {node}"
        if self.batch % (ranks * self.microbatch):
            microbatches = f"{ranks} ranks with microbatches of {self.microbatch}"
            return f"{microbatches} do not divide a batch of {self.batch}"
        return ""

    def ranks(self) -> list[int]:
        """The allowed numbers of ranks."""
        policy, node = DEMANDS[self.demand][0], self.gpus_per_node
        every = range(node, self.nodes * node + 1, node)
        return [ranks for ranks in every if not self.objection(Plan(0, ranks, policy, "none"))]

    def row(self, plan: Plan) -> Row:
        """The bytes that an allowed plan sends and needs."""
        stage, ranks, policy = plan.stage, plan.ranks, POLICIES[plan.policy]
        count = self.batch // (ranks * self.microbatch)
        traffic = zero_traffic(self.parameters, stage, ranks, count)
        whole = policy.gradients * (stage >= 2) + 2 * policy.weights * (stage == 3)
        needs = {
            "states": ceil(model_states(self.parameters, stage, ranks, policy).total),
            "blocks": ceil(whole * self.block),
            "activations": (self.layers - 1) * self._kept(plan.recompute) + self._kept("none"),
            "reserve": self.reserve,
        }
        return Row(plan, traffic.nbytes(policy.weights, policy.gradients), needs)

    def _kept(self, recompute: Recompute) -> int:
        """Bytes of one layer's saved activations."""
        sizes = self.sequence, self.microbatch, self.hidden, self.heads
        return activation_bytes(*sizes, recompute=recompute, dropout=False)

    @cached_property
    def _sorted(self) -> list[Row]:
        plans = product(range(4), self.ranks(), DEMANDS[self.demand], RECOMPUTE)
        rows = (self.row(Plan(*plan)) for plan in plans)
        return sorted(rows, key=lambda row: (row.sent, row.recomputation))

    def rows(self) -> list[Row]:
        """All allowed plans, sorted by bytes sent, then by the amount of recomputation."""
        return self._sorted

    def best(self) -> Row | None:
        """The first of `rows` that fits; None if none fits."""
        return next((row for row in self.rows() if row.total <= self.card), None)


def model_of(given: Mapping[str, Any]) -> Model:
    """The model with the values that a learner got."""
    return Model(**{field.name: given[field.name] for field in fields(Model)})


# The models, drawn so that no single rule of thumb finds all three plans ------------------------
#
#     small     gradients in fp32: stage 1 sends less than stage 0, which fits as well
#     middle    stage 2 fits only with recomputation; stage 3 would fit with less recomputation
#     large     only stage 3 fits, and it sends least on the largest number of ranks
#
# In each model a better plan exceeds the GPU's memory by little, since the reserve is drawn last.
# A search that leaves out a kind of bytes finds a plan that does not fit in at least one model.

NAMES: Final = ("a", "b", "c")
LEFT_OUT: Final = {  # kinds of bytes that a search may leave out
    "reserve": "the reserve",
    "blocks": "the blocks that are temporarily whole",
    "activations": "activations",
}
_STEP, _LEAST, _MOST = 10**8, 10, 100  # a reserve is 10 to 100 steps of 0.1 GB, in bytes
_SIZES: Final[dict[str, tuple[Sequence[Any], ...]]] = {  # for a small, a middle, a large model
    "hidden": ((2048, 2304, 2560), (5632, 6144, 6656, 7168), (8192, 9216, 10240, 12288)),
    "layers": ((24, 28, 32, 36, 40), (40, 44, 48, 52, 56), (60, 64, 72, 80)),
    "sequence": ((2048, 4096), (2048,), (2048,)),
    "microbatch": ((1, 2, 4), (1, 2), (1,)),
    "nodes": ((2, 4, 8), (4, 8), (8, 16, 32)),
    "gpus_per_node": ((4, 8), (8,), (8,)),
    "least_nodes": ((1, 2), (1, 2), (4, 8)),
    "micro_batches": ((1, 2, 4), (1, 2), (1, 2)),
    "card": ((40, 48, 80), (80, 141), (80, 141)),
    "demand": (("gradients",), ("master",), ("master",)),
}


def draw_models(draw: Random) -> dict[str, Model]:
    """Three models, by name."""
    while True:
        models = [_drawn(draw, stage) for stage in (1, 2, 3)]
        draw.shuffle(models)
        amounts = {best.recomputation for model in models if (best := model.best())}
        pieces = all(any(_misleads(model, piece) for model in models) for piece in LEFT_OUT)
        if pieces and len(amounts) > 1:
            return dict(zip(NAMES, models, strict=True))


def _misleads(model: Model, piece: str) -> bool:
    """Whether a search that leaves out this kind of bytes finds a plan that does not fit."""
    first = next(row for row in model.rows() if row.total - row.needs[piece] <= model.card)
    return first.total > model.card


def _drawn(draw: Random, stage: int) -> Model:
    """A model for which this stage is best, with a reserve that makes a better plan fail."""
    while True:
        bare = _bare({name: draw.choice(of[stage - 1]) for name, of in _SIZES.items()})
        reserves = [r for r in dict.fromkeys(_reserves(bare)) if _teaches(stage, bare, r)]
        if reserves:
            return replace(bare, reserve=draw.choice(reserves))


def _bare(size: dict[str, Any]) -> Model:
    """A model of this size without a reserve."""
    card, least, count = (size.pop(name) for name in ("card", "least_nodes", "micro_batches"))
    node, heads = size["gpus_per_node"], size["hidden"] // 128
    batch = size["nodes"] * node * size["microbatch"] * count
    return Model(
        **size, heads=heads, batch=batch, least_ranks=least * node, card=card * 10**9, reserve=0
    )


def _reserves(bare: Model) -> Iterator[int]:
    """The least reserve that excludes each plan that needs fewer bytes than all before it."""
    least = inf
    for row in bare.rows():
        if row.total < least:
            least = row.total
            reserve = (bare.card - row.total) // _STEP + 1
            if _LEAST <= reserve <= _MOST:
                yield reserve * _STEP


def _teaches(stage: int, bare: Model, reserve: int) -> bool:
    """Whether the best plan that fits has this stage, and a rule of thumb does not find it."""
    fitting = [row for row in bare.rows() if row.total <= bare.card - reserve]
    if not fitting or fitting[0].plan.stage != stage:
        return False
    least = fitting[0].recomputation
    if stage == 1:
        return any(row.plan.stage == 0 for row in fitting)
    if stage == 2:
        return any(row.plan.stage == 3 and row.recomputation < least for row in fitting)
    return least > 0


# Judging of a plan ------------------------------------------------------------------------------

_FORM = '{"stage": ..., "ranks": ..., "policy": ..., "recompute": ...}'
_SENDS_MORE = {
    "stage": "Is there another stage that fits and sends less?",
    "ranks": "The stage is right. With which number of ranks does it send least, and why?",
    "policy": "Stage and ranks are right. How many bytes of weights and of gradients does each "
    "policy send?",
}
_LARGEST = {
    "states": "the model states: which of weights, gradients and optimizer state does this stage "
    "leave whole on every rank?",
    "activations": "activations: how can you save fewer of them, and what does that cost?",
}


def steps_of(model: Model, answer: Any) -> list[Verdict]:
    """Verdicts on allowed, fits, sends least and computes least, up to the first loss."""
    plan = _read(answer)
    wrong = plan if isinstance(plan, str) else model.objection(plan)
    if isinstance(plan, str) or wrong:
        return [lost(f"{wrong}.")]
    row, best = model.row(plan), model.best()
    if row.total > model.card or best is None:
        return [ok("allowed"), lost(_over(model, row))]
    steps = [ok("allowed"), ok(f"{model.card - row.total:,} bytes left")]
    if row.sent > best.sent:
        return [*steps, lost(_more(model, row, best))]
    steps.append(ok("no plan that fits sends less"))
    if row.recomputation > best.recomputation:
        message = f"another plan that sends as little recomputes less than {plan.recompute!r}."
        return [*steps, lost(message)]
    return [*steps, ok("no such plan recomputes less")]


def _read(answer: Any) -> Plan | str:
    """The plan, or a message on how it must be written."""
    if not isinstance(answer, Mapping):
        return f"is {kind_in_words(answer)}: write {_FORM}"
    missing = [name for name in Plan._fields if answer.get(name) is None]
    if missing:
        return f"has no {', '.join(map(repr, missing))}: write {_FORM}"
    stage, ranks = whole(answer["stage"]), whole(answer["ranks"])
    if stage is None or ranks is None:
        name = "stage" if stage is None else "ranks"
        return f"has {short(answer[name])} for {name!r}: write a whole number"
    words = [str(plain(answer[name])).strip().casefold() for name in ("policy", "recompute")]
    for word, known in zip(words, (tuple(POLICIES), RECOMPUTE), strict=True):
        if word not in known:
            return f"has {short(word)}: write one of {', '.join(map(repr, known))}"
    return Plan(stage, ranks, words[0], RECOMPUTE[RECOMPUTE.index(words[1])])


def _over(model: Model, row: Row) -> str:
    over = row.total - model.card
    count = "1 byte" if over == 1 else f"{over:,} bytes"
    missed = [words for name, words in LEFT_OUT.items() if over <= row.needs[name]]
    why = f"It would fit without {' or '.join(missed)}: have you counted all bytes?"
    if not missed:
        why = f"The largest part is {_LARGEST[max(_LARGEST, key=lambda name: row.needs[name])]}"
    return f"it takes {count} more than the GPU's {model.card:,}. {why}"


def _more(model: Model, row: Row, best: Row) -> str:
    same = {other.plan for other in model.rows() if other.sent == best.sent}
    agrees = sum(any(row.plan[:n] == plan[:n] for plan in same) for n in (1, 2))
    sent, more = f"{row.sent / 1e9:,.2f} GB", f"{(row.sent - best.sent) / 1e9:,.2f} GB"
    return (
        f"each rank sends {sent} in a step, {more} more than in the best plan that fits. "
        f"{_SENDS_MORE[Plan._fields[agrees]]}"
    )


@dataclass(frozen=True)
class PlanOf:
    """A kind of answer (see `checks.questions.kinds`): a plan for the model named `model`."""

    model: str
    mistakes = tuple(starmap(Mistake, (LEFT_OUT | _SENDS_MORE).items()))

    def form(self) -> str:
        return _FORM

    def expected(self, given: Values) -> dict[str, Any]:
        """One of the best plans."""
        best = model_of(given[self.model]).best()
        return best.plan._asdict() if best else {}

    def judge(self, answer: Any, given: Values) -> Verdict:
        steps = steps_of(model_of(given[self.model]), answer)
        return steps[-1]._replace(message="; ".join(step.message for step in steps))

    def distinct(self, given: Values) -> bool:
        return True


class _Asked(Question):
    """A question for the plan of the model `name`, with a point for each step."""

    def settle(self, answer: Any, given: Values) -> Criterion:
        criterion = super().settle(answer, given)
        if criterion.status == "open":
            return criterion
        steps = steps_of(model_of(given[self.name]), answer)
        return replace(criterion, earned=[step.status for step in steps].count("ok"))


# The part ---------------------------------------------------------------------------------------

_DEMANDS = {
    "master": "the weights in fp32 too",
    "gradients": "the weights in fp32 too, and gradients that are added up in fp32",
}


@lru_cache(maxsize=64)
def _models(seed: int) -> Values:
    return {name: model.given for name, model in draw_models(Random(seed)).items()}


def _rows(given: Values) -> Iterator[tuple[str, str]]:
    for name in NAMES:
        model = model_of(given[name])
        sizes = (model.parameters, model.card, model.reserve)
        parameters, card, reserve = (f"{size:,}".replace(",", " ") for size in sizes)
        yield (
            f"{name}: the model",
            f"{model.layers} layers of hidden size {model.hidden}, {model.heads} heads: "
            f"{parameters} parameters. It demands {_DEMANDS[model.demand]}",
        )
        yield (
            f"{name}: a step",
            f"{model.batch} sequences of {model.sequence} tokens, in microbatches of "
            f"{model.microbatch}",
        )
        yield (
            f"{name}: the cluster",
            f"{model.nodes} nodes of {model.gpus_per_node} GPUs, at least {model.least_ranks} "
            f"ranks; {card} bytes per GPU, {reserve} of them reserved",
        )


PLANS: Final = Questions(
    lambda draw: _models(draw.getrandbits(32)),
    lambda given: [*_rows(given)],
    tuple(_Asked(name, 4, f"the plan for model {name}", PlanOf(name)) for name in NAMES),
)

PART = Part("05/plans", 3, "Three plans", 35, 3, PLANS)
