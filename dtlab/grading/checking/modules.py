"""The modules that checks train, by kind. Importing this file loads PyTorch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dtlab.ranks.emulate.compute import compute
from dtlab.trace import span

__all__ = ["KINDS", "Chain", "State", "filled", "numbers", "tensors_of"]

State = list[Tensor]  # of a module: its parameters, then its buffers


class Chain(nn.Module):
    """Linear layers with tanh between them."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """[n, sizes[0]] to [n, sizes[-1]]."""
        for place, layer in enumerate(self.layers):
            x = layer(self.between(x, place)) if place else layer(x)
        return x

    def between(self, x: Tensor, place: int) -> Tensor:
        """What stands in front of a layer that is not the first."""
        return x.tanh()


class Skipping(Chain):
    """The first layer is frozen, and nobody uses the one called `spare`."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.layers[0].requires_grad_(False)
        self.spare = nn.Linear(3, 2)


class Frozen(Chain):
    """The second layer is frozen."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.layers[1].requires_grad_(False)


class Tied(Chain):
    """The second and the last layer share their weights: it takes sizes (a, b, b, ..., b, b)."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.layers[-1].weight = self.layers[1].weight


class Mixed(Chain):
    """The second layer computes in float64."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.layers[1].double()

    def between(self, x: Tensor, place: int) -> Tensor:
        """Also turns the dtype to the layer's own."""
        weight: Tensor = self.layers[place].weight  # type: ignore[assignment]
        return x.to(weight.dtype).tanh()


class HeadFirst(Chain):
    """The last layer is defined before the others, so its gradient comes first all the same."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        *body, head = self.layers
        del self.layers
        self.head, self.body = head, nn.ModuleList(body)

    def forward(self, x: Tensor) -> Tensor:
        """As `Chain`."""
        for layer in self.body:
            x = layer(x).tanh()
        y: Tensor = self.head(x)
        return y


class Buffered(Frozen):
    """With buffers: one that is used, and one that counts and is not saved."""

    centre: Tensor

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.register_buffer("centre", torch.zeros(sizes[0]))
        count = torch.zeros((), dtype=torch.int64)
        self.register_buffer("count", count, persistent=False)  # not in `state_dict`

    def forward(self, x: Tensor) -> Tensor:
        """As `Chain`, of what is left of the inputs without the centre."""
        return super().forward(x - self.centre)


class Branches(nn.Module):
    """Two branches that are added up; where `turned`, the right one is computed first.

    Gradients arrive in the reverse order: so ranks may differ in it.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.left, self.right = Chain(sizes), Chain(sizes)
        self.turned = False

    def forward(self, x: Tensor) -> Tensor:
        """[n, sizes[0]] to [n, sizes[-1]]."""
        order = (self.right, self.left) if self.turned else (self.left, self.right)
        one, other = (branch(x) for branch in order)
        total: Tensor = one + other
        return total


class _Mark(torch.autograd.Function):
    """Stands between two layers; in backward it marks that gradients go on to the layer before."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        with span("layer"):
            compute(0.001)
        return gradient


class Marked(Chain):
    """Its backward pass tells, in the trace, when it goes on to the layer before."""

    def between(self, x: Tensor, place: int) -> Tensor:
        """With a mark in it."""
        marked: Tensor = _Mark.apply(x.tanh())  # type: ignore[no-untyped-call]
        return marked


KINDS: dict[str, type[nn.Module]] = {
    "chain": Chain,
    "frozen": Frozen,
    "skipping": Skipping,
    "tied": Tied,
    "mixed": Mixed,
    "buffered": Buffered,
    "head first": HeadFirst,
    "branches": Branches,
    "marked": Marked,
}


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, then buffers, by name; a tied parameter comes once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def numbers(module: nn.Module, seed: int) -> State:
    """Other contents for all its tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 1000, one.shape, generator=generator)
        if one.dtype == torch.int64
        else torch.randn(one.shape, generator=generator, dtype=one.dtype) * 0.6
        for one in tensors_of(module).values()
    ]


def filled(kind: str, sizes: tuple[int, ...], state: State, turned: bool = False) -> nn.Module:
    """A model of this kind with these contents; branches may be `turned`."""
    module = KINDS[kind](sizes)
    if isinstance(module, Branches):
        module.turned = turned
    for tensor, content in zip(tensors_of(module).values(), state, strict=True):
        tensor.detach().copy_(content)
    return module
