"""Adam as checks of unit 05 hand it to answers. This file loads torch: imported when one runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Adam"]


class Adam:
    """As `torch.optim.Adam` with its usual betas, without PyTorch's compiler; see `step`."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, eps: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": lr}]
        self.state: dict[Tensor, dict[str, Any]] = {}
        self._eps = eps

    @torch.no_grad()
    def step(self) -> None:
        """Step every tensor that has a gradient."""
        group = self.param_groups[0]
        for one in group["params"]:
            if one.grad is None:
                continue
            state = self.state.setdefault(one, {"step": 0})
            state["step"] += 1
            for name, beta, power in (("first", 0.9, 1), ("second", 0.999, 2)):
                average = state.setdefault(name, torch.zeros_like(one))
                average.mul_(beta).add_(one.grad**power, alpha=1 - beta)
            first = state["first"] / (1 - 0.9 ** state["step"])
            second = state["second"] / (1 - 0.999 ** state["step"])
            one -= group["lr"] * first / (second.sqrt() + self._eps)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for one in self.param_groups[0]["params"]:
            one.grad = None
