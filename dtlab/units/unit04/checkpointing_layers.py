"""Layers and steps with which ranks test a learner's checkpoint. This module imports torch."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dtlab.checks.questions.shapes import kind_in_words

__all__ = ["Saved", "go_through", "put_before", "seeded", "tensor_from", "weights_of"]

Apply = Callable[..., Tensor]


class Gated(nn.Module):
    """Two linear layers; other inputs scale, mask or index the rows of the tensor between them.

    `runs` counts the forward passes; `alive` counts their tensors that still exist.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.runs = 0
        self._storages: list[weakref.ref[Any]] = []

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """Map [n, width] to [n, width], or to a row for each index if `others` has indices."""
        self.runs += 1
        hidden = self._note(torch.tanh(self._note(self.first(x))))
        for other in others:
            picks = other.dtype == torch.int64
            hidden = self._note(hidden[other] if picks else hidden * other)
        return self._note(torch.sigmoid(self._note(self.second(hidden))))

    def _note(self, tensor: Tensor) -> Tensor:
        self._storages.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    @property
    def alive(self) -> int:
        """How many of the tensors that the layer created are still in memory."""
        return sum(storage() is not None for storage in self._storages)


class Saved:
    """The bytes that autograd saves in a forward pass, without the storages of `excluded`.

    A storage that is saved several times counts once.
    """

    def __init__(self, excluded: Sequence[Tensor]) -> None:
        self._excluded = {tensor.untyped_storage().data_ptr() for tensor in excluded}
        self._kept: list[weakref.ref[Any]] = []

    def hooks(self) -> saved_tensors_hooks:
        """The hooks to enter for the forward pass."""

        def keep(tensor: Tensor) -> _Holder:
            holder = _Holder(tensor.detach())
            self._kept.append(weakref.ref(holder))
            return holder

        return saved_tensors_hooks(keep, lambda holder: holder.tensor)

    @property
    def bytes(self) -> int:
        """The bytes that are still saved."""
        holders = [holder for kept in self._kept if (holder := kept()) is not None]
        storages = [holder.tensor.untyped_storage() for holder in holders]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        return sum(size for pointer, size in sizes.items() if pointer not in self._excluded)


class _Holder:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def seeded(module: Any, seed: int) -> Any:
    """Fills the module with parameters drawn from a seed, and returns it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return module


def _inputs(given: dict[str, Any]) -> list[Tensor]:
    """Inputs of a `Gated` layer: "x"; then "scale" (trained), "mask" (not), "places" (indices)."""
    generator, rows = torch.Generator().manual_seed(given["seed"]), given["rows"]
    inputs = []
    for kind in given["kinds"]:
        width = given["width" if kind == "x" else "hidden"]
        drawn = torch.randn(rows, width, generator=generator)
        places = torch.randint(rows, (rows + 2,), generator=generator)
        other = {"places": places, "mask": (drawn > 0).float()}
        inputs.append(other[kind] if kind in other else drawn.requires_grad_())
    return inputs


def put_before(tensors: Sequence[Tensor | None], seed: int) -> list[Tensor | None]:
    """What `.grad` of each tensor holds before backward: alternately None and numbers."""
    return [
        None
        if tensor is None or place % 2 == 0
        else torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed + 7 + place))
        for place, tensor in enumerate(tensors)
    ]


def go_through(given: dict[str, Any], apply: Apply) -> dict[str, Any]:
    """Runs a `Recomputing` case with `apply(layer, *inputs)`, and returns its observations."""
    topic, seed = given["topic"], given["seed"]
    sizes = given["width"], given["hidden"]
    inputs = _inputs(given)
    before = seeded(nn.Linear(sizes[0], sizes[0]), seed + 3)
    layers = [seeded(Gated(*sizes), seed + number) for number in range(1 + (topic == "chain"))]
    trained = [*inputs, *(parameter for layer in layers for parameter in layer.parameters())]
    if topic == "chain":
        trained += before.parameters()
    for tensor, old in zip(trained, put_before(trained, seed), strict=True):
        tensor.grad = old if tensor.requires_grad else None
    saved = Saved(trained)
    # With hooks autograd does not detect changes in place, so use them only if memory is judged.
    with saved.hooks() if topic == "result" else nullcontext():
        x = before(inputs[0]).tanh() if topic == "chain" else inputs[0] * 1
        output = apply(layers[0], x, *inputs[1:])
        output = apply(layers[1], output) if topic == "chain" else output
    record = {"output": tensor_from("forward", output).detach().clone()}
    loss = (output * weights_of(output)).sum() if output.requires_grad else None
    del output
    if topic == "result":
        if any(layer.alive for layer in layers):
            gc.collect()  # a reference cycle may keep tensors alive: that is not judged
        alive = sum(layer.alive for layer in layers)
        return record | {"alive": alive, "saved": saved.bytes - x.nbytes}
    runs_in_forward = layers[0].runs
    raised = _backward(loss, x if topic == "changed" else None)
    return record | {
        "gradients": [None if tensor.grad is None else tensor.grad.clone() for tensor in trained],
        "runs": [runs_in_forward, layers[0].runs - runs_in_forward],
        "raised": raised,
    }


def tensor_from(function: str, output: Any) -> Tensor:
    """`output`, which a learner's function returned. Raises TypeError if it is not a tensor."""
    if isinstance(output, Tensor):
        return output
    raise TypeError(f"{function} returns {kind_in_words(output)}, not the output, a tensor")


def weights_of(output: Tensor) -> Tensor:
    """The weights of the outputs in the loss, all different; the loss is the weighted sum."""
    numbers = torch.arange(output.numel(), dtype=torch.float32)
    return (numbers.cos() + 0.5).view(output.shape)


def _backward(loss: Tensor | None, changed: Tensor | None) -> str | None:
    """Changes `changed` in place, if given, and runs backward; returns the error, if any."""
    if loss is None:
        raise RuntimeError("the output has no gradient: requires_grad is False")
    if changed is None:
        loss.backward()
        return None
    with torch.no_grad():
        changed.add_(1)
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)[:200]
    return None
