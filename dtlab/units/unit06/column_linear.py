"""06/column_linear: the column parallel linear layer; each rank computes some of the outputs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Seen, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.groups import draw_groups, process_group
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.unseen import inside_marks
from dtlab.checks.parts import Part
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


_WITHOUT_BIAS = "NoneType", "gradient different than None"  # in errors of code that needs a bias


@dataclass(frozen=True)
class LinearCase(Layer):
    """A call of `fn(x, weight, bias, group)` on this rank's shards, and backward from y.

    If `needed` is False, x needs no gradient.
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

    def advice(self, trouble: str) -> str:
        if self.bias or not any(words in trouble for words in _WITHOUT_BIAS):
            return ""
        return "Here bias is None: add nothing to the outputs, and return None as its gradient."

    def whole(self, first: int) -> Tensors:
        tensors = super().whole(first)
        if not self.needed:
            del tensors["the gradient of x"]
        return tensors

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        local = self.local(rank, world_size)
        tensors = {name: local.get(name) for name in ("x", "weight", "bias")}
        return {"tensors": tensors, "back": local["back"], "needed": self.needed,
                "groups": self.groups}  # fmt: skip

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit06.on_ranks import forward_and_backward, gradients_of

        group, tensors = process_group(given["groups"]), given["tensors"]
        for name, tensor in tensors.items():
            if tensor is not None and (name != "x" or given["needed"]):
                tensor.requires_grad_()
        with finished_calls(*FINISHED, refuse=True, allowed=PAIR) as finished:
            y = forward_and_backward(lambda: fn(*tensors.values(), group), given["back"])
        return {"y": y, **gradients_of(tensors), "finished": sorted(finished)}


# The part ----------------------------------------------------------------------------------------


class Column(LinearCase):
    """A call with the whole x and the rank's rows of the weight [out, in]."""

    dims: ClassVar = {"weight": 0, "bias": 0, "y": -1, "back": -1}
    hints = (
        "A rank has all of x, and keeps only its own outputs.",
        "Only the gradient of x is a sum over ranks, and only if x needs one: "
        "see ctx.needs_input_grad[0].",
    )

    @property
    def sums(self) -> tuple[int, int]:
        return 0, math.prod(self.tokens) * self.inputs if self.needed else 0

    def known(self, name: str, whole: Tensors, local: Tensors, ranks: int) -> dict[str, Any]:
        if name == "y":
            return {"is that of the dense layer, with all outputs": whole["y"]}
        known = super().known(name, whole, local, ranks)
        if name != "the gradient of x":
            return known
        part = local["back"] @ local["weight"]
        return {
            "is only this rank's part of the sum over ranks": part,
            "is the mean over the ranks, not the sum": local[name] / ranks,
            **known,
        }

    def about(self, name: str) -> str:
        return {
            "y": "Compute a rank's y from its own rows of the weight and its part of the bias.",
            "the gradient of x": "All ranks used the same x, so sum over the ranks, and wait for "
            "the call before you read the sum.",
        }.get(name, "The gradient of a shard belongs to its rank only; it sums over all tokens.")


def _exposed(runs: Seen) -> str:
    """A message if a weight's gradient is not computed during the all-reduce; empty otherwise."""
    for run in runs:
        ranks = run.trial.world_size
        for rank in range(ranks if ranks > 1 else 0):
            marks = inside_marks(run.trace, rank, BACKWARD)
            for number, (case, inside) in enumerate(zip(run.trial.cases, marks, strict=False)):
                assert isinstance(case, Column)
                due = math.prod(case.tokens) * case.local(rank, ranks)["weight"].numel()
                message = _in_turn(inside, due)
                if message:
                    return f"{run.trial.words(number)}: on rank {rank} {message}"
    return ""


def _in_turn(inside: Sequence[Event], due: int) -> str:
    """What is wrong with the overlap; the weight's gradient takes `due` multiplications."""
    products = [(event.start, event.extra["work"]) for event in inside if event.name == PRODUCT]
    for event in inside:
        if event.name != "all_reduce":
            continue
        # If an operation is complete before wait() is called, no wait is recorded.
        end = min((start for start, _ in event.extra.get("blocked") or ()), default=math.inf)
        during = sum(work for start, work in products if event.start <= start <= end)
        later = sum(work for start, work in products if start > end)
        if later >= due / 2 or (later and during < due):
            return (
                "you wait for the all-reduce before you compute the weight's gradient. Start it "
                "with async_op=True, and wait last."
            )
        if not during:
            return (
                "all matrix products come before the all-reduce, none while it runs. The "
                "all-reduce needs only the product for x; compute the weight's gradient while it "
                "runs. For that, write an autograd function with both in its backward."
            )
        if during < due:
            return (
                f"the products during the all-reduce take {during:,} multiplications, and the "
                f"weight's gradient takes {due:,}. Compute that gradient during the all-reduce."
            )
    return ""


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks: uneven outputs, a bias or none, x without gradient, two groups."""
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
            rule("gradients", 3, "gradients are those of the dense layer", "output"),
            rule("calls", 2, "one all-reduce, if x needs a gradient", *_RIGHT, also=wrong_calls),
            rule(
                "overlap",
                2,
                "the weight's gradient is computed during the all-reduce",
                *_RIGHT,
                "calls",
                also=_exposed,
            ),
            rule("group", 1, "right on groups of some of the ranks", *_RIGHT),
        ),
    ),
    reference="dtlab.simple.column_linear",
)
