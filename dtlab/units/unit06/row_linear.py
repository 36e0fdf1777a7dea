"""06/row_linear: the row parallel linear layer; each rank has some of the inputs."""

from __future__ import annotations

import math
import random
from typing import Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.groups import draw_groups
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit06.column_linear import LinearCase
from dtlab.units.unit06.passes import Tensors, wrong_calls

_SIZES_OF_X = (
    "Tensors of these sizes are a rank's part of x in forward, or its gradient in backward, where "
    "f calls the all-reduce. These features of x belong to one rank, so neither is a sum over "
    "ranks. Of which tensor does each rank have a part of the sum: do you need f or g?"
)


class Row(LinearCase):
    """A call with the rank's features of x, its columns of the weight [out, in], and the bias.

    All faults of a case with a bias belong to the criterion "bias".
    """

    dims: ClassVar = {"x": -1, "weight": -1}
    apart = ("group", "bias")
    hints = (
        "One dist.all_reduce leaves the sum on every rank.",
        "All ranks have the gradient of y, and only this rank uses its x and weight.",
    )

    @property
    def sums(self) -> tuple[int, int]:
        return math.prod(self.tokens) * self.outputs, 0

    def known(self, name: str, whole: Tensors, local: Tensors, ranks: int) -> dict[str, Any]:
        if name != "y":
            return super().known(name, whole, local, ranks)
        bias = local["bias"] if self.bias else 0
        return {
            "is only this rank's part of the sum over ranks": self.dense(local),
            "is the sum, with the bias added once per rank": local["y"] + (ranks - 1) * bias,
            "is the sum, without the bias": local["y"] - bias,
            "is the mean over the ranks, not the sum": (local["y"] - bias) / ranks + bias,
        }

    def advice(self, trouble: str) -> str:
        if "do not match" in trouble and f"[{', '.join(map(str, self.tokens))}, " in trouble:
            return _SIZES_OF_X
        return super().advice(trouble)

    def about(self, name: str) -> str:
        return {
            "y": "Sum the products of all ranks, then add the bias once.",
            "the gradient of bias": "Every rank has the whole bias and updates it itself, so it "
            "needs the whole gradient, which it already has.",
        }.get(name, "The gradient of each part of a sum is the gradient of the sum.")


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks, with uneven inputs, with and without a bias, and with two groups."""
    draw = random.Random(seed)

    def case(topic: str = "output", **more: Any) -> Row:
        sizes = {"inputs": draw.choice([5, 7, 9, 11]), "outputs": draw.randint(3, 6)}
        return Row(draw.randrange(10**6), topic, **{**sizes, **more})

    return [
        Trial(3, [case(), case(outputs=40, tokens=(4, 16))]),
        Trial(1, [case()]),
        Trial(2, [case("bias", bias=True)]),
        Trial(4, [case("group", groups=draw_groups(draw, 4, 2))]),
    ]


_RIGHT = ("output", "gradients")

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
            rule("gradients", 2, "gradients are those of the dense layer", "output"),
            rule("bias", 2, "the bias is added once", *_RIGHT),
            rule("calls", 1, "one all-reduce, of y in forward", *_RIGHT, also=wrong_calls),
            rule("group", 1, "right on groups of some of the ranks", *_RIGHT),
        ),
    ),
    reference="dtlab.simple.row_linear",
)
