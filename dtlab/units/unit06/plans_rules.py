"""Rules and costs of the plans of 06/shard_plan: which plans are allowed, and what each costs.

A plan says for each layer how the ranks share its weight:

    "replicated"       whole on every rank          whole in ──► whole out
    "column"           some outputs on each rank    whole in ──► a part out
    "column+gather"    the same, gathered           whole in ──► whole out    1 all-gather
    "row"              some inputs on each rank     either   ──► whole out    1 all-reduce
    "vocabulary"       some rows of the table       ids      ──► whole out    1 all-reduce

`on_ranks` builds and runs plans; `tests/test_unit06_plans.py` compares both. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np

from dtlab.predict.communication import bus_factor

__all__ = ["KINDS", "NAMES", "TABLE_KINDS", "Block", "Cost", "Model", "Plan",
           "attention_left_whole", "draw_models", "fitting", "megatron", "model_of"]  # fmt: skip

Plan = Mapping[str, str]
Kinds = tuple[str, str]
KINDS = ("replicated", "column", "column+gather", "row")
TABLE_KINDS = ("replicated", "vocabulary")
_BYTES = 4
_TIED = {  # kinds of embedding and head that are allowed if both are one weight
    ("replicated", "replicated"),
    ("vocabulary", "column"),
    ("vocabulary", "column+gather"),
}
_ONE_WEIGHT = (
    "both are one weight here, [vocabulary, hidden]: cut it the same way for both, or keep it "
    "whole for both"
)


class Block(NamedTuple):
    """A block of a model: its heads of keys and values, and the inner features of its MLP."""

    kv_heads: int
    inner: int


class Cost(NamedTuple):
    """The cost of a plan on one rank.

    `weights` are bytes, `forward` and `backward` numbers of communication calls in a step, and
    `sent` the bytes that the rank sends in it.
    """

    weights: float
    forward: int = 0
    backward: int = 0
    sent: float = 0

    def __add__(self, other: Any) -> Cost:
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def within(self, other: Cost) -> bool:
        """Whether no entry exceeds that of `other`."""
        return all(a <= b for a, b in zip(self, other, strict=True))


_NOTHING = Cost(0)


@dataclass(frozen=True)
class Model:
    """A small GPT whose blocks may differ, the number of ranks that share it, and its budget."""

    ranks: int
    tied: bool
    vocabulary: int
    hidden: int
    heads: int
    blocks: tuple[Block, ...]
    tokens: int
    budget: Cost = _NOTHING

    @property
    def given(self) -> dict[str, Any]:
        """The values that a learner gets."""
        blocks = [block._asdict() for block in self.blocks]
        return {**asdict(self), "blocks": blocks, "budget": self.budget._asdict()}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each layer, in order; for the embedding its rows and columns."""
        head = self.hidden // self.heads
        shapes = {"embedding": (self.vocabulary, self.hidden)}
        for number, block in enumerate(self.blocks):
            rows = (self.heads + 2 * block.kv_heads) * head
            shapes |= {
                f"{number}.qkv": (self.hidden, rows),
                f"{number}.projection": (self.hidden, self.hidden),
                f"{number}.wide": (self.hidden, block.inner),
                f"{number}.narrow": (block.inner, self.hidden),
            }
        return {**shapes, "head": (self.hidden, self.vocabulary)}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Pairs of layers whose kinds depend on each other: both ends, and two in each block."""
        layers = list(self.shapes)[1:-1]
        return [("embedding", "head"), *zip(layers[::2], layers[1::2], strict=True)]

    def objection(self, plan: Plan) -> str:
        """Why a plan of valid kinds is not allowed; empty if it is allowed."""
        objections = (
            f"{first} and {second}: {wrong}"
            for first, second in self.pairs
            if (wrong := self._misfit(first, (plan[first], plan[second])))
        )
        return next(objections, "")

    def _misfit(self, first: str, kinds: Kinds) -> str:
        """Why the pair of layers that begins with `first` cannot be of these kinds."""
        if first == "embedding":
            fits = not self.tied or kinds in _TIED
            return "" if fits else _ONE_WEIGHT
        if kinds[1] == "column":
            return "a tensor that is added to the residual stream must be whole on every rank"
        if kinds[0] != "column":
            return ""
        if kinds[1] != "row":
            return f"each rank has only a part of the features there, and {kinds[1]} needs all"
        number, name = first.split(".")
        kv_heads = self.blocks[int(number)].kv_heads
        if name == "qkv" and (self.heads % self.ranks or kv_heads % self.ranks):
            return (
                f"{self.heads} heads of queries and {kv_heads} of keys cannot be divided among "
                f"{self.ranks} ranks in whole heads"
            )
        return ""

    def allowed(self, first: str, second: str) -> dict[Kinds, Cost]:
        """The allowed kinds of this pair of layers, each with its cost."""
        options = product(TABLE_KINDS if first == "embedding" else KINDS, KINDS)
        cost = self._ends if first == "embedding" else self._pair
        return {
            kinds: cost(first, second, *kinds)
            for kinds in options
            if not self._misfit(first, kinds)
        }

    @property
    def norms(self) -> Cost:
        """The cost of all norms: two in each block, and the last one."""
        return Cost(_BYTES * 2 * self.hidden * (2 * len(self.blocks) + 1))

    def cost(self, plan: Plan) -> Cost:
        """The cost of an allowed plan."""
        parts = (self.allowed(*pair)[plan[pair[0]], plan[pair[1]]] for pair in self.pairs)
        return sum(parts, self.norms)

    def fits(self, plan: Plan) -> bool:
        """Whether a plan is allowed and within the budget."""
        return not self.objection(plan) and self.cost(plan).within(self.budget)

    def _pair(self, first: str, second: str, kind: str, other: str) -> Cost:
        """The cost of two layers with only heads or GELU between them."""
        return self._linear(first, kind, False) + self._linear(second, other, kind == "column")

    def _ends(self, embedding: str, head: str, kind: str, other: str) -> Cost:
        """The cost of the embedding, the head, and the loss."""
        cost, rows = self._linear(head, other, False, bias=0), self.vocabulary
        if kind == "vocabulary":
            rows = -(-self.vocabulary // self.ranks)
            cost += self._call("all_reduce", self.tokens * self.hidden, forward=True)
        if other == "column":  # the largest logits and sizes; then sums and the targets' logits
            cost += self._call("all_reduce", self.tokens + self.ranks, forward=True)
            cost += self._call("all_reduce", 2 * self.tokens, forward=True)
        return cost + Cost(0 if self.tied else _BYTES * rows * self.hidden)

    def _linear(self, name: str, kind: str, cut_input: bool, bias: int = 1) -> Cost:
        inputs, outputs = self.shapes[name]
        if kind == "replicated":
            return Cost(_BYTES * outputs * (inputs + bias))
        share = -(-(inputs if kind == "row" else outputs) // self.ranks)
        gathered = self.tokens * share * self.ranks
        if kind == "row":
            cost = Cost(_BYTES * outputs * (share + bias))
            cost += self._call("all_reduce", self.tokens * outputs, forward=True)
            return cost if cut_input else cost + self._call("all_gather", gathered, forward=False)
        cost = Cost(_BYTES * share * (inputs + bias))
        cost += self._call("all_reduce", self.tokens * inputs, forward=False)
        return cost + self._call("all_gather", gathered, True) if "gather" in kind else cost

    def _call(self, name: str, elements: int, forward: bool) -> Cost:
        sent = bus_factor(name, self.ranks) * _BYTES * elements
        return Cost(0, int(forward), int(not forward), sent)


def model_of(given: Mapping[str, Any]) -> Model:
    """The model with the values that a learner got."""
    blocks = tuple(Block(**block) for block in given["blocks"])
    return Model(**{**given, "blocks": blocks, "budget": Cost(**given["budget"])})


# The models of 06/shard_plan, each drawn with another kind of budget -----------------------------
#
#     plain    only Megatron's plan fits: no calls are left for an all-gather
#     heads    the heads of one block cannot be divided: its attention needs an extra call
#     tight    two calls too few for Megatron's plan: the layers left whole must be the smallest
#
# Calls are limited first. The limit on weights is that of the best plans within these calls, and
# the limit on bytes that of the plans among these that send least. A plan must meet all three.

NAMES: Final = ("a", "b", "c")
_MOST: Final = 12  # the largest number of plans that fit a model
_ROOM_WEIGHTS, _ROOM_BYTES = 1.01, 1.06  # ratio of the budget to the least possible

_Recipe = Mapping[str, Any]
_PLAIN: Final[_Recipe] = {"ranks": 2, "tied": False, "heads": 4, "kv_heads": (2, 4), "spare": 0}
_HEADS: Final[_Recipe] = {"ranks": 4, "tied": False, "heads": 8, "kv_heads": (2, 8), "spare": 1}
_TIGHT: Final[_Recipe] = {"ranks": 3, "tied": True, "heads": 6, "kv_heads": (3, 6), "spare": -2}


def draw_models(draw: Random) -> dict[str, Model]:
    """Three models, by name."""
    models = [_drawn(draw, recipe) for recipe in (_PLAIN, _HEADS, _TIGHT)]
    draw.shuffle(models)
    return dict(zip(NAMES, models, strict=True))


def _drawn(draw: Random, recipe: _Recipe) -> Model:
    """A model of this kind that few plans fit; the plan with whole attention must not fit."""
    for _ in range(1000):
        model = _limited(_bare(draw, recipe), 7 + recipe["spare"], 5 + recipe["spare"])
        if 1 <= len(fitting(model)) <= _MOST and not model.fits(attention_left_whole(model)):
            return model
    raise AssertionError("no draw has a budget that few plans fit")


def _bare(draw: Random, recipe: _Recipe) -> Model:
    ranks, heads = recipe["ranks"], recipe["heads"]
    hidden = heads * ranks * draw.randint(2, 4 if ranks < 4 else 2)
    kv_heads, inner = list(recipe["kv_heads"]), [hidden * draw.randint(1, 2), hidden * 4]
    draw.shuffle(kv_heads)
    draw.shuffle(inner)
    blocks = tuple(Block(*sizes) for sizes in zip(kv_heads, inner, strict=True))
    vocabulary = draw.randint(6 * hidden, 10 * hidden)
    return Model(ranks, recipe["tied"], vocabulary, hidden, heads, blocks, 4 * draw.randint(3, 6))


def _limited(model: Model, forward: int, backward: int) -> Model:
    """The model with a budget of these calls, and nearly the least weights and bytes for them."""
    costs = _costs(model)
    left = costs[(costs[:, 1] <= forward) & (costs[:, 2] <= backward)]
    weights = math.ceil(left[:, 0].min() * _ROOM_WEIGHTS)
    sent = math.ceil(left[left[:, 0] <= weights][:, 3].min() * _ROOM_BYTES)
    return replace(model, budget=Cost(weights, forward, backward, sent))


def _costs(model: Model) -> Any:
    """The cost of each allowed plan, [plans, 4], in the order of `itertools.product`."""
    total = np.array([model.norms], dtype=float)
    for pair in model.pairs:
        costs = np.array(list(model.allowed(*pair).values()), dtype=float)
        total = (total[:, None] + costs[None]).reshape(-1, 4)
    return total


def fitting(model: Model) -> list[Plan]:
    """All plans within the budget."""
    fits = np.flatnonzero((_costs(model) <= np.array(model.budget)).all(axis=1))
    options = [list(model.allowed(*pair)) for pair in model.pairs]
    places = zip(*np.unravel_index(fits, [len(kinds) for kinds in options]), strict=True)
    return [
        {
            name: kind
            for pair, kinds, place in zip(model.pairs, options, indices, strict=True)
            for name, kind in zip(pair, kinds[int(place)], strict=True)
        }
        for indices in places
    ]


# Rules of thumb, which do not fit all models ----------------------------------------------------


def megatron(model: Model, whole: Sequence[str] = ()) -> Plan:
    """Column and row in every block, and a sharded vocabulary, except for layers in `whole`."""
    kinds = {"qkv": "column", "projection": "row", "wide": "column", "narrow": "row",
             "embedding": "vocabulary", "head": "column"}  # fmt: skip
    return {
        name: "replicated" if name in whole else kinds[name.rpartition(".")[2]]
        for name in model.shapes
    }


def attention_left_whole(model: Model) -> Plan:
    """Megatron's plan, but with the attention of all blocks whole."""
    return megatron(model, [name for name in model.shapes if name.endswith(("qkv", "projection"))])
