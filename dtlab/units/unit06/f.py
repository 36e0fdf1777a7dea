"""06/f: the operator f at the start of a shared region: identity forward, all-reduce backward."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.groups import draw_groups, members_of, process_group
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit06.passes import FINISHED, Pass, compare, wrong_calls

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Region", "trials_of"]

# Cases of f and of g, its conjugate -------------------------------------------------------------


@dataclass(frozen=True)
class Region(Pass):
    """A call of `fn(x, group)`, where `x` is 2 * leaf, or exp(leaf) with the topic "kept".

    The output is added to another tensor, as on a residual stream, so that autograd passes the
    same gradient tensor to both. Either the leaf or the gradient is the `same` on all ranks, and
    the other differs. exp saves its output for backward, so the call must not change it.
    """

    allowed: ClassVar[tuple[str, ...]] = ()
    same_leaf: ClassVar[bool] = True

    shape: tuple[int, ...] = (2, 3)

    @property
    def size(self) -> str:
        return f"x of shape {list(self.shape)}"

    def differing(self, rank: int) -> Tensor:
        """The leaf or the gradient of a rank, whichever differs by rank."""
        return self.drawn(*self.shape, salt=rank + 1)

    def same(self, first: int) -> Tensor:
        """The leaf or gradient that all ranks of the group have; `first` is its first rank."""
        return self.drawn(*self.shape, salt=-1 - first)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        same = self.same(members_of(self.groups, rank, world_size)[0])
        differing, exp = self.differing(rank), self.topic == "kept"
        leaf, back = (same, differing) if self.same_leaf else (differing, same)
        return {"leaf": leaf, "back": back, "exp": exp, "groups": self.groups}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        from dtlab.units.unit06.on_ranks import forward_and_backward, gradients_of

        group, leaf = process_group(given["groups"]), given["leaf"].requires_grad_()
        addend = torch.zeros_like(leaf).requires_grad_()
        x, other = leaf.exp() if given["exp"] else 2 * leaf, 3 * addend  # backward after fn's
        with finished_calls(*FINISHED, refuse=True) as finished:
            y = forward_and_backward(lambda: fn(x, group), given["back"].clone(), other)
        return {
            "the output": y,
            "the input after the call": x.detach(),
            **gradients_of({"x": leaf, "the other summand": addend}),
            "finished": sorted(finished),
        }


def trials_of(kind: type[Region], on_two: str) -> Callable[[int], list[Trial]]:
    """Makes a function that draws trials on 1 to 4 ranks, with a large x and with two groups.

    The trial on two ranks has the topic `on_two`.
    """

    def trials(seed: int) -> list[Trial]:
        draw = random.Random(seed)

        def case(topic: str = kind.main, large: int = 1, **more: Any) -> Region:
            shape = (large * draw.randint(2, 5), draw.randint(3, 6))
            dtype = "float64" if large == 1 else "float32"
            return kind(draw.randrange(10**6), topic, dtype=dtype, shape=shape, **more)

        return [
            Trial(3, [case(), case(large=200)]),
            Trial(1, [case()]),
            Trial(2, [case(on_two)]),
            Trial(4, [case("group", groups=draw_groups(draw, 4, 2))]),
        ]

    return trials


# The part ---------------------------------------------------------------------------------------


class Copying(Region):
    """A case with the same x on all ranks, and gradients that differ by rank."""

    main = "gradient"
    hints = ("All ranks already have x.", "One dist.all_reduce leaves the sum on every rank.")

    @property
    def sums(self) -> tuple[int, int]:
        return 0, prod(self.shape)

    def summed(self, ranks: Sequence[int]) -> Tensor:
        """The sum of these ranks' gradients of x."""
        parts = [2 * self.differing(rank) for rank in ranks]
        return sum(parts[1:], parts[0])

    def wrong(self, result: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        ranks, x = len(members), 2 * self.same(members[0])
        for name in ("the output", "the input after the call"):
            known = {"is the sum of all ranks' x": x * ranks}
            yield from compare(result, name, "forward", x, "In forward, f returns x.", known)
        total = self.summed(members)
        known = {
            "is only this rank's part of the sum over ranks": self.summed([members[place]]),
            "is the mean over the ranks, not the sum": total / ranks,
            "is the sum, times the number of ranks": total * ranks,
        }
        if self.groups:
            every = self.summed([rank for group in self.groups for rank in group])
            known["is the sum over all ranks, including those outside the group"] = every
        yield from compare(result, "the gradient of x", "gradient", total, _SUM, known)
        if not self.groups:
            name, addend = "the gradient of the other summand", 3 * self.differing(members[place])
            yield from compare(result, name, "kept", addend, _OTHERS)


_SUM = (
    "Every rank used the same x, so sum the gradients of all ranks. If you use async_op=True, "
    "wait for the call."
)
_OTHERS = (
    "Autograd passes the same gradient tensor to all summands. You change it in place: make a "
    "copy first."
)

PART = Part(
    name="06/f",
    level=2,
    title="f, where the shared region begins",
    minutes=10,
    difficulty=2,
    check=Check(
        trials=trials_of(Copying, "gradient"),
        rules=(
            rule("forward", 1, "forward returns x unchanged"),
            rule("gradient", 3, "its gradient is the sum over the ranks", "forward"),
            rule("kept", 1, "gradients of other tensors are unchanged", "gradient"),
            rule(
                "calls",
                1,
                "one all-reduce, only in backward",
                "forward",
                "gradient",
                also=wrong_calls,
            ),
            rule("group", 1, "right on groups of some of the ranks", "forward", "gradient"),
        ),
    ),
    reference="dtlab.simple.CopyToRanks",
)
