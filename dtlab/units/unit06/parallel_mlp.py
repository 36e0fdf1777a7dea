"""06/parallel_mlp: an MLP as a column parallel layer, GELU, and a row parallel layer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import of_others
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.groups import draw_groups, members_of, process_group
from dtlab.checks.functions.resident import (
    LARGE,
    Mark,
    Moment,
    ResidentCase,
    grown_by,
    use_twice,
)
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.predict.units import counted
from dtlab.units.unit06.passes import (
    FINISHED,
    PAIR,
    Layer,
    Tensors,
    compare,
    extra_calls,
    wrong_calls,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "ModuleCase", "OfMLP", "ResidentShards"]

# Modules that each rank makes from dense layers: its shards, and the memory that it keeps --------
#
# rank r    dense layers ── Cls(*layers, *numbers, group) ──> shards by name, bytes held
#           dense layers are released
#           y = module(x), backward

_SLACK = 64  # bytes that a module may hold in addition to its shards
_VIEW = "A view keeps the memory of the whole tensor: clone() the rank's part."
_KEPT = (
    "a dense layer is still in memory, since an attribute or a function of your module refers to "
    "it. Keep only copies of the rank's parts."
)
_TAKE = "Take the part of dist.get_rank(group)."
_NAMES = "Make each shard an attribute of the module, with the name that the text gives."


@dataclass(frozen=True)
class ModuleCase(Layer):
    """A module that `fn(*layers, *numbers, group)` makes from linear layers, for x [b, s, h].

    With the topic "shards" the module is constructed, but not called.
    """

    layers: ClassVar[tuple[str, str]]  # names: a rank's shards are first_weight and first_bias
    packed: ClassVar[bool] = False  # whether they are passed as one nn.Sequential, with GELU
    apart = ("group", "uneven", "grouped", "refuses")

    tokens: tuple[int, int] = (2, 3)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The arguments of the learner's class between the layers and the group."""
        return ()

    @property
    def names(self) -> list[str]:
        """The names of all weights and biases."""
        return [name for name in self.shapes if name != "x"]

    @property
    def sums(self) -> tuple[int, int]:
        elements = math.prod(self.shapes["x"])
        return elements, elements

    def about(self, name: str) -> str:
        return {
            "the gradient of x": "All ranks use x, and each has a part of its gradient: sum these "
            "parts once, where x enters.",
            f"{self.layers[1]}_bias": "It is whole on every rank; add it once, after the sum.",
        }.get(name, "Only this rank has this shard, so it needs no sum over ranks.")

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        whole = self.whole(members_of(self.groups, rank, world_size)[0])
        return {
            "layers": [[whole[f"{name}_weight"], whole[f"{name}_bias"]] for name in self.layers],
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

        from dtlab.training.live import held_bytes
        from dtlab.units.unit06 import on_ranks

        group, x = process_group(given["groups"]), given["x"].requires_grad_()
        layers = [on_ranks.linear(*pair) for pair in given["layers"]]
        with finished_calls(*FINISHED, refuse=True, allowed=PAIR) as finished:
            module, alive = on_ranks.build_from_dense(fn, layers, given, group)
            values = {name: getattr(module, name, None) for name in given["names"]}
            shards = {name: value for name, value in values.items() if isinstance(value, Tensor)}
            noted = {
                **{name: shard.detach().clone() for name, shard in shards.items()},
                "parameters": [name for name, shard in shards.items() if shard.requires_grad],
                "held": held_bytes(module),
                "kept": not {*map(id, alive)} <= {*map(id, shards.values())},
            }
            if given["used"]:
                noted["y"] = on_ranks.forward_and_backward(lambda: module(x), given["back"])
        return {**noted, **on_ranks.gradients_of({"x": x, **shards}), "finished": sorted(finished)}

    def wrong(self, result: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        parts = [self.cut(self.whole(members[0]), n, len(members)) for n in range(len(members))]
        local = parts[place]
        for name in self.names:
            got = result.get(name)
            if got is None:
                yield "shards", f"there is no tensor {name}. {_NAMES}"
                continue
            every = {rank: part[name] for rank, part in zip(members, parts, strict=True)}
            known = of_others(every, _TAKE, "the part")
            yield from compare(result, name, "shards", local[name], self.about(name), known)
            if name not in result["parameters"]:
                yield "shards", f"{name} does not require a gradient: make it an nn.Parameter."
            if got.dtype != local[name].dtype:
                yield "shards", f"{name} has dtype {got.dtype}, not {local[name].dtype}."
        held = sum(local[name].nbytes for name in self.names)
        if result["kept"] and self.topic not in self.apart:
            yield "memory", _KEPT
        elif result["held"] > held + _SLACK and self.topic not in self.apart:
            message = f"it holds {amount(result['held'])}; its shards have {amount(held)}"
            yield "memory", f"{message}. {_VIEW}"
        if self.topic != "shards":
            yield from super().wrong(result, place, members)


@dataclass(frozen=True)
class ResidentShards(ResidentCase):
    """Memory that is left of the dense layers after a module has been made from them.

    `layers` has, for each layer, its inputs and outputs as multiples of the test's width.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = PAIR

    layers: tuple[tuple[int, int], ...]
    packed: bool = False
    numbers: tuple[int, ...] = ()
    ready = 0.0  # the layers are made after the first mark

    @property
    def elements(self) -> int:  # type: ignore[override]
        return LARGE**2 * sum(inputs * outputs for inputs, outputs in self.layers)

    @property
    def moments(self) -> Sequence[Moment]:
        return (Moment("memory", "after construction", lambda size, n: size / n, _VIEW),)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {"layers": self.layers, "packed": self.packed, "numbers": self.numbers}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        return use_twice(partial(_make, given), fn)


def _make(given: dict[str, Any], fn: Callable[..., Any], width: int, mark: Mark) -> Any:
    from torch import nn

    from dtlab.units.unit06.on_ranks import build_from_dense

    mark()
    layers = [nn.Linear(width * inputs, width * outputs) for inputs, outputs in given["layers"]]
    module, _ = build_from_dense(fn, layers, given, None)
    mark()
    return module


# The part ----------------------------------------------------------------------------------------


_BETWEEN = "A rank's second layer needs only the output of its first: do not communicate there."


@dataclass(frozen=True)
class OfMLP(ModuleCase):
    """A module of `fn(dense, group)`. With "uneven" the ranks do not divide the inner features."""

    layers = ("first", "second")
    packed = True
    dims: ClassVar = {"first_weight": 0, "first_bias": 0, "second_weight": 1}
    hints = (_BETWEEN, _BETWEEN)

    hidden: int = 6
    inner: int = 12

    @property
    def size(self) -> str:
        sequences, tokens = self.tokens
        size = f"{sequences} x {counted(tokens, 'token')}"
        return f"{size}, {self.hidden} features, {self.inner} inside"

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
        """The output of the dense MLP; `gelu` is the approximation of GELU."""
        import torch.nn.functional as F

        x, first, first_bias, second, second_bias = (tensors[name] for name in self.shapes)
        return F.linear(
            F.gelu(F.linear(x, first, first_bias), approximate=gelu), second, second_bias
        )

    def known(self, name: str, whole: Tensors, local: Tensors, ranks: int) -> dict[str, Any]:
        known = super().known(name, whole, local, ranks)
        if name == "y":
            by_tanh = "is the output with GELU's tanh approximation, but nn.GELU() is exact"
            known[by_tanh] = self.dense(whole, "tanh"), ""
        return known

    def about(self, name: str) -> str:
        if name == "y":
            return "Apply GELU to complete features, and add the second bias after the sum."
        if name in self.dims:
            return (
                "Cut the first layer by outputs and the second by inputs, with tensor_split: "
                "which dim of [out, in] is that?"
            )
        return super().about(name)


def _trials(seed: int) -> list[Trial]:
    """Trials of construction; of 1 to 4 ranks, with even and uneven inner sizes; of two groups."""
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
            rule(
                "gradients",
                2,
                "all gradients are those of the dense MLP",
                "shards",
                "output",
                advice=extra_calls,
            ),
            rule("calls", 2, "one all-reduce forward, one backward", *_RIGHT, also=wrong_calls),
            rule("memory", 1, "a rank keeps only its shards", "shards", also=grown_by("memory")),
            rule("uneven", 1, "right if N does not divide the inner features", *_RIGHT),
            rule("group", 1, "right on groups of some of the ranks", *_RIGHT),
        ),
    ),
    reference="dtlab.parallel.tensor.layers.ParallelMLP",
    symbol="ParallelMLP",
    short_path="1 and 2",
)
