"""06/column_linear: each rank computes some outputs, from all inputs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Seen, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.trials import Trial
from dtlab.grading.checking.unseen import inside_marks
from dtlab.grading.parts import Part
from dtlab.units.unit06.passes import (
    BACKWARD,
    FINISHED,
    PAIR,
    PRODUCT,
    Layer,
    Tensors,
    wrong_calls,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = ["PART", "Column", "LinearCase"]


@dataclass(frozen=True)
class LinearCase(Layer):
    """`fn(x, weight, bias, group)` on this rank's shards, and backward from y.

    Where not `needed`, x needs no gradient.
    """

    inputs: int = 8
    outputs: int = 8
    bias: bool = False
    needed: bool = True
    tokens: tuple[int, int] = (2, 3)

    @property
    def size(self) -> str:
        more = [", with a bias"] * self.bias + [", x needs no gradient"] * (not self.needed)
        return f"weight [{self.outputs}, {self.inputs}]{''.join(more)}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {"x": (*self.tokens, self.inputs), "weight": (self.outputs, self.inputs)}
        return {**shapes, "bias": (self.outputs,)} if self.bias else shapes

    def dense(self, tensors: Tensors) -> Tensor:
        import torch.nn.functional as F

        return F.linear(tensors["x"], tensors["weight"], tensors.get("bias"))

    def whole(self, first: int) -> Tensors:
        found = super().whole(first)
        if not self.needed:
            del found["the gradient of x"]
        return found

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        own = self.own(rank, world_size)
        tensors = {name: own.get(name) for name in ("x", "weight", "bias")}
        return {"tensors": tensors, "back": own["back"], "needed": self.needed,
                "groups": self.groups}  # fmt: skip

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit06.on_ranks import forth_and_back, gradients_of, own_group

        group, tensors = own_group(given["groups"]), given["tensors"]
        for name, one in tensors.items():
            if one is not None and (name != "x" or given["needed"]):
                one.requires_grad_()
        with finished_calls(*FINISHED, refuse=True, allowed=PAIR) as finished:
            y = forth_and_back(lambda: fn(*tensors.values(), group), given["back"])
        return {"y": y, **gradients_of(tensors), "finished": sorted(finished)}


# The part ----------------------------------------------------------------------------------------


class Column(LinearCase):
    """The whole x, and the rank's rows of the weight [out, in]."""

    dims: ClassVar = {"weight": 0, "bias": 0, "y": -1, "back": -1}
    hints = (
        "A rank has all of x, and its outputs stay where they are.",
        "Only the gradient of x is a sum over ranks, and only where x needs one: "
        "ctx.needs_input_grad[0] says so.",
    )

    @property
    def sums(self) -> tuple[int, int]:
        return 0, math.prod(self.tokens) * self.inputs if self.needed else 0

    def known(self, name: str, whole: Tensors, own: Tensors, ranks: int) -> Tensors:
        if name == "y":
            return {"y of the dense layer, with all outputs": whole["y"]}
        known = super().known(name, whole, own, ranks)
        if name != "the gradient of x":
            return known
        part = own["back"] @ own["weight"]
        return {
            "what comes back through this rank's weight alone: a part of a sum": part,
            "the mean over the ranks, not the sum": own[name] / ranks,
            **known,
        }

    def about(self, name: str) -> str:
        return {
            "y": "A rank's y is made of its own rows of the weight, and their part of the bias.",
            "the gradient of x": "All ranks' weights have used the same x: a sum over the ranks, "
            "which is there once its call has been waited for.",
        }.get(
            name, "A shard has a gradient of its rank's alone, over all tokens of all sequences."
        )


def _exposed(seen: Seen) -> str:
    """Says that the weight's gradient is not computed while the gradient of x travels."""
    for one in seen:
        ranks = one.trial.world_size
        for rank in range(ranks if ranks > 1 else 0):
            marks = inside_marks(one.trace, rank, BACKWARD)
            for number, (case, inside) in enumerate(zip(one.trial.cases, marks, strict=False)):
                assert isinstance(case, Column)
                due = math.prod(case.tokens) * case.own(rank, ranks)["weight"].numel()
                words = _in_turn(inside, due)
                if words:
                    return f"{one.trial.words(number)}: on rank {rank} {words}"
    return ""


def _in_turn(inside: Sequence[Event], due: int) -> str:
    """What is wrong if the weight's gradient takes `due` multiplications."""
    products = [(event.start, event.extra["work"]) for event in inside if event.name == PRODUCT]
    for event in inside:
        if event.name != "all_reduce":
            continue
        # What is complete before it is waited for has blocked nobody, and no wait is noted.
        end = min((start for start, _ in event.extra.get("blocked") or ()), default=math.inf)
        meanwhile = sum(work for start, work in products if event.start <= start <= end)
        later = sum(work for start, work in products if start > end)
        if later >= due / 2 or (later and meanwhile < due):
            return (
                "the all-reduce is waited for before the weight's gradient is there. Start it "
                "with async_op=True, and wait last."
            )
        if not meanwhile:
            return (
                "all matrix products come before the all-reduce, none while it runs. What it adds "
                "up is one product; the gradient of the weight is another, which can wait. That "
                "takes a function of your own with both in its backward."
            )
        if meanwhile < due:
            return (
                f"what is computed while the all-reduce runs takes {meanwhile:,} multiplications, "
                f"and the weight's gradient {due:,}. Leave that one for then."
            )
    return ""


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, uneven outputs, with a bias and without, x that needs no gradient, groups."""
    draw = random.Random(seed)

    def case(topic: str = "output", **more: Any) -> Column:
        sizes = {"inputs": draw.randint(3, 6), "outputs": draw.choice([5, 7, 9, 11])}
        return Column(draw.randrange(10**6), topic, **{**sizes, **more})

    return [
        Trial(3, [case(bias=True), case(inputs=40, tokens=(4, 16)), case(needed=False)]),
        Trial(1, [case(bias=True)]),
        Trial(4, [case("group", groups=draw_groups(draw, 4, 2), bias=True)]),
        Trial(4, [case(bias=True)]),
    ]


_RIGHT = ("output", "gradients")

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
                "calls", 2, "one all-reduce, where x needs a gradient", *_RIGHT, also=wrong_calls
            ),
            rule("overlap", 2, "with the weight's gradient", *_RIGHT, "calls", also=_exposed),
            rule("group", 1, "only its group's ranks count", *_RIGHT),
        ),
    ),
    reference="dtlab.parallel.tensor.linear._Column",
)
