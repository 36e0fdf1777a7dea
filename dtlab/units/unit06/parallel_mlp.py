"""06/parallel_mlp: column, GELU, row, of a dense MLP's weights. Nothing is sent in between."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import draw_groups, members_of
from dtlab.grading.checking.resident import (
    LARGE,
    Mark,
    Moment,
    ResidentCase,
    grown_by,
    use_twice,
)
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount
from dtlab.units.unit06.passes import FINISHED, PAIR, Layer, Tensors, compare, wrong_calls

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "ModuleCase", "OfMLP", "ResidentShards"]

# Modules that each rank makes from dense layers: its shards, and what it keeps of them ----------
#
# rank r    dense layers ── Cls(*layers, *numbers, group) ──> shards by name, bytes held
#           dense layers are let go
#           y = module(x), backward

_SLACK = 64  # bytes that a module may hold beside its shards
_VIEW = "A view keeps all that it is a view of: clone() what is the rank's own."
_NAMES = "Each shard is an attribute of the module with the name that the text gives it."


@dataclass(frozen=True)
class ModuleCase(Layer):
    """`fn(*layers, *numbers, group)` makes a module of linear layers: [b, s, h] to the same.

    With the topic "shards" it is made, and not used.
    """

    layers: ClassVar[tuple[str, str]]  # names: a rank's shards are first_weight and first_bias
    packed: ClassVar[bool] = False  # whether they come as one nn.Sequential, with GELU between
    apart = ("group", "uneven", "grouped", "refuses")

    tokens: tuple[int, int] = (2, 3)

    @property
    def numbers(self) -> tuple[int, ...]:
        """What the learner's class is given between the layers and the group."""
        return ()

    @property
    def names(self) -> list[str]:
        """Of all weights and biases."""
        return [name for name in self.shapes if name != "x"]

    @property
    def sums(self) -> tuple[int, int]:
        elements = math.prod(self.shapes["x"])
        return elements, elements

    def about(self, name: str) -> str:
        return {
            "the gradient of x": "All ranks use x, and each finds a part of its gradient.",
            f"{self.layers[1]}_bias": "It is added once, behind the sum, and whole on every rank.",
        }.get(name, "A shard is this rank's alone, and so is its gradient.")

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        whole = self.whole(members_of(self.groups, rank, world_size)[0])
        return {
            "layers": [[whole[f"{one}_weight"], whole[f"{one}_bias"]] for one in self.layers],
            "packed": self.packed,
            "numbers": list(self.numbers),
            "names": self.names,
            "used": self.topic != "shards",
            "x": whole["x"],
            "back": whole["back"],
            "groups": self.groups,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from torch import Tensor

        from dtlab.training.held import held_bytes
        from dtlab.units.unit06 import on_ranks

        group, x = on_ranks.own_group(given["groups"]), given["x"].requires_grad_()
        layers = [on_ranks.linear(*pair) for pair in given["layers"]]
        with finished_calls(*FINISHED, refuse=True, allowed=PAIR) as finished:
            module, alive = on_ranks.made_of_dense(fn, layers, given, group)
            found = {name: getattr(module, name, None) for name in given["names"]}
            shards = {name: one for name, one in found.items() if isinstance(one, Tensor)}
            noted = {
                **{name: one.detach().clone() for name, one in shards.items()},
                "parameters": [name for name, one in shards.items() if one.requires_grad],
                "held": held_bytes(module),
                "kept": not {*map(id, alive)} <= {*map(id, shards.values())},
            }
            if given["used"]:
                noted["y"] = on_ranks.forth_and_back(lambda: module(x), given["back"])
        return {**noted, **on_ranks.gradients_of({"x": x, **shards}), "finished": sorted(finished)}

    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        own = self.cut(self.whole(members[0]), place, len(members))
        for name in self.names:
            got = seen.get(name)
            if got is None:
                yield "shards", f"there is no tensor {name}. {_NAMES}"
                continue
            yield from compare(seen, name, "shards", own[name], self.about(name))
            if name not in seen["parameters"]:
                yield "shards", f"{name} needs no gradient: make it an nn.Parameter."
            if got.dtype != own[name].dtype:
                yield "shards", f"{name} is of {got.dtype}, not of {own[name].dtype}."
        held = sum(own[name].nbytes for name in self.names)
        if (seen["kept"] or seen["held"] > held + _SLACK) and self.topic not in self.apart:
            left = ", and the dense layers stay alive after that" if seen["kept"] else ""
            words = f"it holds {amount(seen['held'])}{left}; its shards have {amount(held)}"
            yield "memory", f"{words}. {_VIEW}"
        if self.topic != "shards":
            yield from super().wrong(seen, place, members)


@dataclass(frozen=True)
class ResidentShards(ResidentCase):
    """What is left of the dense layers once a module is made of them.

    Layers are so many times as wide as others: inputs and outputs of each.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = PAIR

    layers: tuple[tuple[int, int], ...]
    packed: bool = False
    numbers: tuple[int, ...] = ()

    @property
    def elements(self) -> int:  # type: ignore[override]
        return LARGE**2 * sum(inputs * outputs for inputs, outputs in self.layers)

    @property
    def moments(self) -> Sequence[Moment]:
        return (Moment("memory", "once it is made", lambda size, n: size / n, _VIEW),)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {"layers": self.layers, "packed": self.packed, "numbers": self.numbers}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        return use_twice(partial(_make, given), fn)


def _make(given: dict[str, Any], fn: Callable[..., Any], width: int, mark: Mark) -> Any:
    from torch import nn

    from dtlab.units.unit06.on_ranks import made_of_dense

    mark()
    layers = [nn.Linear(width * inputs, width * outputs) for inputs, outputs in given["layers"]]
    module, _ = made_of_dense(fn, layers, given, None)
    mark()
    return module


# The part ----------------------------------------------------------------------------------------


_BETWEEN = "A rank's second half takes in what its first half gives: nothing travels between."


@dataclass(frozen=True)
class OfMLP(ModuleCase):
    """`fn(dense, group)`. With the topic "uneven" the ranks do not divide what is inside."""

    layers = ("first", "second")
    packed = True
    dims: ClassVar = {"first_weight": 0, "first_bias": 0, "second_weight": 1}
    hints = (_BETWEEN, _BETWEEN)

    hidden: int = 6
    inner: int = 12

    @property
    def size(self) -> str:
        sequences, tokens = self.tokens
        return f"{sequences} x {tokens} tokens, {self.hidden} features, {self.inner} inside"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "x": (*self.tokens, self.hidden),
            "first_weight": (self.inner, self.hidden),
            "first_bias": (self.inner,),
            "second_weight": (self.hidden, self.inner),
            "second_bias": (self.hidden,),
        }

    def dense(self, tensors: Tensors, gelu: str = "none") -> Tensor:
        """See `Layer`; `gelu` is how it is approximated."""
        import torch.nn.functional as F

        x, first, first_bias, second, second_bias = (tensors[name] for name in self.shapes)
        return F.linear(
            F.gelu(F.linear(x, first, first_bias), approximate=gelu), second, second_bias
        )

    def known(self, name: str, whole: Tensors, own: Tensors, ranks: int) -> Tensors:
        known = super().known(name, whole, own, ranks)
        if name == "y":
            by_tanh = "what GELU's approximation by tanh gives, and nn.GELU() is exact"
            known[by_tanh] = self.dense(whole, "tanh")
        return known

    def about(self, name: str) -> str:
        if name == "y":
            return "GELU takes finished features, and the second bias comes behind the sum."
        if name in self.dims:
            return (
                "The first layer is cut by outputs, the second by inputs, as tensor_split cuts: "
                "which dim of [out, in] is that?"
            )
        return super().about(name)


def _trials(seed: int) -> list[Trial]:
    """It is made; 1 to 4 ranks, which divide what is inside or do not, and two groups."""
    draw = random.Random(seed)

    def case(topic: str = "output", **more: Any) -> OfMLP:
        sizes = {"hidden": draw.choice([5, 7]), "inner": draw.choice([12, 24])}
        return OfMLP(draw.randrange(10**6), topic, **{**sizes, **more})

    return [
        Trial(2, [case("shards", dtype="float32")]),
        Trial(3, [case(), case(hidden=32, inner=48, tokens=(2, 32))]),
        Trial(1, [case()]),
        Trial(2, [case("uneven", inner=draw.choice([9, 11]))]),
        Trial(4, [case("group", groups=draw_groups(draw, 4, 2))]),
        Trial(4, [case("uneven", inner=draw.choice([5, 6, 9]))]),
        Trial(2, [ResidentShards(((1, 4), (4, 1)), packed=True)]),
    ]


_RIGHT = ("shards", "output", "gradients")

PART = Part(
    name="06/parallel_mlp",
    level=2,
    title="The MLP",
    minutes=18,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("shards", 2, "each rank has its part of the dense weights"),
            rule("output", 2, "y is the dense MLP's, on 1 to 4 ranks", "shards"),
            rule("gradients", 2, "and so are all gradients", "shards", "output"),
            rule("calls", 2, "one all-reduce forward, one backward", *_RIGHT, also=wrong_calls),
            rule("memory", 1, "a rank keeps its shards alone", "shards", also=grown_by("memory")),
            rule("uneven", 1, "also where ranks do not divide", *_RIGHT),
            rule("group", 1, "only its group's ranks count", *_RIGHT),
        ),
    ),
    reference="dtlab.parallel.tensor.layers.ParallelMLP",
    symbol="ParallelMLP",
)
