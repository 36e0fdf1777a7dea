"""06/f: where the region that ranks share begins. Nothing forward, a sum backward."""

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
class Copying(Pass):
    """`fn(x, group)` of the same x on all ranks, whose gradients differ by rank.

    What it gives is added to something else, as on a residual stream: both get the same tensor
    as their gradient.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    shape: tuple[int, ...] = (2, 3)

    @property
    def size(self) -> str:
        return f"x of shape {list(self.shape)}"

    def calls(self) -> Calls:
        return Calls(backward=(self.shape[0] * self.shape[1],))

    def gradient(self, rank: int) -> Tensor:
        """What a rank's own weights give back."""
        return self.drawn(*self.shape, salt=rank + 1)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        first = members_of(self.groups, rank, world_size)[0]
        return {
            "x": self.drawn(*self.shape, salt=-1 - first),
            "gradient": self.gradient(rank),
            "groups": self.groups,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        from dtlab.trace import span

        group = own_group(given["groups"])
        x, beside = given["x"].requires_grad_(), torch.zeros_like(given["x"]).requires_grad_()
        hidden, other = 2 * x, 3 * beside  # made before f is, so they go back after it
        with finished_calls(*FINISHED, refuse=True) as finished:
            with span(FORWARD):
                inside = fn(hidden, group)
            tensor = isinstance(inside, torch.Tensor) and inside.shape == x.shape
            go_back(inside + other if tensor else None, given["gradient"].clone())
        return {
            "inside": inside.detach().clone() if tensor else inside,
            "hidden": hidden.detach().clone(),
            "x": x.grad,
            "beside": beside.grad,
            "finished": sorted(finished),
        }

    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        x = 2 * self.drawn(*self.shape, salt=-1 - members[0])
        known: dict[str, Tensor | None] = {"the sum of all ranks' x": x * len(members)}
        for got in (seen["inside"], seen["hidden"]):
            off = difference(got, x, known if len(members) > 1 else {})
            if off:
                yield "forward", f"what comes out {off}. In forward f gives x as it is."
                return
        own = [2 * self.gradient(rank) for rank in members]
        wanted = sum(own[1:], own[0])
        known = _known(own, place)
        if self.groups:
            every = [2 * self.gradient(rank) for group in self.groups for rank in group]
            known["the sum over all ranks, those outside the group too"] = sum(every[1:], every[0])
        off = difference(seen["x"], wanted, known)
        if off:
            yield "gradient", f"the gradient of x {off}. {_SUM}"
        off = difference(seen["beside"], 3 * self.gradient(members[place]), {})
        if off and not self.groups:
            yield "kept", f"the gradient of what is added to f(x) {off}. {_OTHERS}"


def _known(own: Sequence[Tensor], place: int) -> dict[str, Tensor | None]:
    total = sum(own[1:], own[0])
    if len(own) == 1:
        return {}
    return {
        "what this rank has found: a part of a sum": own[place],
        "the mean over the ranks, not the sum": total / len(own),
        "the sum, times the number of ranks": total * len(own),
    }


_SUM = (
    "Every rank used the same x, so what they find adds up. A call with async_op=True is to be "
    "waited for."
)
_OTHERS = (
    "Autograd hands the same tensor to all that were added up. You add into it in place: take a "
    "copy first."
)


def _advice(half: str, made: Sequence[Event]) -> str:
    if half == "forward":
        return "All ranks have x already."
    return "One dist.all_reduce leaves the sum on every rank."


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, one of them with a larger x, and two groups."""
    draw = random.Random(seed)

    def case(topic: str = "gradient", groups: Groups = (), large: int = 1) -> Copying:
        shape = (large * draw.randint(2, 5), draw.randint(3, 6))
        dtype = "float64" if large == 1 else "float32"
        return Copying(draw.randrange(10**6), topic, groups, dtype, shape)

    return [
        Trial(3, [case(), case(large=200)]),
        Trial(1, [case()]),
        Trial(2, [case()]),
        Trial(4, [case("group", draw_groups(draw, 4, 2))]),
    ]


PART = Part(
    name="06/f",
    level=2,
    title="f, where the shared region begins",
    minutes=10,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("forward", 1, "x comes out as it is"),
            rule("gradient", 3, "its gradient is the sum over the ranks", "forward"),
            rule("kept", 1, "others' gradients stay as they are", "gradient"),
            rule(
                "calls",
                1,
                "nothing forward, one all-reduce backward",
                "forward",
                "gradient",
                also=wrong_calls(_advice),
            ),
            rule("group", 1, "only its group's ranks count", "forward", "gradient"),
        ),
    ),
    reference="dtlab.parallel.tensor.regions.copy_to_region",
)
