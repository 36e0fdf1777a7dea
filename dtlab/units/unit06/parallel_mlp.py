"""06/parallel_mlp: column, GELU, row, of a dense MLP's weights. Nothing is sent in between."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import draw_groups, members_of
from dtlab.grading.checking.resident import Mark, Moment, ResidentCase, grown_by, use_twice
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount
from dtlab.units.unit06.passes import (
    FINISHED,
    FORWARD,
    PAIR,
    Calls,
    Pass,
    alike,
    difference,
    go_back,
    own_group,
    wrong_calls,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = ["PART", "ModuleCase", "OfMLP", "ResidentShards", "Shards", "shape_of"]

# Modules that each rank makes from dense layers: its shards, and what it keeps of them ----------
#
# rank r    dense layers ── Cls(*layers, *numbers, group) ──> shards by name, bytes held
#           dense layers are let go
#           y = module(x), backward

Shards = dict[str, "Tensor"]  # by the name that the learner gives them
_SLACK = 64  # bytes that a module may hold beside its shards


@dataclass(frozen=True)
class ModuleCase(Pass):
    """`fn(*layers, *numbers, group)` makes a module of linear layers: [b, s, h] to the same.

    With the topic "shards" it is made, and not used.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = PAIR

    hidden: int = 6
    tokens: tuple[int, int] = (2, 3)

    @property
    @abstractmethod
    def shapes(self) -> list[tuple[int, int]]:
        """Outputs and inputs of each linear layer."""

    @property
    @abstractmethod
    def names(self) -> list[tuple[str, str]]:
        """What a rank calls its shard of each layer's weight, and of its bias."""

    @abstractmethod
    def cut(self, whole: Shards, place: int, ranks: int) -> Shards:
        """What one rank has of tensors, or of gradients."""

    @abstractmethod
    def dense(self, x: Tensor, whole: Shards) -> Tensor:
        """What comes out in one process."""

    @abstractmethod
    def about(self, name: str) -> str:
        """What to look at where y, or a shard, or the gradient of one or of x, is wrong."""

    def known(self, first: int) -> dict[str, Tensor | None]:
        """What y is where people make mistakes, in the group that begins with this rank."""
        return {}

    def numbers(self) -> tuple[int, ...]:
        """What the learner's class is given between the layers and the group."""
        return ()

    @property
    def packed(self) -> bool:
        """Whether the layers come as one nn.Sequential, with GELU between them."""
        return False

    def shows(self, criterion: str) -> bool:
        return criterion == "shards" if self.topic == "shards" else super().shows(criterion)

    def calls(self) -> Calls:
        elements = self.tokens[0] * self.tokens[1] * self.hidden
        return Calls((elements,), (elements,))

    @cached_property
    def _of_groups(self) -> dict[int, Any]:
        return {}

    def whole(self, first: int) -> Shards:
        """The dense weights and biases of the group that begins with this rank."""
        found = {}
        for number, ((outputs, inputs), (weight, bias)) in enumerate(
            zip(self.shapes, self.names, strict=True)
        ):
            salt = 10 * first + 2 * number
            found[weight] = self.drawn(outputs, inputs, salt=salt) / inputs**0.5
            found[bias] = self.drawn(outputs, salt=salt + 1)
        return found

    def x(self, first: int) -> tuple[Tensor, Tensor]:
        """What goes in, and the gradient of what comes out."""
        shape = (*self.tokens, self.hidden)
        return self.drawn(*shape, salt=10 * first + 8), self.drawn(*shape, salt=10 * first + 9)

    def of_group(self, first: int) -> tuple[Tensor, Tensor, Shards]:
        """In one process: what comes out, and the gradients of x and of all tensors."""
        import torch

        if first not in self._of_groups:
            x, back = self.x(first)
            whole = {name: one.requires_grad_() for name, one in self.whole(first).items()}
            y = self.dense(x.requires_grad_(), whole)
            of_x, *others = torch.autograd.grad(y, [x, *whole.values()], back)
            gradients = dict(zip(whole, others, strict=True))
            self._of_groups[first] = (y.detach(), of_x, gradients)
        found: tuple[Tensor, Tensor, Shards] = self._of_groups[first]
        return found

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        first = members_of(self.groups, rank, world_size)[0]
        x, back = self.x(first)
        whole = self.whole(first)
        return {
            "layers": [[whole[weight], whole[bias]] for weight, bias in self.names],
            "packed": self.packed,
            "numbers": list(self.numbers()),
            "names": [name for pair in self.names for name in pair],
            "x": None if self.topic == "shards" else x,
            "gradient": back,
            "groups": self.groups,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        from dtlab.trace import span
        from dtlab.training.held import held_bytes
        from dtlab.units.unit06.dense_layers import made_of_dense, shards_of

        group, x = own_group(given["groups"]), given["x"]
        with finished_calls(*FINISHED, refuse=True, allowed=PAIR) as finished:
            module, alive = made_of_dense(fn, given, group)
            shards, held = shards_of(module, given["names"]), held_bytes(module)
            before = {name: one.detach().clone() for name, one in shards.items()}
            made = {
                "shards": before,
                "parameters": [name for name, one in shards.items() if one.requires_grad],
                "held": held,
                "kept": not {id(one) for one in alive} <= {id(one) for one in shards.values()},
            }
            if x is None:
                return {**made, "finished": sorted(finished)}
            with span(FORWARD):
                y = module(x.requires_grad_())
            out = y.detach().clone() if isinstance(y, torch.Tensor) else y
            go_back(y, given["gradient"])
        return {
            **made,
            "y": out,
            "x": x.grad,
            "gradients": {name: one.grad for name, one in shards.items()},
            "finished": sorted(finished),
        }

    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        ranks, (y, of_x, gradients) = len(members), self.of_group(members[0])
        own = self.cut(self.whole(members[0]), place, ranks)
        off = self._wrong_shard(seen, own)
        if off:
            yield "shards", off
        held = sum(one.numel() * one.element_size() for one in own.values())
        if (seen["kept"] or seen["held"] > held + _SLACK) and self.topic not in self.apart:
            yield "memory", _held(seen, held)
        if self.topic == "shards":
            return
        known = {"divided by the number of ranks": y / ranks, **self.known(members[0])}
        off = difference(seen["y"], y, known)
        if off:
            yield "output", f"y {off}. {self.about('y')}"
            return
        off = difference(seen["x"], of_x, {})
        if off:
            yield "gradients", f"the gradient of x {off}. {self.about('x')}"
            return
        for name, wanted in self.cut(gradients, place, ranks).items():
            known = {"times the number of ranks": wanted * ranks} if ranks > 1 else {}
            off = difference(seen["gradients"].get(name), wanted, {**known})
            if off:
                yield "gradients", f"the gradient of {name} {off}. {self.about('gradient')}"
                return

    def _wrong_shard(self, seen: Noted, own: Shards) -> str:
        for name, wanted in own.items():
            got = seen["shards"].get(name)
            if got is None:
                return f"there is no tensor {name}. {_NAMES}"
            if name not in seen["parameters"]:
                return f"{name} needs no gradient: make it an nn.Parameter."
            if got.dtype != wanted.dtype:
                return f"{name} is of {got.dtype}, and the dense one of {wanted.dtype}."
            if not alike(got, wanted):
                return f"{name} {difference(got, wanted, {})}. {self.about(name)}"
        return ""


class ResidentShards(ResidentCase):
    """What is left of the dense layers once a module is made of them."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = PAIR

    @property
    def moments(self) -> Sequence[Moment]:
        return (Moment("memory", "once it is made", lambda size, n: size / n, _VIEW),)


_VIEW = "A view keeps all that it is a view of: clone() what is the rank's own."
_NAMES = "Each shard is an attribute of the module with the name that the text gives it."


def shape_of(tokens: Sequence[int], *sizes: str) -> str:
    """As in "x [2, 3, 6], 12 inside"."""
    return ", ".join([f"{tokens[0]} x {tokens[1]} tokens", *sizes])


def _held(seen: Noted, held: int) -> str:
    more = "and the dense layers stay alive after that, because something of the module has them"
    return (
        f"it holds {amount(seen['held'])}{f', {more}' if seen['kept'] else ''}; its shards have "
        f"{amount(held)}. {_VIEW}"
    )


# The part ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfMLP(ModuleCase):
    """`fn(dense, group)`. With the topic "uneven" the ranks do not divide what is inside."""

    inner: int = 12

    @property
    def size(self) -> str:
        return shape_of(self.tokens, f"{self.hidden} features, {self.inner} inside")

    @property
    def apart(self) -> tuple[str, ...]:
        return ("group", "uneven")

    @property
    def packed(self) -> bool:
        return True

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [(self.inner, self.hidden), (self.hidden, self.inner)]

    @property
    def names(self) -> list[tuple[str, str]]:
        return [("first_weight", "first_bias"), ("second_weight", "second_bias")]

    def cut(self, whole: Shards, place: int, ranks: int) -> Shards:
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
        y = self.dense(self.x(first)[0], self.whole(first), "tanh")
        return {"what GELU's approximation by tanh gives, and nn.GELU() is exact": y}

    def about(self, name: str) -> str:
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
            rule("shards", 2, "each rank has its part of the dense weights"),
            rule("output", 2, "y is the dense MLP's, on 1 to 4 ranks", "shards"),
            rule("gradients", 2, "and so are all gradients", "shards", "output"),
            rule(
                "calls",
                2,
                "one all-reduce forward, one backward",
                *_USED,
                also=wrong_calls(_advice),
            ),
            rule("memory", 1, "a rank keeps its shards alone", "shards", also=grown_by("memory")),
            rule("uneven", 1, "also where ranks do not divide", *_USED),
            rule("group", 1, "only its group's ranks count", *_USED),
        ),
    ),
    reference="dtlab.parallel.tensor.layers.ParallelMLP",
    symbol="ParallelMLP",
)
