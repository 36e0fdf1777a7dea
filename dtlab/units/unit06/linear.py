"""Cases of the two linear layers: this rank's shards of a dense layer, which one process has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dtlab.grading.checking.faults import Fault, Noted
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.groups import members_of
from dtlab.units.unit06.passes import (
    FINISHED,
    FORWARD,
    PAIR,
    Pass,
    difference,
    go_back,
    own_group,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LinearCase", "Tensors"]

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
        """See `Pass`."""
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
        """See `Case`."""
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
        """See `Case`."""
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
        """See `Pass`."""
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
