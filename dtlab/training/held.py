"""`dtlab.held_bytes`: bytes of tensors, each storage counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Storage = tuple[torch.device, int]

__all__ = ["held_bytes", "storage_of"]


def held_bytes(*objects: Any) -> int:
    """Bytes of the distinct storages behind modules, optimizers, tensors, and containers of them.

    A view counts with all of the storage behind it, and tied weights count once. A module has its
    parameters, their gradients and its buffers; an optimizer has its state, not the parameters.
    Objects of other classes are looked into; what holds no tensor counts nothing.
    """
    return sum(dict(map(storage_of, _tensors(objects, {}))).values())


def storage_of(tensor: Tensor) -> tuple[Storage, int]:
    """The storage behind a tensor: what tells it from others that are there, and its bytes."""
    storage = tensor.untyped_storage()
    # On the meta device, where sizes can be tried without memory, nothing has an address.
    return (tensor.device, storage.data_ptr() or storage._cdata), storage.nbytes()


def _tensors(thing: Any, seen: dict[int, Any]) -> Iterator[Tensor]:
    """All tensors in a thing, gradients of parameters among them; in no cycle twice.

    `seen` has things by their id, and so keeps them: an id is given again once its thing is gone.
    """
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type)):
        return
    seen[id(thing)] = thing
    if isinstance(thing, Tensor):
        yield thing
        if thing.is_leaf and thing.grad is not None:
            yield thing.grad
    elif isinstance(thing, nn.Module):
        yield from _tensors([*thing.parameters(), *thing.buffers()], seen)
    elif isinstance(thing, torch.optim.Optimizer):
        yield from _tensors(list(thing.state.values()), seen)
    elif isinstance(thing, Mapping):
        yield from _tensors(list(thing.values()), seen)
    elif isinstance(thing, Iterable):
        for one in thing:
            yield from _tensors(one, seen)
    else:
        yield from _tensors(getattr(thing, "__dict__", {}), seen)
