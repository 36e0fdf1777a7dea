"""Live memory of a step, operator by operator.

So it says the same on any device and any machine: the bytes of the tensors that exist.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes", "Storages", "live_bytes", "peak_bytes"]


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


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The storages of some tensors and of what operators make while it is on, in backward too.

    A storage counts as long as anybody has it: a list, a module, autograd. One that was given back
    with `resize_(0)` counts nothing, and neither do views of what was there before.
    """

    def __init__(self, *there: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._living: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in there:
            self.follow(tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch asks; else the first operator imports its compiler, for seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {each.untyped_storage()._cdata for each in _tensors((args, kwargs))}
        outputs = func(*args, **(kwargs or {}))
        for tensor in _tensors(outputs):
            if tensor.untyped_storage()._cdata not in given:  # no view, no change in place
                self.follow(tensor)
        self.note()
        return outputs

    def follow(self, tensor: Tensor) -> None:
        """Count the storage of a tensor from now on."""
        storage = tensor.untyped_storage()
        gone = partial(self._living.pop, storage._cdata)
        self._living.setdefault(storage._cdata, weakref.ref(storage, lambda _: gone(None)))

    def note(self) -> None:
        """Called after each operator."""

    @property
    def bytes(self) -> int:
        """What they take now."""
        found = [one() for one in list(self._living.values())]
        return sum(one.nbytes() for one in found if one is not None)


class _Course(Storages):  # type: ignore[no-untyped-call]
    """The bytes after each operator."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, int] = {}  # by which operator
        self.after: list[int] = []

    def follow(self, tensor: Tensor) -> None:
        """See `Storages`."""
        key = tensor.untyped_storage()._cdata
        if key not in self._living:
            self._made[key] = len(self.after)
        super().follow(tensor)

    def note(self) -> None:
        """See `Storages`."""
        self.after.append(self.bytes)

    def leave_out(self, tensors: list[Tensor]) -> int:
        """Count these nowhere; gives their bytes."""
        storages = {each._cdata: each for each in (one.untyped_storage() for one in tensors)}
        for key, storage in storages.items():
            for place in range(self._made[key], len(self.after)):
                self.after[place] -= storage.nbytes()
        return sum(storage.nbytes() for storage in storages.values())


def live_bytes(fn: Callable[..., Any], *inputs: Any, **keywords: Any) -> LiveBytes:
    """Run `fn` forward, and backward from the sum of its outputs, and follow the bytes in memory.

    Counted are the storages of the tensors that operators return: activations, their gradients,
    casts. Not counted are what was there before (parameters, inputs), the parameters' gradients,
    and what an operator needs within itself. `.grad` stays as it is.

    Raises: ValueError where no output needs a gradient.
    """
    with _Course() as course, torch.enable_grad():
        outputs = [each for each in _tensors(fn(*inputs, **keywords)) if each.requires_grad]
        if not outputs:
            raise ValueError("No output needs a gradient: there is no backward pass to measure.")
        forward = len(course.after)
        losses = [each.sum() for each in outputs]
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
