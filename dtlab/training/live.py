"""Bytes of tensors: `held_bytes` of given objects, `live_bytes` of a step, after each operator.

Each storage counts once. These bytes are the same on any device and any machine.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dtlab.torch_internals import DispatchMode, storage_number, tree_leaves

Storage = tuple[torch.device, int]

__all__ = ["LiveBytes", "Storages", "held_bytes", "live_bytes", "peak_bytes", "storage_of"]


def held_bytes(*objects: Any) -> int:
    """Return the bytes of the distinct storages in modules, optimizers, tensors, and containers.

    A view counts with its whole storage, and tied weights count once. A module counts with its
    parameters, their gradients and its buffers; an optimizer with its state, without parameters.
    Objects of other classes are searched for tensors.
    """
    return sum(dict(map(storage_of, _all_tensors(objects, {}))).values())


def storage_of(tensor: Tensor) -> tuple[Storage, int]:
    """Return a key of a tensor's storage, unique while the storage exists, and its bytes."""
    storage = tensor.untyped_storage()
    # On the meta device storages have no address.
    return (tensor.device, storage.data_ptr() or storage_number(storage)), storage.nbytes()


def _all_tensors(value: Any, visited: dict[int, Any]) -> Iterator[Tensor]:
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
        yield from _all_tensors([*value.parameters(), *value.buffers()], visited)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _all_tensors(list(value.state.values()), visited)
    elif isinstance(value, Mapping):
        yield from _all_tensors(list(value.values()), visited)
    elif isinstance(value, Iterable):
        for element in value:
            yield from _all_tensors(element, visited)
    else:
        yield from _all_tensors(getattr(value, "__dict__", {}), visited)


# Live bytes of a step ---------------------------------------------------------------------------


@dataclass(frozen=True)
class LiveBytes:
    """Bytes in memory after each operator of a forward pass, and then of its backward pass.

    `gradients` are the bytes of the parameters' gradients, which remain after the step as
    parameters do, and are in none of the other figures.
    """

    forward: list[int]
    backward: list[int]
    gradients: int

    @property
    def peak(self) -> int:
        """The largest number of bytes at any time."""
        return max(self.forward + self.backward, default=0)


class Storages(DispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the storages of `existing` tensors and of those made by operators, in backward too.

    Operators count while the mode is active. A storage counts as long as a reference exists: in a
    list, a module, autograd. A storage that was released by `resize_(0)` counts 0, and views of
    older storages are not counted.
    """

    def __init__(self, *existing: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._living: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in existing:
            self.follow(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage_number(tensor.untyped_storage()) for tensor in _tensors((args, kwargs))}
        outputs = func(*args, **(kwargs or {}))
        for tensor in _tensors(outputs):
            # neither a view, nor changed in place
            if storage_number(tensor.untyped_storage()) not in given:
                self.follow(tensor)
        self.note()
        return outputs

    def follow(self, tensor: Tensor) -> None:
        """Count the storage of a tensor from now on."""
        storage = tensor.untyped_storage()
        number = storage_number(storage)
        gone = partial(self._living.pop, number)
        self._living.setdefault(number, weakref.ref(storage, lambda _: gone(None)))

    def note(self) -> None:
        """Do nothing; subclasses override this method, which is called after each operator."""

    @property
    def bytes(self) -> int:
        """The bytes of all living storages."""
        storages = [reference() for reference in list(self._living.values())]
        return sum(storage.nbytes() for storage in storages if storage is not None)


class _Course(Storages):  # type: ignore[no-untyped-call]
    """Records the bytes after each operator."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, int] = {}  # index of the operator that made each storage
        self.after: list[int] = []

    def follow(self, tensor: Tensor) -> None:
        key = storage_number(tensor.untyped_storage())
        if key not in self._living:
            self._made[key] = len(self.after)
        super().follow(tensor)

    def note(self) -> None:
        self.after.append(self.bytes)

    def leave_out(self, tensors: list[Tensor]) -> int:
        """Subtract these tensors from all figures; return their bytes."""
        storages = {storage_number(s): s for s in (tensor.untyped_storage() for tensor in tensors)}
        for key, storage in storages.items():
            for place in range(self._made[key], len(self.after)):
                self.after[place] -= storage.nbytes()
        return sum(storage.nbytes() for storage in storages.values())


def live_bytes(fn: Callable[..., Any], *inputs: Any, **keywords: Any) -> LiveBytes:
    """Run `fn` forward, and backward from the sum of its outputs; record the bytes in memory.

    It counts the storages of tensors that operators return: activations, their gradients, casts.
    It does not count existing tensors (parameters, inputs), the parameters' gradients, or memory
    inside an operator. `.grad` is unchanged.

    Raises: ValueError if no output needs a gradient.
    """
    with _Course() as course, torch.enable_grad():
        outputs = [tensor for tensor in _tensors(fn(*inputs, **keywords)) if tensor.requires_grad]
        if not outputs:
            raise ValueError(
                "No output needs a gradient, so there is no backward pass to measure."
            )
        forward = len(course.after)
        losses = [output.sum() for output in outputs]
        del outputs
        trained = _trained(losses)
        gradients = torch.autograd.grad(losses, trained, allow_unused=True)
    of_parameters = [
        gradient
        for tensor, gradient in zip(trained, gradients, strict=True)
        if isinstance(tensor, nn.Parameter) and gradient is not None
    ]
    left_out = course.leave_out(of_parameters)
    return LiveBytes(course.after[:forward], course.after[forward:], left_out)


def peak_bytes(fn: Callable[..., Any], *inputs: Any, **keywords: Any) -> int:
    """Return the peak number of bytes in memory during forward and backward of `fn`.

    For what is counted see `live_bytes`.
    """
    return live_bytes(fn, *inputs, **keywords).peak


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _trained(outputs: list[Tensor]) -> list[Tensor]:
    """Return all leaf tensors of the graph that accumulate gradients."""
    nodes, visited, leaves = [output.grad_fn for output in outputs], set[Any](), []
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        leaves += [leaf] if leaf is not None else []
        nodes += [parent for parent, _ in node.next_functions]
    return leaves
