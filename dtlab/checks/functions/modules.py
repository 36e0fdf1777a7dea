"""The modules that checks train, by kind. Imports PyTorch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dtlab.ranks.emulate.compute import compute
from dtlab.trace import span

__all__ = ["KINDS", "Chain", "State", "filled", "numbers", "tensors_of"]

State = list[Tensor]  # the parameters of a module, then its buffers


class Chain(nn.Module):
    """Linear layers with tanh between them."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [n, sizes[0]] to [n, sizes[-1]]."""
        for place, layer in enumerate(self.layers):
            x = layer(self.between(x, place)) if place else layer(x)
        return x

    def between(self, x: Tensor, place: int) -> Tensor:
        """Computes the input of a layer, other than the first, from the output before it."""
        return x.tanh()


class Skipping(Chain):
    """A chain whose first layer is frozen, with an unused layer `spare`."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.layers[0].requires_grad_(False)
        self.spare = nn.Linear(3, 2)


class Shifted(Chain):
    """A chain that has one more parameter beside those of its layers."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.shift = nn.Parameter(torch.zeros(sizes[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """See `Chain`; adds the shift to the outputs."""
        return super().forward(x) + self.shift


class Frozen(Chain):
    """A chain whose second layer is frozen."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.layers[1].requires_grad_(False)


class Tied(Chain):
    """A chain whose second and last layer share their weights; all sizes but the first are equal.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.layers[-1].weight = self.layers[1].weight


class Mixed(Chain):
    """A chain whose second layer computes in float64."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.layers[1].double()

    def between(self, x: Tensor, place: int) -> Tensor:
        """Also converts to the dtype of the layer."""
        weight: Tensor = self.layers[place].weight  # type: ignore[assignment]
        return x.to(weight.dtype).tanh()


class HeadFirst(Chain):
    """A chain whose last layer is defined first; its gradient is still computed first."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        *body, head = self.layers
        del self.layers
        self.head, self.body = head, nn.ModuleList(body)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = layer(x).tanh()
        y: Tensor = self.head(x)
        return y


class Buffered(Frozen):
    """A model with two buffers: `centre` is used; `count` is an integer and not persistent."""

    centre: Tensor

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__(sizes)
        self.register_buffer("centre", torch.zeros(sizes[0]))
        count = torch.zeros((), dtype=torch.int64)
        self.register_buffer("count", count, persistent=False)  # not in `state_dict`

    def forward(self, x: Tensor) -> Tensor:
        """See `Chain`; subtracts the centre from the inputs."""
        return super().forward(x - self.centre)


class Branches(nn.Module):
    """Two branches whose outputs are added; if `turned`, the right branch is computed first.

    Gradients arrive in the reverse order, so this order can differ between ranks.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.left, self.right = Chain(sizes), Chain(sizes)
        self.turned = False

    def forward(self, x: Tensor) -> Tensor:
        """Maps [n, sizes[0]] to [n, sizes[-1]]."""
        order = (self.right, self.left) if self.turned else (self.left, self.right)
        first, second = (branch(x) for branch in order)
        total: Tensor = first + second
        return total


class _Mark(torch.autograd.Function):
    """Identity between two layers; its backward records a span in the trace."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        with span("layer"):
            compute(0.001)
        return gradient


class Marked(Chain):
    """A chain whose backward pass records, in the trace, when it moves to the previous layer."""

    def between(self, x: Tensor, place: int) -> Tensor:
        """Adds a mark after tanh."""
        marked: Tensor = _Mark.apply(x.tanh())  # type: ignore[no-untyped-call]
        return marked


KINDS: dict[str, type[nn.Module]] = {
    "chain": Chain,
    "frozen": Frozen,
    "shifted": Shifted,
    "skipping": Skipping,
    "tied": Tied,
    "mixed": Mixed,
    "buffered": Buffered,
    "head first": HeadFirst,
    "branches": Branches,
    "marked": Marked,
}


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns parameters, then buffers, by name; a tied parameter occurs once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def numbers(module: nn.Module, seed: int) -> State:
    """Draws new contents for all tensors of a module."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 1000, tensor.shape, generator=generator)
        if tensor.dtype == torch.int64
        else torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * 0.6
        for tensor in tensors_of(module).values()
    ]


def filled(kind: str, sizes: tuple[int, ...], state: State, turned: bool = False) -> nn.Module:
    """Builds a model of this kind with these contents; `turned` applies to `Branches`."""
    module = KINDS[kind](sizes)
    if isinstance(module, Branches):
        module.turned = turned
    for tensor, content in zip(tensors_of(module).values(), state, strict=True):
        tensor.detach().copy_(content)
    return module
