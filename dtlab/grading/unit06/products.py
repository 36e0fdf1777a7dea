"""Marks, in a trace, the matrix products that a backward pass calls in Python. It loads torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dtlab.grading.unit06.passes import PRODUCT
from dtlab.trace import span

__all__ = ["mark_products"]

_NAMES = frozenset(
    ("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "einsum", "tensordot", "outer")
)


def mark_products(y: Any) -> None:
    """When backward goes on from `y`, every matrix product in Python gets a mark of its own.

    Autograd enters no mode of the caller's, so a hook does. Not a TorchDispatchMode, which would
    see the products of PyTorch's own backward too: it imports the compiler, which takes seconds.
    """
    if isinstance(y, torch.Tensor) and y.requires_grad:
        y.register_hook(_enter)  # type: ignore[no-untyped-call]


def _enter(gradient: torch.Tensor) -> None:
    _Marking().__enter__()  # type: ignore[no-untyped-call]  # autograd leaves it at its end


class _Marking(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "").strip("_").removeprefix("r") in _NAMES:
            with span(PRODUCT):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
