"""The models of 06/shard_plan as numbers: which plans are allowed, and what each of them takes.

A plan says for each layer how ranks share its weight:

    "replicated"       whole on every rank          whole in ──► whole out
    "column"           some outputs on each rank    whole in ──► a part out
    "column+gather"    the same, gathered           whole in ──► whole out    1 all-gather
    "row"              some inputs on each rank     either   ──► whole out    1 all-reduce
    "vocabulary"       some rows of the table       ids      ──► whole out    1 all-reduce

`plans_engine` builds and runs it; `tests/test_unit06_plans.py` compares. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from dtlab.predict.communication import bus_factor

__all__ = ["KINDS", "PAIRS", "TABLE_KINDS", "Block", "Cost", "Model", "Plan", "model_of"]

Plan = Mapping[str, str]
KINDS = ("replicated", "column", "column+gather", "row")
TABLE_KINDS = ("replicated", "vocabulary")
PAIRS = (("qkv", "projection"), ("wide", "narrow"))
_BYTES = 4
_TIED = {  # what both ends are where they are one weight
    ("replicated", "replicated"),
    ("vocabulary", "column"),
    ("vocabulary", "column+gather"),
}


class Block(NamedTuple):
    """What blocks of a model differ in: heads of keys and values, features of the MLP."""

    kv_heads: int
    inner: int


class Cost(NamedTuple):
    """Bytes of weights on a rank; calls forward, backward; bytes that a rank sends in a step."""

    weights: float
    forward: int
    backward: int
    sent: float

    def __add__(self, other: Any) -> Cost:
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def within(self, other: Cost) -> bool:
        """Whether nothing is more than there."""
        return all(a <= b for a, b in zip(self, other, strict=True))


_NOTHING = Cost(0, 0, 0, 0)


@dataclass(frozen=True)
class Model:
    """A small GPT whose blocks may differ, the ranks that are to share it, and their budget."""

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
        """As a learner gets it."""
        own = {name: getattr(self, name) for name in ("ranks", "tied", "vocabulary", "hidden",
                                                      "heads", "tokens")}  # fmt: skip
        blocks = [one._asdict() for one in self.blocks]
        return {**own, "blocks": blocks, "budget": self.budget._asdict()}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each layer, in their order; of the table its rows and columns."""
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

    # ------------------------------------------------------------------ what is allowed

    def objection(self, plan: Plan) -> str:
        """Why a plan of known words cannot be carried out; empty if it can."""
        for number, block in enumerate(self.blocks):
            for first, second in PAIRS:
                kinds = plan[f"{number}.{first}"], plan[f"{number}.{second}"]
                wrong = self._misfit(block, first, kinds)
                if wrong:
                    return f"block {number}, {first} and {second}: {wrong}"
        if self.tied and (plan["embedding"], plan["head"]) not in _TIED:
            return (
                "the table and the head are one weight here, [vocabulary, hidden]: cut it the "
                "same way for both, or leave it whole for both"
            )
        return ""

    def _misfit(self, block: Block, first: str, kinds: tuple[str, str]) -> str:
        if kinds[1] == "column":
            return "what is added to the residual stream has to be whole on every rank"
        if kinds[0] != "column":
            return ""
        if kinds[1] != "row":
            return f"each rank has a part of the features by then, and {kinds[1]} takes all"
        if first == "qkv" and (self.heads % self.ranks or block.kv_heads % self.ranks):
            return (
                f"{self.heads} heads of queries and {block.kv_heads} of keys cannot be dealt out "
                f"to {self.ranks} ranks in whole heads"
            )
        return ""

    # ------------------------------------------------------------------ what it takes

    def cost(self, plan: Plan) -> Cost:
        """Of an allowed plan."""
        total = self.norms + self.ends(plan["embedding"], plan["head"])
        for number in range(len(self.blocks)):
            for pair in PAIRS:
                first, second = (f"{number}.{name}" for name in pair)
                total += self.pair(first, second, plan[first], plan[second])
        return total

    @property
    def norms(self) -> Cost:
        """Two for each block, and the last one."""
        return Cost(_BYTES * 2 * self.hidden * (2 * len(self.blocks) + 1), 0, 0, 0)

    def pair(self, first: str, second: str, one: str, other: str) -> Cost:
        """Of two layers with nothing but heads or GELU between them."""
        return self._linear(first, one, False) + self._linear(second, other, one == "column")

    def ends(self, embedding: str, head: str) -> Cost:
        """Of the table, the head, and the loss."""
        cost = self._linear("head", head, False, bias=0)
        rows = -(-self.vocabulary // self.ranks) if embedding == "vocabulary" else self.vocabulary
        if embedding == "vocabulary":
            cost += self._call("all_reduce", self.tokens * self.hidden, forward=True)
        if head == "column":  # the largest logit and sizes; then the sum and the target's
            cost += self._call("all_reduce", self.tokens + self.ranks, forward=True)
            cost += self._call("all_reduce", 2 * self.tokens, forward=True)
        return cost + Cost(0 if self.tied else _BYTES * rows * self.hidden, 0, 0, 0)

    def _linear(self, name: str, kind: str, part_comes: bool, bias: int = 1) -> Cost:
        inputs, outputs = self.shapes[name]
        share_of = {"row": inputs, "replicated": 0}.get(kind, outputs)
        share = -(-share_of // self.ranks)
        if kind == "replicated":
            return Cost(_BYTES * outputs * (inputs + bias), 0, 0, 0)
        if kind == "row":
            cost = Cost(_BYTES * outputs * (share + bias), 0, 0, 0)
            cost += self._call("all_reduce", self.tokens * outputs, forward=True)
            if part_comes:
                return cost
            return cost + self._call("all_gather", self.tokens * share * self.ranks, forward=False)
        cost = Cost(_BYTES * share * (inputs + bias), 0, 0, 0)
        cost += self._call("all_reduce", self.tokens * inputs, forward=False)
        if kind == "column+gather":
            cost += self._call("all_gather", self.tokens * share * self.ranks, forward=True)
        return cost

    def _call(self, name: str, elements: int, forward: bool) -> Cost:
        sent = bus_factor(name, self.ranks) * _BYTES * elements
        return Cost(0, int(forward), int(not forward), sent)

    # ------------------------------------------------------------------ all plans

    def allowed_pairs(self, number: int, pair: tuple[str, str]) -> Iterator[tuple[Cost, Plan]]:
        """Each way to share two layers of a block, and what it takes."""
        first, second = (f"{number}.{name}" for name in pair)
        for kinds in product(KINDS, KINDS):
            if not self._misfit(self.blocks[number], pair[0], kinds):
                yield self.pair(first, second, *kinds), {first: kinds[0], second: kinds[1]}

    def allowed_ends(self) -> Iterator[tuple[Cost, Plan]]:
        """Each way to share the table and the head."""
        for kinds in product(TABLE_KINDS, KINDS):
            if not self.tied or kinds in _TIED:
                yield self.ends(*kinds), {"embedding": kinds[0], "head": kinds[1]}


def model_of(given: Mapping[str, Any]) -> Model:
    """The model that a learner was given."""
    names = ("ranks", "tied", "vocabulary", "hidden", "heads", "tokens")
    blocks = tuple(Block(**one) for one in given["blocks"])
    own = {name: given[name] for name in names}
    return Model(**own, blocks=blocks, budget=Cost(**given["budget"]))
