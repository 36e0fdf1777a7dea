"""The broken programs of Level III, as level-3.ipynb shows them, their model, and measurements.

This file imports torch, so it is imported only when a check runs.
"""

from __future__ import annotations

import gc
import re
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import SGD

from dtlab.parallel.zero import Zero3
from dtlab.training.live import Storages

__all__ = ["Alive", "Layer", "Net", "Watch", "train_a", "train_b", "train_c"]

# mypy: disable-error-code="no-untyped-call, var-annotated, operator"

Batches = Iterable[tuple[Tensor, Tensor]]


class Layer(nn.Module):
    """An MLP with a residual connection; its inner size is twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, width] to [n, width]."""
        out: Tensor = x + self.narrow(F.gelu(self.wide(x)))
        return out


class Net(nn.Module):
    """A classifier of images: `depth` layers of one width, from 64 pixels to 10 classes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))
        self.leave = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map [n, 64] to [n, 10]."""
        out: Tensor = self.leave(self.layers(self.enter(images)))
        return out


def train_a(model: Net, batches: Batches) -> list[float]:
    """Train `model` at ZeRO stage 3, two microbatches a batch, and return the losses."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    optimizer = SGD(model.parameters(), lr=0.1)
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        total = 0.0
        for number, half in enumerate(images.chunk(2)):
            model.set_requires_gradient_sync(number % 2 == 0)
            loss = F.cross_entropy(model(half), labels.chunk(2)[number]) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def train_b(model: Net, batches: Batches) -> list[float]:
    """Train `model` in bfloat16, and add up gradients in float32; the losses."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    in_layers = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for_all = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=in_layers)
    fully_shard(model, mesh=mesh, mp_policy=for_all)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_c(model: Net, batches: Batches) -> list[float]:
    """Train `model` at ZeRO stage 3, leave its mean over the steps in it, return losses."""
    sharded = Zero3(model, blocks=Layer)
    optimizer = SGD(sharded.parameters(), lr=0.1)
    losses, after = [], []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(sharded(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after.append(sharded.full_state_dict())
    mean = {name: sum(one[name] for one in after) / len(after) for name in after[0]}
    sharded.load_state_dict(mean)
    return losses


# Measurements on a rank -------------------------------------------------------------------------


class Watch(ExitStack):
    """Context manager that measures a program on a rank; `noted` has the results.

    `whole` is the most bytes of whole parameters while a layer computes, `inputs` are the dtypes
    in which layers compute, and `rows` the most samples that they get at once. If asked for,
    `alive` has the bytes of all tensors whenever a batch is drawn, and `kept` the results of
    `Kept` at these times.
    """

    def __init__(self, model: Net, alive: bool, kept: bool) -> None:
        super().__init__()
        self._model, self._shapes = model, [p.shape for p in model.parameters()]
        self._alive = self.enter_context(Alive()) if alive else None
        self._kept = self.enter_context(Kept()) if kept else None
        self._whole, self._inputs, self._rows = [0], set[str](), 0
        self._held: list[int] = []
        self._others: list[dict[str, int]] = []
        for layer in model.layers:
            assert isinstance(layer, Layer)
            layer.wide.register_forward_pre_hook(self._note_layer)

    def batches(self, given: Sequence[Any]) -> Iterator[Any]:
        """The batches; whenever one is drawn, record the memory in use."""
        for batch in given:
            if self._alive is not None:
                # On a busy machine gloo's threads may hold the tensors of an operation for long,
                # so wait until no more bytes exist than after the first step.
                goal, patience = (self._held[1], 0.5) if self._held[1:] else (0, 0.02)
                self._held.append(self._alive.settled(goal, patience))
            if self._kept is not None:
                self._others.append(self._kept.now())
            yield batch

    @property
    def noted(self) -> dict[str, Any]:
        """All measurements."""
        return {
            "whole": max(self._whole),
            "inputs": sorted(self._inputs),
            "rows": self._rows,
            "alive": self._held,
            "kept": self._others,
        }

    def _note_layer(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._rows = max(self._rows, len(inputs[0]))
        self._inputs.add(str(module.weight.dtype).removeprefix("torch."))
        pairs = zip(self._model.parameters(), self._shapes, strict=True)
        whole = [a for a, shape in pairs if a.shape == shape and not hasattr(a, "to_local")]
        self._whole.append(sum(p.numel() * p.element_size() for p in whole))


# Memory of a rank outside of tensors: NumPy arrays, Python objects, and autograd graphs ----------
#
#     storages   storages of tensors                `Alive`
#     arrays     memory allocated by NumPy          tracemalloc, in NumPy's domain
#     objects    Python's lists, bytes, ...         tracemalloc, without the recorder's objects
#     nodes      operations in the autograd graphs of all existing tensors

_NUMPY = int(getattr(np.lib, "tracemalloc_domain", 389047))
_IGNORED = re.compile(r"[/\\]dtlab[/\\]ranks[/\\]|tracemalloc\.py$")  # their objects don't count


class Kept:
    """Context manager that traces the memory that Python and NumPy allocate."""

    def __enter__(self) -> Kept:
        # A process's first optimizer imports many modules, which is slow under tracemalloc.
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        gc.freeze()  # so that each collection skips the objects that exist already
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        tracemalloc.stop()
        gc.unfreeze()

    def now(self) -> dict[str, int]:
        """Current bytes of arrays and of objects, and the number of autograd nodes."""
        gc.collect()
        arrays = objects = 0
        for trace in tracemalloc.take_snapshot().traces:
            if trace.domain == _NUMPY:
                arrays += trace.size
            elif not _IGNORED.search(trace.traceback[0].filename):
                objects += trace.size
        return {"arrays": arrays, "objects": objects, "nodes": graph_nodes()}


def graph_nodes() -> int:
    """The number of operations in the autograd graphs of all tensors that Python holds."""
    tensors = [item for item in gc.get_objects() if issubclass(type(item), Tensor)]
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors]
    visited: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            waiting += [before for before, _ in node.next_functions]
    return len(visited)


# Bytes of all tensors that exist on a rank -------------------------------------------------------


class Alive(Storages):
    """`Storages` without meta tensors, that can wait until operations have released theirs."""

    def follow(self, tensor: Tensor) -> None:
        if not tensor.is_meta:
            super().follow(tensor)

    def settled(self, goal: float = 0, patience: float = 0.02) -> int:
        """The bytes that exist, as soon as they are at most `goal`, or after `patience` seconds.

        A thread of gloo may hold the tensors of an operation slightly longer than it lasts.
        """
        gc.collect()
        least, until = self.bytes, time.monotonic() + patience
        while least > goal and time.monotonic() < until:
            time.sleep(0.002)
            least = min(least, self.bytes)
        return least
