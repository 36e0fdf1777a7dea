"""Marks, in a trace, the matrix products that a backward pass calls in Python. It loads torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dtlab.trace import span
from dtlab.units.unit06.passes import PRODUCT

__all__ = ["mark_products"]

_ADDING = frozenset(("addmm", "addbmm", "baddbmm"))  # what they add to comes first
_NAMES = _ADDING | {"matmul", "mm", "bmm", "linear", "einsum", "tensordot", "outer"}


def mark_products(y: Any) -> None:
    """When backward goes on from `y`, every matrix product in Python has a mark behind it.

    The mark's `work` is how many multiplications it took.
    Autograd enters no mode of the caller's, so a hook does. Not a TorchDispatchMode, which would
    see the products of PyTorch's own backward too: it imports the compiler, which takes seconds.
    """
    if isinstance(y, torch.Tensor) and y.requires_grad:
        y.register_hook(_enter)  # type: ignore[no-untyped-call]


def _enter(gradient: torch.Tensor) -> None:
    _Marking().__enter__()  # type: ignore[no-untyped-call]  # autograd leaves it at its end


class _Marking(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").strip("_").removeprefix("r")
        if name in _NAMES and isinstance(made, torch.Tensor):
            factors = [*_tensors((args, kwargs or {}))][name in _ADDING :]
            with span(PRODUCT, work=_work(*factors[:2], made)):
                pass
        return made


def _work(*tensors: torch.Tensor) -> int:
    """Of [m, k] times [k, n], which is [m, n]: mkn, as the root of mk times kn times mn."""
    return math.isqrt(math.prod(one.numel() for one in tensors))


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors in (nested) arguments, in order."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple | dict):
        for one in values.values() if isinstance(values, dict) else values:
            yield from _tensors(one)
