"""06/g: where the region that ranks share ends. A sum forward, nothing backward."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import Groups, draw_groups, members_of
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit06.passes import (
    FINISHED,
    FORWARD,
    Calls,
    Pass,
    difference,
    go_back,
    own_group,
    wrong_calls,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event


@dataclass(frozen=True)
class Adding(Pass):
    """`fn(part, group)` of a part of each rank's own; then all have the same gradient of y.

    With the topic "kept", what made the part has kept it for backward.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    shape: tuple[int, ...] = (2, 3)

    @property
    def size(self) -> str:
        return f"parts of shape {list(self.shape)}"

    def calls(self) -> Calls:
        return Calls(forward=(self.shape[0] * self.shape[1],))

    def shows(self, criterion: str) -> bool:
        return criterion == "kept" if self.topic == "kept" else super().shows(criterion)

    def part(self, rank: int) -> Tensor:
        """Of the sum, before it is made larger by `_larger`."""
        return self.drawn(*self.shape, salt=rank + 1)

    def gradient(self, first: int) -> Tensor:
        """Of y, on all ranks of the group that begins with `first`."""
        return self.drawn(*self.shape, salt=-1 - first)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        first = members_of(self.groups, rank, world_size)[0]
        return {
            "part": self.part(rank),
            "gradient": self.gradient(first),
            "groups": self.groups,
            "exp": self.topic == "kept",
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        from dtlab.trace import span

        group, leaf = own_group(given["groups"]), given["part"].requires_grad_()
        part = leaf.exp() if given["exp"] else 2 * leaf  # exp keeps what comes out of it
        with finished_calls(*FINISHED, refuse=True) as finished:
            with span(FORWARD):
                y = fn(part, group)
            total = y.detach().clone() if isinstance(y, torch.Tensor) else y
            after = part.detach().clone()
            go_back(y, given["gradient"].clone())
        return {"y": total, "after": after, "part": leaf.grad, "finished": sorted(finished)}

    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        exp = self.topic == "kept"
        parts = [self.part(one).exp() if exp else 2 * self.part(one) for one in members]
        total, many = sum(parts[1:], parts[0]), len(members) > 1
        known: dict[str, Tensor | None] = {
            "this rank's part alone": parts[place],
            "the mean of the parts, not their sum": total / len(members),
        }
        off = difference(seen["y"], total, known if many else {})
        if off:
            yield "sum", f"y {off}. It is the sum of all ranks' parts."
            return
        off = difference(seen["after"], parts[place], {"the sum now": total})
        if off and not self.groups:
            yield "kept", f"the part that was passed in {off}. {_KEPT}"
            if exp:
                return  # its gradient is made of the part
        gradient = self.gradient(members[0]) * (parts[place] if exp else 2)
        known = {
            "times the number of ranks": gradient * len(members),
            "divided by the number of ranks": gradient / len(members),
        }
        off = difference(seen["part"], gradient, known if many else {})
        if off:
            yield "gradient", f"the gradient of a part {off}. {_GRADIENT}"


_KEPT = (
    "Whoever made it may need it for backward: add up in a tensor of your own, a copy of the part."
)
_GRADIENT = (
    "y grows by as much as a part of it grows, and every rank has the gradient of y already: "
    "each part gets just that."
)


def _advice(half: str, made: Sequence[Event]) -> str:
    if half == "backward":
        return "Every rank has the gradient of y already."
    return "One dist.all_reduce leaves the sum on every rank."


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, one with larger parts, one whose parts are kept for backward, two groups."""
    draw = random.Random(seed)

    def case(topic: str = "sum", groups: Groups = (), large: int = 1) -> Adding:
        shape = (large * draw.randint(2, 5), draw.randint(3, 6))
        dtype = "float64" if large == 1 else "float32"
        return Adding(draw.randrange(10**6), topic, groups, dtype, shape)

    return [
        Trial(3, [case(), case(large=200)]),
        Trial(1, [case()]),
        Trial(2, [case("kept")]),
        Trial(4, [case("group", draw_groups(draw, 4, 2))]),
    ]


PART = Part(
    name="06/g",
    level=2,
    title="g, where it ends",
    minutes=8,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule("sum", 2, "y is the sum of all ranks' parts"),
            rule("gradient", 2, "each part gets the gradient of y", "sum"),
            rule("kept", 1, "the part stays as it was", "sum"),
            rule(
                "calls",
                1,
                "one all-reduce forward, nothing backward",
                "sum",
                "gradient",
                also=wrong_calls(_advice),
            ),
            rule("group", 1, "only its group's ranks count", "sum", "gradient"),
        ),
    ),
    reference="dtlab.parallel.tensor.regions.reduce_from_region",
)
