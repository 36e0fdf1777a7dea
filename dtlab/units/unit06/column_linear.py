"""06/column_linear: each rank computes some outputs, from all inputs."""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import draw_groups, members_of
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit06.passes import (
    BACKWARD,
    FINISHED,
    FORWARD,
    PAIR,
    PRODUCT,
    Calls,
    Pass,
    difference,
    events_of,
    go_back,
    own_group,
    wrong_calls,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = ["PART", "Column", "LinearCase", "Tensors"]

# Cases of the two linear layers: this rank's shards of a dense layer, which one process has ------

TOKENS = (2, 3)  # b, s


class Tensors(NamedTuple):
    """Of a linear layer, dense or one rank's: what goes in and what comes out, or gradients."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    y: Tensor


@dataclass(frozen=True)
class LinearCase(Pass):
    """`fn(x, weight, bias, group)` on this rank's shards, and backward from y.

    The ranks divide neither side of the weight evenly. Where not `needed`, x needs no gradient.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = PAIR

    inputs: int = 8
    outputs: int = 8
    bias: bool = False
    needed: bool = True
    tokens: tuple[int, int] = TOKENS

    @property
    def size(self) -> str:
        more = [f"weight [{self.outputs}, {self.inputs}]"]
        more += ["with a bias"] if self.bias else []
        more += [] if self.needed else ["x needs no gradient"]
        return ", ".join(more)

    @abstractmethod
    def cut(self, whole: Tensors, place: int, ranks: int) -> Tensors:
        """What one rank has of it, tensors or gradients."""

    @abstractmethod
    def known(self, name: str, place: int, members: tuple[int, ...]) -> dict[str, Tensor | None]:
        """What y, or the gradient of x, weight or bias, is where people make mistakes."""

    @cached_property
    def dense(self) -> dict[int, tuple[Tensors, Tensors]]:
        """Not used before `of_group` has filled it."""
        return {}

    def of_group(self, first: int) -> tuple[Tensors, Tensors]:
        """In one process: tensors and gradients of the group that begins with this rank."""
        import torch
        import torch.nn.functional as F

        if first not in self.dense:
            salts = [5 * first + number for number in range(4)]
            x = self.drawn(*self.tokens, self.inputs, salt=salts[0]).requires_grad_()
            weight = self.drawn(self.outputs, self.inputs, salt=salts[1]).requires_grad_()
            bias = self.drawn(self.outputs, salt=salts[2]).requires_grad_() if self.bias else None
            y = F.linear(x, weight, bias)
            back = self.drawn(*y.shape, salt=salts[3])
            leaves = [x, weight] if bias is None else [x, weight, bias]
            of_x, of_weight, *of_bias = torch.autograd.grad(y, leaves, back)
            plain = None if bias is None else bias.detach()
            self.dense[first] = (
                Tensors(x.detach(), weight.detach(), plain, y.detach()),
                Tensors(of_x, of_weight, of_bias[0] if of_bias else None, back),
            )
        return self.dense[first]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        members = members_of(self.groups, rank, world_size)
        tensors, gradients = self.of_group(members[0])
        place, ranks = members.index(rank), len(members)
        own = self.cut(tensors, place, ranks)
        return {
            "x": own.x.clone(),
            "weight": own.weight.clone(),
            "bias": None if own.bias is None else own.bias.clone(),
            "gradient": self.cut(gradients, place, ranks).y.clone(),
            "needed": self.needed,
            "groups": self.groups,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        from dtlab.trace import span
        from dtlab.units.unit06.products import mark_products

        group = own_group(given["groups"])
        x = given["x"].requires_grad_(given["needed"])
        weight = given["weight"].requires_grad_()
        bias = given["bias"] if given["bias"] is None else given["bias"].requires_grad_()
        with finished_calls(*FINISHED, refuse=True, allowed=PAIR) as finished:
            with span(FORWARD):
                y = fn(x, weight, bias, group)
            out = y.detach().clone() if isinstance(y, torch.Tensor) else y
            mark_products(y)
            go_back(y, given["gradient"])
        return {
            "y": out,
            "x": x.grad,
            "weight": weight.grad,
            "bias": None if bias is None else bias.grad,
            "finished": sorted(finished),
        }

    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        tensors, gradients = self.of_group(members[0])
        wanted = self.cut(tensors, place, len(members)).y
        off = difference(seen["y"], wanted, self.known("y", place, members))
        if off:
            yield self.named("output"), f"y {off}. {self.about('y')}"
            return
        own = self.cut(gradients, place, len(members))
        for name in ("x", "weight", "bias"):
            goal = getattr(own, name)
            if goal is None or (name == "x" and not self.needed):
                continue
            off = difference(seen[name], goal, self.known(name, place, members))
            if off:
                yield (
                    self.named("gradients"),
                    f"the gradient of {name} {off}. {self.about(name)}",
                )
                return

    def named(self, criterion: str) -> str:
        """The criterion that a fault of this case belongs to."""
        return criterion

    @abstractmethod
    def about(self, name: str) -> str:
        """What to look at where y, or one of the gradients, is wrong."""


# The part ----------------------------------------------------------------------------------------


class Column(LinearCase):
    """The whole x, and the rank's rows of the weight [out, in]."""

    def calls(self) -> Calls:
        elements = self.tokens[0] * self.tokens[1] * self.inputs
        return Calls(backward=(elements,) if self.needed else ())

    def cut(self, whole: Tensors, place: int, ranks: int) -> Tensors:
        own = [
            None if one is None else one.tensor_split(ranks, dim)[place]
            for one, dim in ((whole.weight, 0), (whole.bias, 0), (whole.y, -1))
        ]
        weight, bias, y = own
        assert weight is not None
        assert y is not None
        return Tensors(whole.x, weight, bias, y)

    def known(self, name: str, place: int, members: tuple[int, ...]) -> dict[str, Tensor | None]:
        tensors, gradients = self.of_group(members[0])
        ranks = len(members)
        if ranks == 1:
            return {}
        if name == "y":
            return {"y of the dense layer, with all outputs": tensors.y}
        if name != "x":
            own = getattr(self.cut(gradients, place, ranks), name)
            return {"times the number of ranks": own * ranks}
        part = self.cut(gradients, place, ranks).y @ self.cut(tensors, place, ranks).weight
        return {
            "what comes back through this rank's weight alone: a part of a sum": part,
            "the mean over the ranks, not the sum": gradients.x / ranks,
            "times the number of ranks": gradients.x * ranks,
        }

    def work(self, rank: int, world_size: int) -> int:
        """How many multiplications the gradient of this rank's weight takes."""
        members = members_of(self.groups, rank, world_size)
        more, own = members.index(rank) < self.outputs % len(members), self.outputs // len(members)
        return self.tokens[0] * self.tokens[1] * self.inputs * (own + more)

    def about(self, name: str) -> str:
        return {
            "y": "A rank's y is made of its own rows of the weight, and their part of the bias.",
            "x": "All ranks' weights have used the same x: a sum over the ranks, which is there "
            "once its call has been waited for.",
        }.get(
            name,
            "A shard of the weight or the bias is this rank's alone, and its gradient is a sum "
            "over all tokens of all sequences.",
        )


def _advice(half: str, made: Sequence[Event]) -> str:
    if half == "forward":
        return "A rank has all of x, and its outputs stay where they are."
    if not made:
        return "The gradient of x is a part of a sum on each rank."
    return (
        "Only the gradient of x is a sum over ranks, and only where x needs one: "
        "ctx.needs_input_grad[0] says so."
    )


def _exposed(seen: Seen) -> str:
    """Says that the weight's gradient is not computed while the gradient of x travels."""
    for one in seen:
        ranks = one.trial.world_size
        if one.error is not None or ranks == 1:
            continue
        for rank in range(ranks):
            marks = events_of(one, rank, BACKWARD)
            for number, (case, inside) in enumerate(zip(one.trial.cases, marks, strict=False)):
                assert isinstance(case, Column)
                words = _in_turn(inside, case.work(rank, ranks))
                if words:
                    return f"{one.trial.words(number)}: on rank {rank} {words}"
    return ""


def _in_turn(inside: Sequence[Event], due: int) -> str:
    products = [(event.start, event.extra["work"]) for event in inside if event.name == PRODUCT]
    for event in inside:
        if event.name != "all_reduce":
            continue
        # What is complete before it is waited for has blocked nobody, and no wait is noted.
        waits = [start for start, _ in event.extra.get("blocked") or ()]
        end = min(waits, default=math.inf)
        meanwhile = sum(work for start, work in products if event.start <= start <= end)
        later = sum(work for start, work in products if start > end)
        if later >= due / 2 or (later and meanwhile < due):
            return f"the all-reduce is waited for before the weight's gradient is there. {_LATER}"
        if not meanwhile:
            return f"all matrix products come before the all-reduce, none while it runs. {_FIRST}"
        if meanwhile < due:
            return (
                f"what is computed while the all-reduce runs takes {meanwhile:,} multiplications, "
                f"and the weight's gradient {due:,}. Leave that one for then."
            )
    return ""


_LATER = "Start it with async_op=True, and wait last."
_FIRST = (
    "What it adds up is one product; the gradient of the weight is another, which can wait. That "
    "takes a function of your own with both in its backward."
)


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, uneven outputs, with a bias and without, x that needs no gradient, groups."""
    draw = random.Random(seed)

    def case(topic: str = "output", **more: object) -> Column:
        sizes = {"inputs": draw.randint(3, 6), "outputs": draw.choice([5, 7, 9, 11])}
        return Column(draw.randrange(10**6), topic, **{**sizes, **more})  # type: ignore[arg-type]

    return [
        Trial(3, [case(bias=True), case(inputs=40, tokens=(4, 16)), case(needed=False)]),
        Trial(1, [case(bias=True)]),
        Trial(4, [case("group", groups=draw_groups(draw, 4, 2), bias=True)]),
        Trial(4, [case(bias=True)]),
    ]


PART = Part(
    name="06/column_linear",
    level=2,
    title="The column parallel linear layer",
    minutes=18,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule("output", 2, "each rank has its outputs"),
            rule("gradients", 3, "those of the dense layer", "output"),
            rule(
                "calls",
                2,
                "one all-reduce, where x needs a gradient",
                "output",
                "gradients",
                also=wrong_calls(_advice),
            ),
            rule(
                "overlap",
                2,
                "the weight's gradient is computed meanwhile",
                "output",
                "gradients",
                "calls",
                also=_exposed,
            ),
            rule("group", 1, "only its group's ranks count", "output", "gradients"),
        ),
    ),
    reference="dtlab.parallel.tensor.linear._Column",
)
