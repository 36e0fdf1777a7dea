"""What a step has in memory, operator by operator: no allocator is asked.

So it says the same on any device and any machine: the bytes of the tensors that exist.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dtlab.training.held import Storage, storage_of

__all__ = ["LiveBytes", "live_bytes", "peak_bytes"]


@dataclass(frozen=True)
class LiveBytes:
    """Bytes in memory after each operator of a forward pass, and then of its backward pass.

    `gradients` are the bytes of the parameters' gradients, which stay after the step as parameters
    do, and are in none of the other figures.
    """

    forward: list[int]
    backward: list[int]
    gradients: int

    @property
    def peak(self) -> int:
        """The most at any time."""
        return max(self.forward + self.backward, default=0)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operators make, and takes away those that are let go."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[Storage, int] = {}
        self._made: dict[Storage, int] = {}  # by which operator
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage_of(each)[0] for each in _tensors((args, kwargs))}
        outputs = func(*args, **(kwargs or {}))
        for tensor in _tensors(outputs):
            key, size = storage_of(tensor)
            if key not in given and key not in self._live:  # no view, no change in place
                self._live[key], self._made[key] = size, len(self.bytes)
                weakref.finalize(tensor.untyped_storage(), self._live.pop, key)
        self.bytes.append(sum(self._live.values()))
        return outputs

    def leave_out(self, tensors: list[Tensor]) -> int:
        """Count these nowhere; gives their bytes."""
        storages = dict(map(storage_of, tensors))
        for key, size in storages.items():
            for place in range(self._made[key], len(self.bytes)):
                self.bytes[place] -= size
        return sum(storages.values())


def live_bytes(fn: Callable[..., Any], *inputs: Any, **keywords: Any) -> LiveBytes:
    """Run `fn` forward, and backward from the sum of its outputs, and follow the bytes in memory.

    Counted are the storages of the tensors that operators return: activations, their gradients,
    casts. Not counted are what was there before (parameters, inputs), the parameters' gradients,
    and what an operator needs within itself. `.grad` stays as it is.

    Raises: ValueError where no output needs a gradient.
    """
    with _Watch() as watch, torch.enable_grad():
        outputs = [each for each in _tensors(fn(*inputs, **keywords)) if each.requires_grad]
        if not outputs:
            raise ValueError("No output needs a gradient: there is no backward pass to measure.")
        forward = len(watch.bytes)
        losses = [each.sum() for each in outputs]
        del outputs
        trained = _trained(losses)
        gradients = torch.autograd.grad(losses, trained, allow_unused=True)
    of_parameters = [
        gradient
        for tensor, gradient in zip(trained, gradients, strict=True)
        if isinstance(tensor, nn.Parameter) and gradient is not None
    ]
    left_out = watch.leave_out(of_parameters)
    return LiveBytes(watch.bytes[:forward], watch.bytes[forward:], left_out)


def peak_bytes(fn: Callable[..., Any], *inputs: Any, **keywords: Any) -> int:
    """The most bytes that forward and backward of `fn` have in memory at a time.

    What counts is said at `live_bytes`.
    """
    return live_bytes(fn, *inputs, **keywords).peak


def _tensors(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def _trained(outputs: list[Tensor]) -> list[Tensor]:
    """All tensors at the other end of the graph that gradients are for."""
    nodes, seen, leaves = [each.grad_fn for each in outputs], set[Any](), []
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        leaves += [leaf] if leaf is not None else []
        nodes += [before for before, _ in node.next_functions]
    return leaves
