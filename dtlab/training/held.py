"""`dtlab.held_bytes`: bytes of tensors, each storage counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Storage = tuple[torch.device, int]

__all__ = ["held_bytes", "storage_of"]


def held_bytes(*objects: Any) -> int:
    """Return the bytes of the distinct storages in modules, optimizers, tensors, and containers.

    A view counts with its whole storage, and tied weights count once. A module counts with its
    parameters, their gradients and its buffers; an optimizer with its state, without parameters.
    Objects of other classes are searched for tensors.
    """
    return sum(dict(map(storage_of, _tensors(objects, {}))).values())


def storage_of(tensor: Tensor) -> tuple[Storage, int]:
    """Return a key of a tensor's storage, unique while the storage exists, and its bytes."""
    storage = tensor.untyped_storage()
    # On the meta device storages have no address.
    return (tensor.device, storage.data_ptr() or storage._cdata), storage.nbytes()


def _tensors(value: Any, visited: dict[int, Any]) -> Iterator[Tensor]:
    """Yield all tensors in a value, and gradients of parameters; handles cycles.

    `visited` maps ids to objects. It keeps the objects alive, because Python reuses ids.
    """
    if id(value) in visited or isinstance(value, (str, bytes, int, float, type)):
        return
    visited[id(value)] = value
    if isinstance(value, Tensor):
        yield value
        if value.is_leaf and value.grad is not None:
            yield value.grad
    elif isinstance(value, nn.Module):
        yield from _tensors([*value.parameters(), *value.buffers()], visited)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _tensors(list(value.state.values()), visited)
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()), visited)
    elif isinstance(value, Iterable):
        for element in value:
            yield from _tensors(element, visited)
    else:
        yield from _tensors(getattr(value, "__dict__", {}), visited)
