"""06/parallel_mlp: column, GELU, row, of a dense MLP's weights. Nothing is sent in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.faults import judge
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.resident import Mark, grown_by, use_twice
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit06.modules import ModuleCase, ResidentShards, Shards, shape_of
from dtlab.units.unit06.passes import wrong_calls

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = ["PART"]


@dataclass(frozen=True)
class OfMLP(ModuleCase):
    """`fn(dense, group)`. With the topic "uneven" the ranks do not divide what is inside."""

    inner: int = 12

    @property
    def size(self) -> str:
        """See `Pass`."""
        return shape_of(self.tokens, f"{self.hidden} features, {self.inner} inside")

    @property
    def apart(self) -> tuple[str, ...]:
        """See `Pass`."""
        return ("group", "uneven")

    @property
    def packed(self) -> bool:
        """See `ModuleCase`."""
        return True

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """See `ModuleCase`."""
        return [(self.inner, self.hidden), (self.hidden, self.inner)]

    @property
    def names(self) -> list[tuple[str, str]]:
        """See `ModuleCase`."""
        return [("first_weight", "first_bias"), ("second_weight", "second_bias")]

    def cut(self, whole: Shards, place: int, ranks: int) -> Shards:
        """See `ModuleCase`."""
        dims = {"first_weight": 0, "first_bias": 0, "second_weight": 1}
        return {
            name: one.tensor_split(ranks, dims[name])[place] if name in dims else one
            for name, one in whole.items()
        }

    def dense(self, x: Tensor, whole: Shards, gelu: str = "none") -> Tensor:
        """See `ModuleCase`; `gelu` is how it is approximated."""
        import torch.nn.functional as F

        inner = F.gelu(F.linear(x, whole["first_weight"], whole["first_bias"]), approximate=gelu)
        return F.linear(inner, whole["second_weight"], whole["second_bias"])

    def known(self, first: int) -> dict[str, Tensor | None]:
        """See `ModuleCase`."""
        y = self.dense(self.x(first)[0], self.whole(first), "tanh")
        return {"what GELU's approximation by tanh gives, and nn.GELU() is exact": y}

    def about(self, name: str) -> str:
        """See `ModuleCase`."""
        if name == "second_bias":
            return "It is added once, behind the sum, and whole on every rank."
        return {
            "y": "GELU takes finished features, and the second bias comes behind the sum.",
            "x": "x goes into the weights of all ranks, and each finds a part of its gradient.",
            "gradient": "A shard is this rank's alone, and so is its gradient.",
        }.get(
            name,
            "The first layer is cut by outputs, the second by inputs, as tensor_split cuts: "
            "which dim of [out, in] is that?",
        )


class ResidentMLP(ResidentShards):
    """Four times as wide inside."""

    elements = 8 * 1024**2

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        """See `Case`."""
        return use_twice(_make, fn)


def _make(fn: Callable[..., Any], width: int, mark: Mark) -> Any:
    from torch import nn

    mark()
    dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    module = fn(dense, None)
    del dense
    mark()
    return module


def _advice(half: str, made: Sequence[Event]) -> str:
    if not made:
        return (
            "A rank that computes y alone does the whole work."
            if half == "forward"
            else "Its gradient of x is a part of a sum."
        )
    return "A rank's second half takes in just what its first half gives: nothing travels between."


def _trials(seed: int) -> list[Trial]:
    """It is made; 1 to 4 ranks, which divide what is inside or do not, and two groups."""
    draw = random.Random(seed)

    def case(topic: str = "output", **more: object) -> OfMLP:
        sizes = {"hidden": draw.choice([5, 7]), "inner": draw.choice([12, 24])}
        return OfMLP(draw.randrange(10**6), topic, **{**sizes, **more})  # type: ignore[arg-type]

    return [
        Trial(2, [case("shards", dtype="float32")]),
        Trial(3, [case(), case(hidden=32, inner=48, tokens=(2, 32))]),
        Trial(1, [case()]),
        Trial(2, [case("uneven", inner=draw.choice([9, 11]))]),
        Trial(4, [case("group", groups=draw_groups(draw, 4, 2))]),
        Trial(4, [case("uneven", inner=draw.choice([5, 6, 9]))]),
        Trial(2, [ResidentMLP()]),
    ]


_USED = ("shards", "output", "gradients")

PART = Part(
    name="06/parallel_mlp",
    level=2,
    title="The MLP",
    minutes=18,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule("shards", 2, judge("shards", "each rank has its part of the dense weights")),
            Rule("output", 2, judge("output", "y is the dense MLP's, on 1 to 4 ranks", "shards")),
            Rule(
                "gradients", 2, judge("gradients", "and so are all gradients", "shards", "output")
            ),
            Rule(
                "calls",
                2,
                judge(
                    "calls",
                    "one all-reduce forward, one backward",
                    *_USED,
                    also=wrong_calls(_advice),
                ),
            ),
            Rule("memory", 1, judge("memory", "a rank keeps its shards alone", "shards",
                                   also=grown_by("memory"))),
            Rule("uneven", 1, judge("uneven", "also where ranks do not divide", *_USED)),
            Rule("group", 1, judge("group", "only its group's ranks count", *_USED)),
        ),
    ),
    reference="dtlab.parallel.tensor.ParallelMLP",
    symbol="ParallelMLP",
)
