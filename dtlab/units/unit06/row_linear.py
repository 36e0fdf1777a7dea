"""06/row_linear: each rank has some inputs, and a part of every output."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import rule
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit06.column_linear import LinearCase, Tensors
from dtlab.units.unit06.passes import Calls, wrong_calls

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event


class Row(LinearCase):
    """The rank's features of x, its columns of the weight [out, in], and the whole bias.

    All faults of a case with a bias belong to the criterion "bias".
    """

    @property
    def apart(self) -> tuple[str, ...]:
        return ("group", "bias")

    def calls(self) -> Calls:
        return Calls(forward=(self.tokens[0] * self.tokens[1] * self.outputs,))

    def cut(self, whole: Tensors, place: int, ranks: int) -> Tensors:
        x, weight = (one.tensor_split(ranks, -1)[place] for one in (whole.x, whole.weight))
        return Tensors(x, weight, whole.bias, whole.y)

    def known(self, name: str, place: int, members: tuple[int, ...]) -> dict[str, Tensor | None]:
        (tensors, gradients), ranks = self.of_group(members[0]), len(members)
        if ranks == 1:
            return {}
        own = self.cut(tensors, place, ranks)
        if name != "y":
            gradient = getattr(self.cut(gradients, place, ranks), name)
            return {
                "times the number of ranks": gradient * ranks,
                "divided by the number of ranks": gradient / ranks,
            }
        product = own.x @ own.weight.t()
        bias = 0 if tensors.bias is None else tensors.bias
        return {
            "what this rank's inputs give alone: a part of a sum": product + bias,
            "the sum, with the bias once for every rank": tensors.y + (ranks - 1) * bias,
            "the sum, without the bias": tensors.y - bias,
            "the mean over the ranks, not the sum": (tensors.y - bias) / ranks + bias,
        }

    def about(self, name: str) -> str:
        return {
            "y": "y is the sum of what all ranks' inputs give, and then the bias, once.",
            "bias": "The bias is whole on every rank, and each steps it for itself: all need its "
            "whole gradient, which they have.",
        }.get(name, "What has gone into a sum has the gradient of the sum.")


def _advice(half: str, made: Sequence[Event]) -> str:
    if half == "backward":
        return "All ranks have the gradient of y, and a rank's x and weight are its own."
    return "One dist.all_reduce leaves the sum on every rank."


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, uneven inputs, with a bias and without, and two groups."""
    draw = random.Random(seed)

    def case(topic: str = "output", **more: object) -> Row:
        sizes = {"inputs": draw.choice([5, 7, 9, 11]), "outputs": draw.randint(3, 6)}
        return Row(draw.randrange(10**6), topic, **{**sizes, **more})  # type: ignore[arg-type]

    return [
        Trial(3, [case(), case(outputs=40, tokens=(4, 16))]),
        Trial(1, [case()]),
        Trial(2, [case("bias", bias=True)]),
        Trial(4, [case("group", groups=draw_groups(draw, 4, 2))]),
    ]


PART = Part(
    name="06/row_linear",
    level=2,
    title="The row parallel linear layer",
    minutes=9,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("output", 2, "all ranks have the whole y"),
            rule("gradients", 2, "those of the dense layer", "output"),
            rule("bias", 2, "the bias counts once", "output", "gradients"),
            rule(
                "calls",
                1,
                "one all-reduce of y forward, none backward",
                "output",
                "gradients",
                also=wrong_calls(_advice),
            ),
            rule("group", 1, "only its group's ranks count", "output", "gradients"),
        ),
    ),
    reference="dtlab.parallel.tensor.linear.naive_row_linear",
)
