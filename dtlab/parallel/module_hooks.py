"""Small questions that hooks of modules and of autograd ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["cast", "in_backward", "is_recomputing", "on_gradient", "tensors_in"]


def in_backward() -> bool:
    """Whether autograd is at work on this thread."""
    return torch._C._current_graph_task_id() != -1


def is_recomputing() -> bool:
    """Whether a checkpoint computes its part again, for tensors that it has not saved.

    One with use_reentrant=True does not count: to autograd that is a forward pass like any other.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return in_backward() and hooks is not None


def cast(dtype: torch.dtype, one: Any) -> Any:
    """Floating-point tensors in this dtype; anything else as it is."""
    is_float = isinstance(one, Tensor) and one.is_floating_point()
    return one.to(dtype) if is_float else one


def on_gradient(parameter: Tensor, do: Callable[[Tensor], None]) -> None:
    """Once the gradient of a parameter is in `.grad`, all uses of it added up."""
    parameter.register_post_accumulate_grad_hook(do)  # type: ignore[no-untyped-call]


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """All tensors in what a module takes or returns; containers and dataclasses are opened."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        yield from tensors_in(list(thing.values()))
    elif isinstance(thing, (list, tuple, set)):
        for one in thing:
            yield from tensors_in(one)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        yield from tensors_in([getattr(thing, one.name) for one in dataclasses.fields(thing)])
