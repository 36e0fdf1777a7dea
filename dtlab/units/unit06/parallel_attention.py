"""06/parallel_attention, extra: each rank has some heads of queries, keys and values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Noted, rule
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.resident import Mark, grown_by, use_twice
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit06.parallel_mlp import ModuleCase, ResidentShards, Shards, shape_of
from dtlab.units.unit06.passes import Calls, own_group, wrong_calls

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event


@dataclass(frozen=True)
class OfAttention(ModuleCase):
    """`fn(qkv, projection, heads, kv_heads, group)`, causal.

    With the topic "grouped" there are fewer heads of keys and values than of queries.
    """

    heads: int = 4
    kv_heads: int = 4
    head_size: int = 3

    @property
    def size(self) -> str:
        of_kv = f"{self.kv_heads} of keys and values"
        return shape_of(self.tokens, f"{self.heads} heads of queries, {of_kv}")

    @property
    def apart(self) -> tuple[str, ...]:
        return ("group", "grouped", "refuses")

    def numbers(self) -> tuple[int, ...]:
        return (self.heads, self.kv_heads)

    @property
    def pieces(self) -> list[int]:
        """Rows of queries, keys and values in the dense weight."""
        return [heads * self.head_size for heads in (self.heads, self.kv_heads, self.kv_heads)]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [(sum(self.pieces), self.hidden), (self.hidden, self.heads * self.head_size)]

    @property
    def names(self) -> list[tuple[str, str]]:
        return [("qkv_weight", "qkv_bias"), ("projection_weight", "projection_bias")]

    def cut(self, whole: Shards, place: int, ranks: int) -> Shards:
        import torch

        def rows(tensor: Tensor) -> Tensor:
            parts = torch.split(tensor, self.pieces)
            return torch.cat([part.chunk(ranks)[place] for part in parts])

        return {
            "qkv_weight": rows(whole["qkv_weight"]),
            "qkv_bias": rows(whole["qkv_bias"]),
            "projection_weight": whole["projection_weight"].chunk(ranks, 1)[place],
            "projection_bias": whole["projection_bias"],
        }

    def dense(self, x: Tensor, whole: Shards) -> Tensor:
        import torch
        import torch.nn.functional as F

        made = F.linear(x, whole["qkv_weight"], whole["qkv_bias"])
        parts = torch.split(made, self.pieces, -1)
        q, k, v = (one.reshape(*self.tokens, -1, self.head_size).transpose(1, 2) for one in parts)
        k, v = (one.repeat_interleave(self.heads // self.kv_heads, 1) for one in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(
            y.transpose(1, 2).flatten(2), whole["projection_weight"], whole["projection_bias"]
        )

    def about(self, name: str) -> str:
        if name in ("qkv_weight", "qkv_bias"):
            return (
                "It is three weights in one, [q; k; v]: a rank has the rows of its heads of each."
            )
        if name == "y" and self.kv_heads < self.heads:
            return (
                "Queries that lie side by side share a head of keys and values: see in the "
                "picture which queries use keys 0."
            )
        return {
            "y": "Each head works alone, sees itself and earlier tokens, and what all heads give "
            "is added up, and then the bias.",
            "x": "x goes into the heads of all ranks, and each finds a part of its gradient.",
            "projection_weight": "It takes in what this rank's heads give: which dim is that?",
            "projection_bias": "It is added once, behind the sum, and whole on every rank.",
        }.get(name, "A shard is this rank's alone, and so is its gradient.")


class Refusing(OfAttention):
    """Numbers of heads that the ranks do not divide."""

    def calls(self) -> Calls:
        return Calls()

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit06.dense_layers import made_of_dense

        try:
            made_of_dense(fn, given, own_group(given["groups"]))
        except ValueError:
            return {"raised": "ValueError"}
        except Exception as error:  # whatever the learner's own raises
            if "NotImplementedError" in type(error).__name__:
                raise
            return {"raised": type(error).__name__}
        return {"raised": ""}

    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        raised = seen["raised"]
        if raised != "ValueError":
            said = f"it raises {raised}" if raised else "it makes a module"
            yield "refuses", f"{said}. A rank has whole heads: raise ValueError where it cannot."


class ResidentAttention(ResidentShards):
    """With eight heads."""

    elements = 4 * 1024**2

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        return use_twice(_make, fn)


def _make(fn: Callable[..., Any], width: int, mark: Mark) -> Any:
    from torch import nn

    mark()
    dense = [nn.Linear(width, 3 * width), nn.Linear(width, width)]
    module = fn(*dense, 8, 8, None)
    del dense
    mark()
    return module


def _advice(half: str, made: Sequence[Event]) -> str:
    if not made and half == "backward":
        return "Its gradient of x is a part of a sum."
    return "No head needs another, so nothing travels before the sum at the end."


def _trials(seed: int) -> list[Trial]:
    """It is made; 1 to 4 ranks; fewer heads of keys and values; what does not divide."""
    draw = random.Random(seed)

    def case(topic: str = "output", kind: type[OfAttention] = OfAttention,
             **more: object) -> OfAttention:  # fmt: skip
        sizes: dict[str, Any] = {"heads": 4, "head_size": draw.choice([2, 3]), **more}
        sizes["hidden"] = sizes["heads"] * sizes["head_size"]
        return kind(draw.randrange(10**6), topic, **sizes)

    few: dict[str, Any] = {"heads": draw.choice([8, 12]), "kv_heads": 4}
    return [
        Trial(2, [case("shards", dtype="float32")]),
        Trial(
            2,
            [
                case(heads=4, kv_heads=4),
                case(heads=4, kv_heads=4, head_size=6, tokens=(2, 40)),
            ],
        ),
        Trial(1, [case(heads=2, kv_heads=2)]),
        Trial(2, [case("grouped", **few)]),
        Trial(3, [case(heads=3, kv_heads=3)]),
        Trial(4, [case("group", heads=4, kv_heads=4, groups=draw_groups(draw, 4, 2))]),
        Trial(
            4,
            [
                case("refuses", Refusing, heads=8, kv_heads=2),
                case("refuses", Refusing, heads=6, kv_heads=6),
            ],
        ),
        Trial(2, [ResidentAttention()]),
    ]


_USED = ("shards", "output", "gradients")

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
            rule("gradients", 1, "and so are all gradients", "shards", "output"),
            rule(
                "calls",
                1,
                "one all-reduce forward, one backward",
                *_USED,
                also=wrong_calls(_advice),
            ),
            rule("grouped", 1, "also with fewer heads of k and v", *_USED),
            rule("refuses", 1, "heads that do not divide are refused"),
            rule("group", 1, "only its group's ranks count", *_USED),
            rule("memory", 1, "a rank keeps its shards alone", "shards", also=grown_by("memory")),
        ),
    ),
    reference="dtlab.parallel.tensor.attention.ParallelAttention",
    stretch=True,
    symbol="ParallelAttention",
)
