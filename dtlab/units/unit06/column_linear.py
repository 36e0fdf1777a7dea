"""06/column_linear: each rank computes some outputs, from all inputs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.faults import judge
from dtlab.grading.checking.groups import draw_groups, members_of
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit06.linear import LinearCase, Tensors
from dtlab.units.unit06.passes import BACKWARD, PRODUCT, Calls, events_of, wrong_calls

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = ["PART"]


class Column(LinearCase):
    """The whole x, and the rank's rows of the weight [out, in]."""

    def calls(self) -> Calls:
        """See `Pass`."""
        elements = self.tokens[0] * self.tokens[1] * self.inputs
        return Calls(backward=(elements,) if self.needed else ())

    def cut(self, whole: Tensors, place: int, ranks: int) -> Tensors:
        """See `LinearCase`."""
        own = [
            None if one is None else one.tensor_split(ranks, dim)[place]
            for one, dim in ((whole.weight, 0), (whole.bias, 0), (whole.y, -1))
        ]
        weight, bias, y = own
        assert weight is not None
        assert y is not None
        return Tensors(whole.x, weight, bias, y)

    def known(self, name: str, place: int, members: tuple[int, ...]) -> dict[str, Tensor | None]:
        """See `LinearCase`."""
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
        """See `LinearCase`."""
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
            Rule("output", 2, judge("output", "each rank has its outputs")),
            Rule("gradients", 3, judge("gradients", "those of the dense layer", "output")),
            Rule(
                "calls",
                2,
                judge(
                    "calls",
                    "one all-reduce, where x needs a gradient",
                    "output",
                    "gradients",
                    also=wrong_calls(_advice),
                ),
            ),
            Rule(
                "overlap",
                2,
                judge(
                    "overlap",
                    "the weight's gradient is computed meanwhile",
                    "output",
                    "gradients",
                    "calls",
                    also=_exposed,
                ),
            ),
            Rule(
                "group", 1, judge("group", "only its group's ranks count", "output", "gradients")
            ),
        ),
    ),
    reference="dtlab.parallel.parallel_linear._Column",
)
