"""An optimizer that counts its steps, and a converter of return values. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

__all__ = ["Stepping", "truth_of"]


class Stepping(Optimizer):
    """SGD with a momentum of 0.9, for groups of parameters; `steps` counts its steps.

    PyTorch's own methods import its compiler at the first call, which takes a second or two. This
    class replaces them.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], rate: float) -> None:
        super().__init__([{"params": list(group)} for group in groups], {"lr": rate})
        self.steps = 0
        self._velocity: dict[nn.Parameter, torch.Tensor] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.param_groups.append({**self.defaults, **param_group})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    before = self._velocity.get(parameter, torch.zeros_like(parameter))
                    self._velocity[parameter] = 0.9 * before + parameter.grad
                    parameter -= group["lr"] * self._velocity[parameter]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad = torch.zeros_like(parameter.grad)


def truth_of(returned: Any) -> int | str:
    """0 or 1 for a truth value, even one in a tensor; otherwise the type in words."""
    if isinstance(returned, torch.Tensor) and returned.numel() == 1:
        returned = returned.item()
    if isinstance(returned, bool | int | float):
        return int(bool(returned))
    return "None" if returned is None else f"a {type(returned).__name__}"
