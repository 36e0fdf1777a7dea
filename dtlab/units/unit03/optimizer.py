"""An optimizer for schedules alone. This file loads torch: imported when one runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

__all__ = ["Still"]


class Still(Optimizer):
    """Has parameter groups with rates, and changes nothing.

    What PyTorch's own does at the first call imports its compiler, a second or two: so this one
    takes groups, and saves and loads them, by itself.
    """

    def __init__(self, groups: list[dict[str, Any]], rate: float) -> None:
        super().__init__(groups, {"lr": rate})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.param_groups.append(param_group)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Nothing."""

    def state_dict(self) -> dict[str, Any]:
        """See `Optimizer`: all but the parameters."""
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self.param_groups
        ]
        return {"state": {}, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(saved)
