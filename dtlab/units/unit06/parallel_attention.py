"""06/parallel_attention (extra): attention in which each rank has some of the heads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.functions.groups import draw_groups, process_group
from dtlab.checks.functions.resident import grown_by
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit06.parallel_mlp import ModuleCase, ResidentShards
from dtlab.units.unit06.passes import Tensors, wrong_calls

if TYPE_CHECKING:
    from torch import Tensor

_BETWEEN = "Heads are independent, so ranks do not communicate before the sum at the end."


@dataclass(frozen=True)
class OfAttention(ModuleCase):
    """A module of `fn(qkv, projection, heads, kv_heads, group)`, with causal attention.

    With the topic "grouped" there are fewer heads of keys and values than of queries.
    """

    layers = ("qkv", "projection")
    dims: ClassVar = {"projection_weight": 1}
    hints = (_BETWEEN, _BETWEEN)

    heads: int = 4
    kv_heads: int = 4
    head_size: int = 3

    @property
    def size(self) -> str:
        sequences, tokens = self.tokens
        heads = f"{counted(self.heads, 'head')} of queries, {self.kv_heads} of keys and values"
        return f"{sequences} x {counted(tokens, 'token')}, {heads}"

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.heads, self.kv_heads)

    @property
    def pieces(self) -> list[int]:
        """Rows of queries, keys and values in the dense weight."""
        return [heads * self.head_size for heads in (self.heads, self.kv_heads, self.kv_heads)]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, rows = self.heads * self.head_size, sum(self.pieces)
        return {
            "x": (*self.tokens, hidden),
            "qkv_weight": (rows, hidden),
            "qkv_bias": (rows,),
            "projection_weight": (hidden, hidden),
            "projection_bias": (hidden,),
        }

    def cut(self, whole: Tensors, place: int, ranks: int) -> Tensors:
        import torch

        local = super().cut(whole, place, ranks)
        for name in (name for name in whole if "qkv" in name):
            parts = torch.split(whole[name], self.pieces)
            local[name] = torch.cat([part.chunk(ranks)[place] for part in parts])
        return local

    def dense(self, tensors: Tensors) -> Tensor:
        import torch
        import torch.nn.functional as F

        x, qkv, qkv_bias, projection, bias = (tensors[name] for name in self.shapes)
        parts = torch.split(F.linear(x, qkv, qkv_bias), self.pieces, -1)
        q, k, v = (p.reshape(*self.tokens, -1, self.head_size).transpose(1, 2) for p in parts)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(y.transpose(1, 2).flatten(2), projection, bias)

    def about(self, name: str) -> str:
        if name == "y" and self.kv_heads < self.heads:
            return (
                "Adjacent heads of queries share a head of keys and values: the picture shows "
                "which queries use keys 0."
            )
        three = (
            "It is three weights in one, [q; k; v]: take the rows of this rank's heads of each."
        )
        return {
            "qkv_weight": three,
            "qkv_bias": three,
            "y": "Each head is independent, and a token attends to itself and to earlier tokens. "
            "Sum the projections of all heads, then add the bias.",
            "projection_weight": "Its inputs are this rank's heads: which dim is that?",
        }.get(name, super().about(name))


class Refusing(OfAttention):
    """A case with a number of heads that the number of ranks does not divide."""

    sums = (0, 0)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit06.on_ranks import build_from_dense, linear

        layers = [linear(*pair) for pair in given["layers"]]
        try:
            build_from_dense(fn, layers, given, process_group(given["groups"]))
        except Exception as error:  # whatever the learner's class raises
            if "NotImplementedError" in type(error).__name__:
                raise
            return {"raised": type(error).__name__}
        return {"raised": ""}

    def wrong(self, result: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        if result["raised"] != "ValueError":
            event = f"it raises {result['raised']}" if result["raised"] else "it makes a module"
            yield "refuses", f"{event}. Raise ValueError if ranks cannot have whole heads."


def _trials(seed: int) -> list[Trial]:
    """Trials of construction, 1 to 4 ranks, grouped heads, and heads that do not divide."""
    draw = random.Random(seed)

    def case(topic: str, heads: int, kv_heads: int = 0, **more: Any) -> OfAttention:
        sizes = {"head_size": draw.choice([2, 3]), "kv_heads": kv_heads or heads, **more}
        kind = Refusing if topic == "refuses" else OfAttention
        return kind(draw.randrange(10**6), topic, heads=heads, **sizes)

    return [
        Trial(2, [case("shards", 4, dtype="float32")]),
        Trial(2, [case("output", 4), case("output", 4, head_size=6, tokens=(2, 40))]),
        Trial(1, [case("output", 2)]),
        Trial(2, [case("grouped", draw.choice([8, 12]), 4)]),
        Trial(3, [case("output", 3)]),
        Trial(4, [case("group", 4, groups=draw_groups(draw, 4, 2))]),
        Trial(4, [case("refuses", 8, 2), case("refuses", 6)]),
        Trial(2, [ResidentShards(((1, 3), (1, 1)), numbers=(8, 8))]),
    ]


_RIGHT = ("shards", "output", "gradients")

PART = Part(
    name="06/parallel_attention",
    level=2,
    title="Attention",
    minutes=18,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule("shards", 2, "each rank has its heads of q, of k and of v"),
            rule("output", 2, "y is the dense layer's", "shards"),
            rule("gradients", 1, "all gradients are those of the dense layer", "shards", "output"),
            rule("calls", 1, "one all-reduce forward, one backward", *_RIGHT, also=wrong_calls),
            rule("grouped", 1, "right with fewer heads of k and v", *_RIGHT),
            rule("refuses", 1, "heads that do not divide are refused"),
            rule("group", 1, "right on groups of some of the ranks", *_RIGHT),
            rule("memory", 1, "a rank keeps only its shards", "shards", also=grown_by("memory")),
        ),
    ),
    reference="dtlab.parallel.tensor.attention.ParallelAttention",
    stretch=True,
    symbol="ParallelAttention",
)
